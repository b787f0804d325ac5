"""The doctor: proves over all live trees, from independent evidence, that no callback is lost or doubled."""

from orchestrator.doctor.examination import Doctor
from orchestrator.doctor.findings import Blocker, Diagnosis, Problem, Severity

__all__ = ["Blocker", "Diagnosis", "Doctor", "Problem", "Severity"]

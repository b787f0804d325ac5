"""The doctor: proves the promise over all live trees from independent evidence, or names what breaks it."""

from orchestrator.doctor.examination import Doctor
from orchestrator.doctor.findings import Blocker, Diagnosis, Problem, Severity, Tally

__all__ = ["Blocker", "Diagnosis", "Doctor", "Problem", "Severity", "Tally"]

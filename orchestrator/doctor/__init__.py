"""The doctor: proves the promise over all live trees from independent evidence, or names what breaks it."""

from orchestrator.doctor.examination import Doctor
from orchestrator.doctor.findings import Diagnosis, Finding, Severity, Tally, Wait

__all__ = ["Diagnosis", "Doctor", "Finding", "Severity", "Tally", "Wait"]

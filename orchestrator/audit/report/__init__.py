"""Reports on the audit trail: what was said, refused, answered, promised and spent in a time."""

from __future__ import annotations

from orchestrator.audit.report.make import make_report
from orchestrator.audit.report.model import (
    AgentRow,
    Bucket,
    CallbackRow,
    CostRow,
    FailureRow,
    HopRow,
    Report,
    Unit,
)

__all__ = [
    "AgentRow",
    "Bucket",
    "CallbackRow",
    "CostRow",
    "FailureRow",
    "HopRow",
    "Report",
    "Unit",
    "make_report",
]

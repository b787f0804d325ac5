"""Reports on the audit trail: what was said, refused, answered, promised and spent in a time."""

from __future__ import annotations

from orchestrator.audit.report.make import make_report
from orchestrator.audit.report.model import Report, Unit

__all__ = ["Report", "Unit", "make_report"]

"""Reports on the audit trail: messages, refusals, answers, callbacks and costs of a time."""

from __future__ import annotations

from orchestrator.audit.report.make import make_report
from orchestrator.audit.report.model import Report, Unit

__all__ = ["Report", "Unit", "make_report"]

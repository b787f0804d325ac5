"""The audit trail: every published message, in a database that can be searched and checked for tampering."""

from __future__ import annotations

from orchestrator.audit.reader import AuditReader, Coverage, Node, trees
from orchestrator.audit.records import MessageRecord
from orchestrator.audit.store import AuditStore
from orchestrator.audit.verification import Break
from orchestrator.audit.writer import AuditWriter, build_writer

__all__ = [
    "AuditReader",
    "AuditStore",
    "AuditWriter",
    "Break",
    "Coverage",
    "MessageRecord",
    "Node",
    "build_writer",
    "trees",
]

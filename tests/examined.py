"""What the doctor says of a kit's stack. He looks again at once: whatever goes on there, the test does itself."""

from __future__ import annotations

from orchestrator.audit.reader import AuditReader
from orchestrator.audit.store import AuditStore
from orchestrator.audit.writer import AuditWriter
from orchestrator.doctor import Diagnosis, Doctor, Problem, Severity
from orchestrator.streams import all_streams
from tests.kit import Kit


def doctor_of(kit: Kit, trail: AuditReader | None = None) -> Doctor:
    """A doctor of the stack, by default without its audit trail."""
    return Doctor(kit.parts, audit=trail, sleep=lambda _: None)


def broken(kit: Kit) -> list[Problem]:
    """What is broken, by the ledger and the streams."""
    return _breaks(doctor_of(kit).examine(watch_leases=False))


def broken_by_the_trail(kit: Kit) -> list[Problem]:
    """What is broken, also by the audit trail of all that was said."""
    store = AuditStore(kit.settings.audit_database)
    try:
        writer = AuditWriter(kit.redis, store, consumer="w", sources=all_streams(1))
        while writer.run_once():
            pass
        diagnosis = doctor_of(kit, AuditReader(store)).examine(watch_leases=False)
    finally:
        store.close()
    assert diagnosis.audited
    return _breaks(diagnosis)


def _breaks(diagnosis: Diagnosis) -> list[Problem]:
    return [finding for finding in diagnosis.findings if finding.severity is Severity.BREAK]

"""Large texts that were altered or lost in the ledger, and that the audit trail still has."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from orchestrator.audit.reader import AuditReader
from orchestrator.audit.text import body_texts
from orchestrator.doctor.authenticity import unreadable_texts
from orchestrator.ledger import Ledger
from orchestrator.ledger.snapshot import take_snapshot


def restore_texts(ledger: Ledger, audit: AuditReader, session: str) -> None:
    """Store those again that the records of a session refer to, if a message has exactly their octets."""
    snapshot = take_snapshot(ledger, session)
    for _, ref, _ in [] if snapshot is None else unreadable_texts(snapshot, ledger):
        octets = _in_trail(audit, ref)
        if octets is not None:
            ledger.large_texts.restore(ref, octets)


def _in_trail(audit: AuditReader, ref: Mapping[str, Any]) -> bytes | None:
    """What a message of its session, or of one below that, says with that digest."""
    for record in audit.find(str(ref["session"])):
        for text in body_texts(audit.body(record)):
            for said in (text, text.strip()):
                octets = said.encode(errors="surrogatepass")
                if len(octets) == ref["size"] and hashlib.sha256(octets).hexdigest() == ref["sha256"]:
                    return octets
    return None

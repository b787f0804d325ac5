"""Texts that were altered or lost in the ledger, and that the audit trail still has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.reader import AuditReader
from orchestrator.audit.text import body_texts
from orchestrator.bootstrap import Container
from orchestrator.doctor.authenticity import unreadable_texts
from orchestrator.errors import PayloadError
from orchestrator.ids import callback_id
from orchestrator.ledger import Ledger, Session
from orchestrator.ledger.large_text import head_of
from orchestrator.ledger.sealing import as_kept
from orchestrator.ledger.snapshot import take_snapshot
from orchestrator.policy.sealed_text import defused


def restore_texts(ledger: Ledger, audit: AuditReader, session: str) -> None:
    """Store those again that the records of a session refer to, if a message has exactly their octets."""
    snapshot = take_snapshot(ledger, session)
    for _, ref, _ in [] if snapshot is None else unreadable_texts(snapshot, ledger):
        octets = _in_trail(audit, ref)
        if octets is not None:
            ledger.large_texts.restore(ref, octets)


def _in_trail(audit: AuditReader, ref: Mapping[str, Any]) -> bytes | None:
    """Return a text with that digest from a message of its session, or of one below that; None if there is none."""
    for record in audit.find(str(ref["session"])):
        for text in body_texts(audit.body(record)):
            for candidate in (text, text.strip()):
                octets = candidate.encode(errors="surrogatepass")
                if len(octets) == ref["size"] and hashlib.sha256(octets).hexdigest() == ref["sha256"]:
                    return octets
    return None


def restore_end(parts: Container, audit: AuditReader | None, child: str) -> None:
    """Keep again what a child said at the end that its parent was told of, if the proof in the ledger tells it from all
    that the trail, or another record, has.
    """
    about = parts.ledger.session(child)
    item = parts.ledger.item(about.parent, callback_id(child)) if about.parent else None
    if item is None or not item.extra.get("proof") or not parts.authenticity.reads_as_operator:
        return
    for text in _candidates(parts, audit, about, item.extra):
        if not parts.authenticity.item_fault(about.parent, item, text, reader=OPERATOR):
            parts.ledger.sweep.restore_text(child, text)
            return


def _candidates(
    parts: Container, audit: AuditReader | None, about: Session, record: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what the text of an end may have been: a reason, the beginning of a large text, or anything that its message says."""
    yield as_kept(about.reason)
    if record.get("whole"):
        with suppress(PayloadError):
            octets = parts.ledger.large_texts.read(record["whole"]).encode(errors="surrogatepass")
            yield defused(head_of(octets, parts.ledger.limits.inline_bytes))
    if audit is None:
        return
    for message in audit.find(str(record.get("message", ""))):
        for text in body_texts(audit.body(message)):
            yield defused(text)
            yield defused(text.strip())

"""Verification of the audit trail: chains, signed heads, and the signatures of the messages."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from sqlalchemy import select

from orchestrator.audit import records
from orchestrator.audit.amendments import Amended
from orchestrator.audit.chain import commit, link
from orchestrator.audit.database import BODIES, CHAINED, MESSAGES, METADATA, TRANSITION_SESSIONS, TRANSITIONS
from orchestrator.audit.heads import TABLES, End, Head, KeptHeads, Proof
from orchestrator.audit.store import AuditStore
from orchestrator.audit.transitions import sessions_in, unpack
from orchestrator.errors import AuditError

#: A trail that nothing was taken out of.
NOT_AMENDED: Final = Amended()


@dataclass(frozen=True)
class Break:
    """A place where the trail is not what was written."""

    #: The table.
    table: str
    #: The row.
    seq: int
    #: What is wrong there.
    what: str


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A message that was not refused although no signature holds for it."""

    seq: int
    #: Its stream and the id of its entry.
    place: tuple[str, str]
    sha256: str
    rule: str


def verify(
    store: AuditStore,
    proof: Proof,
    *,
    noted: Head | None,
    kept: KeptHeads | None,
    signed_here: bool,
    undecided: Callable[[Iterable[Suspect]], set[str]],
    unaudited: int = 0,
) -> Iterator[Break]:
    """Name each place where the trail is not what was written.

    Args:
        noted: the head in Redis.
        kept: the heads in the data folder; None: it is a copy of the trail, which may be older.
        signed_here: whether the operator's key is in this data folder, so that an absent head is no accident.
        undecided: which of the suspects' digests a router has yet to check.
        unaudited: dead letters that were dropped before the writer had read them: so many may have been refused.
    """
    by_kept = [] if kept is None else list(rolled_back(store, proof, kept))
    with store.database.snapshot():
        yield from _tampering(store, proof, noted=noted, signed_here=signed_here)
        yield from by_kept
        suspects = list(_suspects(store, proof))
    if suspects:
        waiting = undecided(suspects)
        # What was refused in the meantime has its dead letter by now.
        still = {suspect.seq for suspect in _suspects(store, proof)}
        left = [s for s in suspects if s.sha256 not in waiting and s.seq in still]
        for suspect in left if len(left) > unaudited else ():
            what = f"nobody is known to have said it ({suspect.rule}), and no router refused it"
            yield Break("messages", suspect.seq, what)


def require_untouched(store: AuditStore, proof: Proof, kept: KeptHeads) -> None:
    """Check that chains, amendments and heads are what was written; messages are not checked.

    Raises:
        AuditError: they are not; it names the first place.
    """
    by_kept = list(rolled_back(store, proof, kept))
    with store.database.snapshot():
        for broken in (*_tampering(store, proof, noted=None, signed_here=False), *by_kept):
            hint = "see `orchestra audit verify`; move the database away and keep it as evidence, and a new one begins"
            raise AuditError(store.name, f"{broken.table} row {broken.seq}: {broken.what}", hint)


def _tampering(store: AuditStore, proof: Proof, *, noted: Head | None, signed_here: bool) -> Iterator[Break]:
    amendments = []
    for amendment in store.amendments():
        if fault := amendment.fault(proof.keys, store.id):
            what = f"the {amendment.kind} of {amendment.table} row {amendment.seq} does not count: {fault}"
            yield Break("amendments", amendment.seq, what)
        else:
            amendments.append(amendment)
    yield from broken_chain(store, Amended.by(amendments))
    yield from _heads(store, proof, noted=noted, signed_here=signed_here)


def rolled_back(store: AuditStore, proof: Proof, kept: KeptHeads) -> Iterator[Break]:
    """Yield where the database lacks what the head in the data folder says it had: it was put back to an older state.

    Outside of a snapshot: a writer may keep a head of rows that a snapshot does not have.
    """
    try:
        head = kept.read(store.id)
    except AuditError as error:
        yield Break("heads", 0, f"the head beside the keys does not count: {error}")
        return
    if head is None:
        return
    file = kept.file(store.id)
    if fault := head.fault(proof.keys, store.id):
        yield Break("heads", 0, f"the head in {file} does not count: {fault}")
        return
    for broken in _against(store, proof, head):
        what = f"{broken.what}, by the head in {file}; if you restored a backup, remove that file before a writer starts on it"
        yield replace(broken, what=what)


def _heads(store: AuditStore, proof: Proof, *, noted: Head | None, signed_here: bool) -> Iterator[Break]:
    ends, stored = store.ends(), store.stored_head()
    was_signed = noted is not None and noted.jws
    if noted is not None and was_signed:
        yield from _by_head(store, proof, noted, "the head in Redis")
    if stored is None:
        if was_signed:
            yield Break("heads", 0, "the signed head was removed from the database")
        elif signed_here and any(ends.end(table).seq for table in TABLES):
            what = "the operator has not signed where it ends; `orchestra service audit` does, after an upgrade too"
            yield Break("heads", 0, what)
        return
    yield from _by_head(store, proof, stored, "the signed head")
    if stored.fault(proof.keys, store.id):
        return
    for table in TABLES:
        if ends.end(table).seq > stored.end(table).seq:
            first = stored.end(table).seq + 1
            what = f"the rows from {first} to {ends.end(table).seq} are under no signed head"
            yield Break(table, first, what)


def _by_head(store: AuditStore, proof: Proof, head: Head, name: str) -> Iterator[Break]:
    if fault := head.fault(proof.keys, store.id):
        yield Break("heads", 0, f"{name} does not count: {fault}")
    else:
        yield from _against(store, proof, head)


def _against(store: AuditStore, proof: Proof, head: Head) -> Iterator[Break]:
    """Yield where the database lacks what a head says was written, and what the operator has not removed."""
    begins = Amended.by(a for a in store.amendments() if not a.fault(proof.keys, store.id)).begins
    for table in TABLES:
        end = head.end(table)
        begin = begins.get(table, End())
        if end.seq < begin.seq or not end.seq:
            continue
        chain = begin.chain if end.seq == begin.seq else store.chain_at(table, end.seq)
        if chain is None:
            what = "the end was cut off, or an older state put back: this row was written"
            yield Break(table, end.seq, what)
        elif chain != end.chain:
            yield Break(table, end.seq, "it is not the row that was written")


def _suspects(store: AuditStore, proof: Proof) -> Iterator[Suspect]:
    for row in store.unrefused():
        if rule := proof.fault(row.xml, row.published_ms):
            yield Suspect(seq=row.seq, place=(row.stream, row.entry_id), sha256=row.sha256, rule=rule)


# --- chains ----------------------------------------------------------------------------------


def broken_chain(store: AuditStore, amended: Amended = NOT_AMENDED) -> Iterator[Break]:
    """Yield each row of the tables that does not fit its chain; ``amended``: what may be missing."""
    for name in TABLES:
        table, begin = METADATA.tables[name], amended.begins.get(name, End())
        chain, expected = begin.chain, begin.seq + 1
        chained_of = attrgetter(*CHAINED[name])
        for row in store.each(select(table).order_by(table.c.seq)):
            if row.seq != expected:
                yield Break(name, expected, f"rows {expected} to {row.seq - 1} are missing")
            values = chained_of(row)
            if name == "messages":
                values = (*values[:-1], row.commitment)
            if name == "transitions" and hashlib.sha256(row.document).hexdigest() != row.sha256:
                yield Break(name, row.seq, "its entries are not what was published")
            is_redacted = name == "messages" and amended.redacted.get(row.seq) == row.chain and not row.xml
            if name == "messages" and not is_redacted and not _is_committed(row):
                yield Break(name, row.seq, "its XML is not what was published")
            elif link(chain, values) != row.chain:
                yield Break(name, row.seq, "its facts, or the row before it, were changed")
            chain, expected = row.chain, row.seq + 1
    yield from _unindexed(store)
    yield from _without_body(store)
    for seq in store.misindexed():
        what = "its words in the index of searches were changed; remove `message_words`' rows and start the writer again"
        yield Break("messages", seq, what)
    for name, what in store.index_faults():
        yield Break(name, 0, what)


def _is_committed(row: Any) -> bool:
    """Return True if the bytes of a message are those that its chain covers."""
    found = hashlib.sha256(row.xml).hexdigest()
    return bool(
        found == row.sha256
        and len(row.xml) == row.octets
        and commit(row.salt, row.sha256 + row.status + row.body) == row.commitment
    )


def _without_body(store: AuditStore) -> Iterator[Break]:
    """Yield messages whose stored body does not match their envelope, or is missing."""
    rows = store.each(select(BODIES.c.sha256, BODIES.c.content))
    altered = {row.sha256 for row in rows if records.body_of(row.sha256, row.content) is None}
    known = select(BODIES.c.sha256).where(BODIES.c.sha256 == MESSAGES.c.body).exists()
    query = select(MESSAGES.c.seq, MESSAGES.c.body, known).where(MESSAGES.c.body != "")
    for seq, sha256, there in store.each(query.order_by(MESSAGES.c.seq)):
        if not there or sha256 in altered:
            yield Break("messages", seq, f"its stored body {'was changed' if there else 'is missing'}")


def _unindexed(store: AuditStore) -> Iterator[Break]:
    """Rows of transitions that a search for a session does not find: the index is made from them."""
    listed = store.each(select(TRANSITION_SESSIONS).order_by(TRANSITION_SESSIONS.c.seq))
    known = ((seq, {row.session for row in rows}) for seq, rows in groupby(listed, key=attrgetter("seq")))
    seq, sessions = next(known, (0, set()))
    for row in store.each(select(TRANSITIONS.c.seq, TRANSITIONS.c.document).order_by(TRANSITIONS.c.seq)):
        while seq and seq < row.seq:
            seq, sessions = next(known, (0, set()))
        steps = unpack(row.document)  # none: the row is named above
        if steps and sessions_in(steps) != (sessions if seq == row.seq else set()):
            yield Break("transitions", row.seq, "its index of sessions was changed")

"""Is the audit trail what was written: chain, signed heads, and the signatures of the messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from orchestrator.audit.amendments import Amended
from orchestrator.audit.heads import TABLES, End, Head
from orchestrator.audit.kept import KeptHeads
from orchestrator.audit.proof import Proof
from orchestrator.audit.store import AuditStore, Break
from orchestrator.errors import AuditError


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A message that was not refused although nobody is known to have said it."""

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
    kept: KeptHeads,
    signed_here: bool,
    undecided: Callable[[Iterable[Suspect]], set[str]],
    unaudited: int = 0,
) -> Iterator[Break]:
    """Name each place where the trail is not what was written.

    Args:
        noted: the head in Redis.
        kept: the heads in the data folder.
        signed_here: whether the operator's key is in this data folder, so that an absent head is no accident.
        undecided: which of the suspects' digests a router has yet to judge.
        unaudited: dead letters that were dropped before the writer had read them: so many may have been refused.
    """
    with store.snapshot():
        amendments = []
        for amendment in store.amendments():
            if fault := amendment.fault(proof.keys, store.id):
                what = (
                    f"the {amendment.kind} of {amendment.table} row {amendment.seq} does not count: {fault}"
                )
                yield Break(table="amendments", seq=amendment.seq, what=what)
            else:
                amendments.append(amendment)
        yield from store.broken_chain(Amended.by(amendments))
        yield from rolled_back(store, proof, kept)
        yield from _heads(store, proof, noted=noted, signed_here=signed_here)
        suspects = list(_suspects(store, proof))
    if suspects:
        waiting = undecided(suspects)
        # What was refused in the meantime has its dead letter by now.
        still = {suspect.seq for suspect in _suspects(store, proof)}
        left = [s for s in suspects if s.sha256 not in waiting and s.seq in still]
        for suspect in left if len(left) > unaudited else ():
            what = f"nobody is known to have said it ({suspect.rule}), and no router refused it"
            yield Break(table="messages", seq=suspect.seq, what=what)


def rolled_back(store: AuditStore, proof: Proof, kept: KeptHeads) -> Iterator[Break]:
    """Where the database lacks what it had by the head in the data folder: it was put back to an older state."""
    try:
        head = kept.read(store.id)
    except AuditError as error:
        yield Break(table="heads", seq=0, what=f"the head beside the keys does not count: {error}")
        return
    if head is None:
        return
    file = kept.file(store.id)
    if fault := head.fault(proof.keys):
        yield Break(table="heads", seq=0, what=f"the head in {file} does not count: {fault}")
        return
    for broken in _against(store, proof, head):
        what = f"{broken.what}, by the head in {file}; if you restored a backup, remove that file"
        yield replace(broken, what=what)


def _heads(store: AuditStore, proof: Proof, *, noted: Head | None, signed_here: bool) -> Iterator[Break]:
    ends, stored = store.ends(), store.stored_head()
    if noted is not None and noted.signature:
        fault = noted.fault(proof.keys)
        if fault or noted.database != store.id:
            what = f"the head in Redis does not count: {fault or 'it is of another database'}"
            yield Break(table="heads", seq=0, what=what)
        else:
            yield from _against(store, proof, noted)
    if stored is None:
        if noted is not None and noted.signature:
            yield Break(table="heads", seq=0, what="the signed head was removed from the database")
        elif signed_here and any(ends.end(table).seq for table in TABLES):
            what = "the operator has not signed where it ends; `orchestra audit writer` does, after an upgrade too"
            yield Break(table="heads", seq=0, what=what)
        return
    fault = stored.fault(proof.keys)
    if fault or stored.database != store.id:
        what = f"the signed head does not count: {fault or 'it is of another database'}"
        yield Break(table="heads", seq=0, what=what)
        return
    yield from _against(store, proof, stored)
    for table in TABLES:
        if ends.end(table).seq > stored.end(table).seq:
            first = stored.end(table).seq + 1
            what = f"the rows from {first} to {ends.end(table).seq} are under no signed head"
            yield Break(table=table, seq=first, what=what)


def _against(store: AuditStore, proof: Proof, head: Head) -> Iterator[Break]:
    """Where the database lacks what a head says was written, and what the operator has not removed."""
    begins = Amended.by(a for a in store.amendments() if not a.fault(proof.keys, store.id)).begins
    for table in TABLES:
        end = head.end(table)
        begin = begins.get(table, End())
        if end.seq < begin.seq or not end.seq:
            continue
        chain = begin.chain if end.seq == begin.seq else store.chain_at(table, end.seq)
        if chain is None:
            yield Break(
                table=table,
                seq=end.seq,
                what="the end was cut off, or an older state put back: this row was written",
            )
        elif chain != end.chain:
            yield Break(table=table, seq=end.seq, what="it is not the row that was written")


def _suspects(store: AuditStore, proof: Proof) -> Iterator[Suspect]:
    for row in store.unrefused():
        rule = proof.fault(row.xml, row.published_ms)
        if rule:
            yield Suspect(seq=row.seq, place=(row.stream, row.entry_id), sha256=row.sha256, rule=rule)

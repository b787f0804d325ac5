"""Authenticity of the items, answers, tasks, states and steps in the ledger: written by agents that may write them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from orchestrator.agents.registry import OPERATOR
from orchestrator.doctor.findings import Problem, Severity
from orchestrator.errors import PayloadError
from orchestrator.ledger import CLOSED, Item, ItemState, Ledger, RunState, SessionState
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.messages.authenticity import Authenticity

#: Texts that are read at once.
_BATCH: Final = 200
_SAID: Final = (ItemState.QUEUED, ItemState.CLAIMED, ItemState.DELIVERED)


def not_genuine(snapshot: Snapshot, ledger: Ledger, authenticity: Authenticity) -> Iterator[Problem]:
    """Yield the items and the answer of a session that are not genuine, as far as the operator's key is here.

    What a run has refused is named in any case.
    """
    session = snapshot.session
    for item in snapshot.items:
        if item.extra.get("rejected"):
            yield _finding(session.id, item.id, f"{item.id} was not delivered: {item.reason}")
    if session.state not in (*CLOSED, SessionState.DAMAGED) and not snapshot.damage:
        yield from _kept(snapshot, ledger, authenticity)
    if not authenticity.reads_as_operator:
        return
    for item, text in _texts(snapshot, ledger):
        if fault := authenticity.item_fault(session.id, item, text, reader=OPERATOR):
            yield _finding(
                session.id, item.id, f"{item.id} is not what {item.agent or 'a user'} said: {fault}"
            )
    if session.state is SessionState.FINISHED and "result" in snapshot.texts:
        about, text, whole, attached, body = ledger.answer_as_kept(session.id)
        if about.state is SessionState.FINISHED and (
            fault := authenticity.answer_fault(about, text, whole, attached, body)
        ):
            yield _finding(session.id, session.id, f"its answer is not what {session.agent} gave: {fault}")


def _kept(snapshot: Snapshot, ledger: Ledger, authenticity: Authenticity) -> Iterator[Problem]:
    """Yield what of a session's task, and of its agent's own records, cannot be read or is not genuine.

    The latter needs the key of the operator.
    """
    session, run = snapshot.session, snapshot.run
    texts = ledger.own_texts(session)
    for fault in texts.damage:
        yield Problem(Severity.BREAK, "damaged", "state", f"{session.id}: {fault}", session=session.id)
    for what, said, proof in texts.own if authenticity.reads_as_operator else ():
        if fault := authenticity.fault(said, proof, reader=OPERATOR):
            yield _finding(session.id, what, f"its {what} cannot be authenticated: {fault}")
    if run is None or run.state not in (RunState.QUEUED, RunState.RUNNING):
        return
    records = ledger.journal.read(run.id)
    if len(records) != run.steps and (again := ledger.run(run.id)) is not None and again.steps == run.steps:
        yield _finding(
            session.id, run.id, f"{run.id} recorded {run.steps} steps, and there are {len(records)}"
        )
    for key, record in sorted(records.items()) if authenticity.reads_as_operator else ():
        said = record.statement(run.id, session.agent)
        if fault := authenticity.fault(said, record.header.proof, reader=OPERATOR):
            yield _finding(
                session.id, f"{run.id} {key}", f"step {key!r} of {run.id} is not what it recorded: {fault}"
            )


def altered_texts(snapshot: Snapshot, ledger: Ledger) -> Iterator[Problem]:
    """Large texts of a session, or that it was sent, which were altered or are not kept any more; reads all of them."""
    session = snapshot.session
    for subject, _, why in unreadable_texts(snapshot, ledger):
        what = (
            f"{session.id}: the large text of {subject} cannot be had: {why}; `orchestra doctor --full --fix` restores what "
            "the audit trail has of it, and a run that reads it otherwise fails at once"
        )
        yield Problem(Severity.BREAK, "text-altered", subject, what, session=session.id)


def unreadable_texts(snapshot: Snapshot, ledger: Ledger) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield whose text cannot be read, its reference, and why."""
    session = snapshot.session
    if session.state in (SessionState.DELETED, SessionState.DAMAGED) or snapshot.damage:
        return
    references: list[tuple[str, Mapping[str, Any]]]
    references = [(item.id, ref) for item in snapshot.items for ref in item.large_texts]
    references += [(what, ref) for what, ref in ledger.large_references(session.id).items()]
    for subject, ref in references:
        try:
            ledger.large_texts.read(ref)
        except PayloadError as error:
            yield subject, ref, error.args[0]


def _texts(snapshot: Snapshot, ledger: Ledger) -> Iterator[tuple[Item, str]]:
    said = [item for item in snapshot.items if item.state in _SAID and item.id in snapshot.texts]
    for start in range(0, len(said), _BATCH):
        items = said[start : start + _BATCH]
        texts = ledger.texts(snapshot.session.id, [item.id for item in items])
        yield from ((item, texts[item.id]) for item in items if item.id in texts)


def _finding(session: str, subject: str, what: str) -> Problem:
    # A key that was revoked has made nothing wrong that was right before: its texts count no more, and are looked at.
    severity = Severity.WARNING if "key-revoked" in what else Severity.BREAK
    return Problem(severity, "not-genuine", subject, f"{session}: {what}", session=session)

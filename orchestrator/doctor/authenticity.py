"""Whether what the ledger has of items and answers is what somebody said who may say it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orchestrator.agents.registry import OPERATOR
from orchestrator.doctor.findings import Problem, Severity
from orchestrator.ledger import Item, ItemState, Ledger, SessionState
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.messages.authenticity import Authenticity

#: Texts that are read at once.
_BATCH: Final = 200
_SAID: Final = (ItemState.QUEUED, ItemState.CLAIMED, ItemState.DELIVERED)


def not_genuine(snapshot: Snapshot, ledger: Ledger, authenticity: Authenticity) -> Iterator[Problem]:
    """What nobody vouches for among the items and the answer of a session, as far as the operator's key is here.

    What a run has refused is named in any case.
    """
    session = snapshot.session
    for item in snapshot.items:
        if item.extra.get("rejected"):
            yield _finding(session.id, item.id, f"{item.id} was not delivered: {item.reason}")
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

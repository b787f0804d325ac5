"""Sessions that should have moved on and have not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orchestrator.display.text import counted
from orchestrator.doctor import blockers
from orchestrator.doctor.findings import Problem, TermsReader, stuck
from orchestrator.doctor.policies import is_ready
from orchestrator.ids import child_of
from orchestrator.ledger import CLOSED, ItemState, SessionState
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.policy.kinds import QUESTIONS

#: Milliseconds without a change after which a session that a service should move is late.
_LATE_MS: Final = 60_000


def late(snapshot: Snapshot, terms: TermsReader, now_ms: int) -> Iterator[Problem]:
    """Yield a session without a run that a service, or its parent, should have moved for over a minute."""
    s = snapshot.session
    yield from _circle(snapshot, now_ms)
    if s.busy or now_ms - s.updated_ms <= _LATE_MS:
        return
    if s.state == SessionState.PENDING:
        if s.parked:  # a router holds its launch for other tasks, as long as they take
            return
        message = (
            "has not started for over a minute: its task-delegation was not routed; is a router running?"
        )
    elif snapshot.stop_pending:
        message = "is to be ended for over a minute: is a callback service running?"
    elif snapshot.queue and is_ready(snapshot) and not snapshot.window_until_ms:
        items = counted(len(snapshot.queue), "item")
        message = f"has {items} queued for over a minute and no run: is a callback service running?"
    elif s.parent and len(s.questions) > len(s.approvals):  # a person may take any time
        wait = blockers.of_session(snapshot, terms.within(snapshot))
        if wait is None:
            return
        message = f"waits for over a minute for {wait.waits_for}; {wait.mover}"
    elif s.state in {*CLOSED, SessionState.FINISHED} and "results" in snapshot.indexed:
        message = (
            "has ended, and its Celery result has not been stored for over a minute: is a reaper running?"
        )
    else:
        return
    yield stuck("late", s.id, f"{s.id} {message}", session=s.id)


def _circle(snapshot: Snapshot, now_ms: int) -> Iterator[Problem]:
    """Yield each child that a run waits for in a call, and that has waited over a minute for a reply from that run."""
    s, run = snapshot.session, snapshot.run
    called = {child_of(item) for item in run.awaits} if run is not None else set()
    for item in snapshot.items:
        asks = item.kind in QUESTIONS and item.state is ItemState.QUEUED and item.child in called
        if asks and now_ms - item.at_ms > _LATE_MS:
            message = (
                f"{s.id} waits for its child {item.child}, which waits for a reply from it: stop one of them"
            )
            yield stuck("wait-circle", item.id, message, session=item.child)

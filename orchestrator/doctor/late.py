"""Sessions that should have moved on and have not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orchestrator.display.text import counted
from orchestrator.doctor import blockers
from orchestrator.doctor.findings import Problem, TermsReader, stuck
from orchestrator.doctor.policies import is_ready
from orchestrator.ledger import CLOSED, SessionState
from orchestrator.ledger.snapshot import Snapshot

#: Milliseconds without a change after which a session that a service should move is late.
_LATE_MS: Final = 60_000


def late(snapshot: Snapshot, terms: TermsReader, now_ms: int) -> Iterator[Problem]:
    """Yield a session without a run that a service, or its parent, should have moved for over a minute."""
    s = snapshot.session
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

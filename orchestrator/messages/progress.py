"""Progress of a session, as the system itself reports it: the answer to a query of the type get-status."""

from __future__ import annotations

from typing import Literal

from orchestrator.envelope.bodies import StatusUpdate
from orchestrator.ledger import CLOSED, Session, SessionState


def status_of(session: Session) -> StatusUpdate:
    """Return the progress of a session, as the ledger has it."""
    status: Literal["in-progress", "blocked", "completed", "failed"] = "in-progress"
    if session.state is SessionState.FINISHED:
        status = "completed"
    elif session.state in CLOSED:
        status = "failed"
    elif session.questions or session.activity.startswith("blocked"):
        status = "blocked"
    return StatusUpdate(
        task_id=session.reported_as,
        status=status,
        progress_percentage=session.progress if 0 <= session.progress <= 100 else None,
        current_activity=session.reason or session.activity or session.state.value,
    )

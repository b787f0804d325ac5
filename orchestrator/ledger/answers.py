"""What the caller of a session gets once it has ended. Beside Celery, which reading commands need not load."""

from __future__ import annotations

from orchestrator.errors import SessionDeleted, SessionFailed, SessionStopped
from orchestrator.ledger.model import SessionState
from orchestrator.ledger.reader import LedgerReader

_FAILURES: dict[SessionState, type[SessionFailed]] = {
    SessionState.FAILED: SessionFailed,
    SessionState.STOPPED: SessionStopped,
    SessionState.DELETED: SessionDeleted,
}


def final_answer(ledger: LedgerReader, root: str) -> str | SessionFailed | None:
    """The answer of a session that has ended, or the exception for its caller; None: it has not ended.

    Raises:
        UnknownSession: there is no such session.
    """
    state, text = ledger.result(root)
    if state in _FAILURES:
        return _FAILURES[state](root, text or "no reason was given")
    if state is SessionState.FINISHED and text is None:
        return SessionFailed(root, "it has finished, and its answer is gone from the ledger")
    return text if state is SessionState.FINISHED else None

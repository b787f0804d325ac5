"""A root that has ended gives its caller the final answer: once, whoever gets to it first."""

from __future__ import annotations

from orchestrator.crashpoints import failpoint
from orchestrator.dispatch.results import RootResults
from orchestrator.errors import SessionDeleted, SessionFailed, SessionStopped, UnknownSession
from orchestrator.ledger import Ledger, SessionState

_FAILURES: dict[SessionState, type[SessionFailed]] = {
    SessionState.FAILED: SessionFailed,
    SessionState.STOPPED: SessionStopped,
    SessionState.DELETED: SessionDeleted,
}


def final_answer(ledger: Ledger, root: str) -> str | SessionFailed | None:
    """The answer of a session that has ended, or the exception for its caller; None: it is not over.

    Raises:
        UnknownSession: there is no such session.
    """
    state, text = ledger.result(root)
    if state in _FAILURES:
        return _FAILURES[state](root, text or "no reason was given")
    if state is SessionState.FINISHED and text is None:
        return SessionFailed(root, "it has finished, and its answer is gone from the ledger")
    return text if state is SessionState.FINISHED else None


def publish_result(ledger: Ledger, results: RootResults, root: str) -> None:
    """Store what a root's caller waits for, then strike it off the list of what is owed; harmless to repeat."""
    try:
        task = ledger.session(root).task
        answer = final_answer(ledger, root)
    except UnknownSession:
        ledger.sweep.mark_result_published(root)
        return
    if answer is None:
        return  # a user has resumed it meanwhile: its next end owes the result again
    if task:
        results.store_result(task, answer)
    failpoint("settle.stored")
    ledger.sweep.mark_result_published(root)

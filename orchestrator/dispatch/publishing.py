"""A root that has ended gives its caller the final answer: once, whoever gets to it first."""

from __future__ import annotations

from orchestrator.crashpoints import failpoint
from orchestrator.dispatch.results import RootResults
from orchestrator.errors import SessionFailed, UnknownSession
from orchestrator.ledger import Ledger
from orchestrator.ledger.answers import final_answer
from orchestrator.ledger.sealing import as_kept


def _as_kept(answer: str | SessionFailed | None) -> str | SessionFailed | None:
    """An answer as the ledger holds it: the result backend is to hold no clear text either."""
    if isinstance(answer, SessionFailed):
        return type(answer)(answer.args[0], as_kept(answer.args[1]))
    return None if answer is None else as_kept(answer)


def publish_result(ledger: Ledger, results: RootResults, root: str) -> None:
    """Store what a root's caller waits for, then strike it off the list of what is owed; harmless to repeat."""
    try:
        task = ledger.session(root).task
        answer = _as_kept(final_answer(ledger, root))
    except UnknownSession:
        ledger.sweep.mark_result_published(root)
        return
    if answer is None:
        return  # a user has resumed it meanwhile: its next end owes the result again
    if task:
        results.store_result(task, answer)
    failpoint("settle.stored")
    ledger.sweep.mark_result_published(root)

"""The Celery results of root sessions: written once, by the stack, and read by any ``AsyncResult.get()``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import redis
from celery import Celery, states

from orchestrator import machine
from orchestrator.crashpoints import failpoint
from orchestrator.errors import SessionFailed, UnknownSession
from orchestrator.ledger import Ledger
from orchestrator.ledger.large_text import as_kept
from orchestrator.redisdb.scripts import Scripts

#: The state of a root whose first run has ended and whose answer is still to come.
WAITING: Final = "WAITING"


class RootResults:
    """Stores results of roots in the ledger's Redis, in Celery's own form."""

    def __init__(self, app: Celery, client: redis.Redis) -> None:
        self._app = app
        self._scripts = Scripts(client)

    def store_result(self, task_id: str, result: str | BaseException) -> bool:
        """Store the final answer, or the exception that ``get()`` raises; False: a terminal result is there."""
        state = states.FAILURE if isinstance(result, BaseException) else states.SUCCESS
        return self._store(task_id, result, state)

    def store_waiting(self, task_id: str) -> bool:
        """Show that the answer is still to come; False: a terminal result is there, and stays."""
        return self._store(task_id, None, WAITING)

    def _store(self, task_id: str, result: object, state: str) -> bool:
        backend = self._app.backend
        if isinstance(result, BaseException):
            result = backend.prepare_exception(result, serializer="json")
        meta = {
            "status": state,
            "result": result,
            "traceback": None,
            "children": [],
            "date_done": datetime.fromtimestamp(machine.time(), UTC).isoformat()
            if state in states.READY_STATES
            else None,
            "task_id": task_id,
        }
        key = backend.get_key_for_task(task_id)
        answer = self._scripts.run(
            "store_result",
            [key.decode() if isinstance(key, bytes) else key],
            [backend.encode(meta), int(self._app.conf.result_expires)],
        )
        return bool(answer)


def publish_result(ledger: Ledger, results: RootResults, root: str) -> None:
    """Publish the result for which a root's caller waits, then mark it as published; harmless to repeat."""
    try:
        task = ledger.session(root).task
        answer = ledger.final_answer(root)
    except UnknownSession:
        ledger.sweep.mark_result_published(root)
        return
    if answer is None:
        return  # a user has resumed it meanwhile: its next end publishes the result
    # As the ledger holds it: the result backend is to hold no clear text of what is encrypted either.
    if isinstance(answer, SessionFailed):
        answer = type(answer)(answer.args[0], as_kept(answer.args[1]))
    else:
        answer = as_kept(answer)
    if task:
        results.store_result(task, answer)
    failpoint("settle.stored")
    ledger.sweep.mark_result_published(root)

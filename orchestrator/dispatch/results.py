"""The Celery results of root sessions: written by us, once, and read by anybody's ``AsyncResult.get()``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

import redis
from celery import Celery, states

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
            "date_done": datetime.now(UTC).isoformat() if state in states.READY_STATES else None,
            "task_id": task_id,
        }
        answer = self._scripts.run(
            "store_result",
            [_text(backend.get_key_for_task(task_id))],
            [backend.encode(meta), int(self._app.conf.result_expires)],
        )
        return bool(answer)


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key

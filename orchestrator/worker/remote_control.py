"""Commands of Celery's remote control, if the settings enable them.

A run is no Celery message that a worker could drop, and its process may serve other runs. So to revoke a task is to
stop the session or run that bears its id, as `orchestra stop` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import redis
from celery.worker import control

from orchestrator.bootstrap import Container
from orchestrator.dispatch.control import refusal
from orchestrator.errors import OrchestraError
from orchestrator.ids import root_session_id
from orchestrator.ledger import Session, SessionState
from orchestrator.log import get_logger
from orchestrator.worker.execution.task_events import task_id_of

#: Said of a task that no session has.
UNKNOWN: Final = "no session has it yet; it is dropped when it comes"

_log = get_logger()


def register_commands(parts: Callable[[], Container]) -> None:
    """Put our commands in the place of Celery's."""
    celerys = {name: control.Panel.data[name] for name in ("revoke", "rate_limit", "time_limit")}

    @control.control_command(name="revoke", variadic="task_id", signature="[id1 [id2 [... [idN]]]]")
    def revoke(state: Any, task_id: Any, terminate: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002  (Celery's signature)
        """Stop the sessions of these task ids; one whose submission is still in the queue never begins."""
        ids = [task_id] if isinstance(task_id, str) else list(task_id or [])
        try:
            outcomes = {one: stop_task(parts(), one, terminate=terminate) for one in ids}
        except (OrchestraError, redis.RedisError) as error:
            return {"error": f"not revoked: {error}"}
        # A submission that waits in a queue is dropped by the worker that would take it. It is not terminated: it takes moments.
        unknown = [one for one, what in outcomes.items() if what == UNKNOWN]
        if unknown:
            celerys["revoke"](state, unknown, **{**kwargs, "terminate": False})
        return {"ok": "; ".join(f"{one}: {what}" for one, what in outcomes.items())}

    @control.control_command(
        name="terminate", variadic="task_id", signature="<signal> [id1 [id2 [... [idN]]]]"
    )
    def terminate(state: Any, signal: Any, task_id: Any, **kwargs: Any) -> Any:  # noqa: ARG001  (no process is sent any)
        """Stop the sessions of these task ids, also if a run of theirs is at work."""
        return revoke(state, task_id, terminate=True, **kwargs)

    @control.control_command(name="rate_limit", signature="<task_name> <rate_limit (e.g., 5/s | 5/m | 5/h)>")
    def rate_limit(state: Any, task_name: str, rate_limit: Any, **kwargs: Any) -> Any:
        """Refuse to limit the rate of a task; agents have limits."""
        refused = refusal(task_name, what="rate")
        return (
            {"error": refused} if refused else celerys["rate_limit"](state, task_name, rate_limit, **kwargs)
        )

    @control.control_command(name="time_limit", signature="<task_name> <soft_secs> [hard_secs]")
    def time_limit(state: Any, task_name: str | None = None, **kwargs: Any) -> Any:
        """Limit the time of submissions, as Celery does."""
        refused = refusal(task_name or "", what="time")
        return {"error": refused} if refused else celerys["time_limit"](state, task_name=task_name, **kwargs)


def stop_task(parts: Container, task_id: str, *, terminate: bool) -> str:
    """End the session of a task id, and say what became of it. Without ``terminate`` a session that has begun goes on.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    session = _session_of(parts, task_id)
    if session is None:
        return UNKNOWN
    if session.state not in (SessionState.SCHEDULED, SessionState.PENDING) and not terminate:
        return f"{session.id} has begun, and is stopped only with terminate=True"
    verdict = parts.ledger.stop(session.id, "revoked over Celery's remote control")
    if verdict.outcome == "ended" and not session.parent and session.task:
        parts.settle(session.id)
    _log.warning("task-revoked", task=task_id, session=session.id, outcome=verdict.outcome)
    return f"{session.id} {verdict.outcome}"


def _session_of(parts: Container, task_id: str) -> Session | None:
    """The root that was submitted under a task id, or the session of a run at work that is shown under it."""
    shards = parts.settings.shards
    known = parts.ledger.find([root_session_id(task_id, shards)])
    if not known:
        leases = [lease for shard in range(shards) for lease in parts.ledger.sweep.leases(shard)]
        known = parts.ledger.find([lease.session for lease in leases if task_id_of(lease.run) == task_id])
    return known[0] if known else None

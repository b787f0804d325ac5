"""Celery tasks: a submission by hand, the notification on which a slot takes runs, and the commands of remote control."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import redis
from celery import Celery, Task
from celery.exceptions import Ignore, Reject
from celery.worker import control

from orchestrator import machine
from orchestrator.bootstrap import Container
from orchestrator.client.submission import Submission
from orchestrator.dispatch.dispatcher import RESUME_TASK, START_TASK, WORK_TASK, refusal
from orchestrator.errors import InputError, KeyringError, OrchestraError, ServerUnavailable, SubmissionRefused
from orchestrator.ids import root_session_id
from orchestrator.ledger import Session, SessionState
from orchestrator.log import get_logger
from orchestrator.operations.table import SUBMIT
from orchestrator.redisdb.client import retry_outages, was_refused
from orchestrator.worker.container import RuntimeOfProcess
from orchestrator.worker.execution.ending import SoundRequest, release_runs_of, request_class
from orchestrator.worker.execution.shutdown import TakeNoMore
from orchestrator.worker.execution.slot import SlotLoop
from orchestrator.worker.execution.task_events import task_id_of

_log = get_logger()

#: The options of tasks that anybody may send.
_BY_MESSAGE: Final[Mapping[str, Any]] = {
    "Request": SoundRequest,
    "bind": True,
    "ignore_result": True,
    "store_errors_even_if_ignored": True,
}
#: Seconds after which a submission that this host cannot sign is given back to its queue.
_GIVEN_BACK_S: Final = 1.0
#: What a message does not say: whoever may write to the broker must not lift the budget of a tree.
_NOT_BY_MESSAGE: Final = frozenset({"budget", "at", "retry_for_s"})
#: A resume runs what the ledger has queued; words for a session come into the ledger first.
_NOT_BY_HAND = (
    f"{RESUME_TASK} is not sent by hand: it is the name under which another run of a session is shown; to give a "
    "session another prompt use Client.resume or `orchestra resume SESSION PROMPT`"
)


def register_tasks(app: Celery, runtime: RuntimeOfProcess) -> None:
    """Make the tasks known to the app of a worker."""

    # An error before anything is submitted must reach the caller that waits, so any arguments are taken, and checked.
    @app.task(name=START_TASK, **_BY_MESSAGE)
    def start_session(
        celery_task: Task,
        *positional: object,
        agent: str = "",
        prompt: str | None = None,
        token: str | None = None,
        key: str | None = None,
        **options: object,
    ) -> str:
        """Submit a root session; its final answer is the result of this very task.

        With a ``key`` the session is that of the key, and its answer is the result of the first task that named it.
        """
        others = [name for name in options if name not in SUBMIT.marks or name in _NOT_BY_MESSAGE]
        if positional or others:
            _refuse(runtime, celery_task, InputError(_wrong_arguments(positional, others)))
            raise Ignore
        _submit(runtime, celery_task, agent=agent, prompt=prompt, token=token, key=key, options=options)
        # The result is stored when the root has ended, which is not now.
        raise Ignore

    @app.task(name=RESUME_TASK, **_BY_MESSAGE)
    def resume_session(task: Task, *_positional: object, **_named: object) -> str:
        """Refuse with a reason, whatever it is given: services resume sessions."""
        _refuse(runtime, task, InputError(_NOT_BY_HAND))
        raise Ignore

    app.steps["worker"].add(TakeNoMore)

    # Acknowledged as soon as a slot has it: it may run for hours, and what it does is the ledger's to repeat.
    # Each run that it takes is shown to Flower as a task of its own; the wake-up is not.
    @app.task(
        name=WORK_TASK,
        bind=True,
        ignore_result=True,
        acks_late=False,
        send_events=False,
        Request=request_class(runtime.get),
    )
    def work(task: Task, *, agent: str = "") -> str:
        """Take ready runs from the ledger and execute them, until there is none."""
        process = runtime.get()
        try:
            if agent and process.stopping():
                # It reached a slot that takes nothing any more, and is for whoever listens.
                process.wake_each([agent])
            verdicts = SlotLoop(process, worker=str(task.request.hostname or "unknown")).run()
        except ServerUnavailable as error:
            # The runs stay ready; the sweep wakes workers when Redis is back.
            _log.error("ledger-away", error=str(error))
            return "outage"
        except SystemExit:
            # The process is told to end. It is not the agent that failed, and nobody needs to wait for the lease.
            release_runs_of(os.getpid(), process)
            raise
        return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()) or "nothing to do"


def _wrong_arguments(positional: tuple[object, ...], others: Sequence[str]) -> str:
    what = f"no argument {others[0]!r}" if others else f"no positional arguments, and got {len(positional)}"
    return (
        f"{START_TASK} takes {what}; send agent and prompt by name: "
        f'send_task("{START_TASK}", kwargs={{"agent": …, "prompt": …}})'
    )


def _refuse(runtime: RuntimeOfProcess, task: Task, error: OrchestraError) -> None:
    """Tell the caller that waits for this very task why nothing comes of it."""
    _log.warning("submission-refused", task=task.request.id, error=str(error))
    results = runtime.get().results
    retry_outages(lambda: results.store_result(str(task.request.id), error), what="refuse")


def _submit(
    runtime: RuntimeOfProcess,
    task: Task,
    *,
    agent: object,
    prompt: object,
    token: object,
    key: object,
    options: Mapping[str, object],
) -> None:
    """Write a root into the ledger under the key, or the id of this very task, so that a redelivery is the same session."""
    task_id = str(task.request.id)
    submission = Submission(runtime.get().parts)
    try:
        if not isinstance(agent, str) or not isinstance(prompt, str | None):
            raise InputError(f"{START_TASK} takes agent and prompt as text")
        if key is not None and (not isinstance(key, str) or not key):
            raise InputError(f"{START_TASK} takes a key as text")
        if key is not None and runtime.settings.submissions == "token":
            # A token is good for the session of one task id; with a key it would be for any number of them.
            raise InputError(
                'a key is not taken where submissions = "token"; submit with Client.submit(key=…)'
            )
        request = SUBMIT.read({"agent": agent, "prompt": prompt, "key": key or task_id, **options})

        def begin() -> None:
            if runtime.settings.submissions == "token":
                submission.check_token(token, request, task_id=task_id)
            submission.begin(request, result_of=task_id)

        retry_outages(begin, what="submit")
    except ServerUnavailable as error:
        if not was_refused(error):
            # Nobody but the broker has it. It was waited for long enough to give the message back at once.
            raise Reject(str(error), requeue=True) from error
        _refuse(runtime, task, error)
    except SubmissionRefused as error:
        # Under the id of a session that there is: its result is for that session to write.
        if retry_outages(lambda: submission.is_known(task_id), what="submit"):
            _log.warning("submission-refused", task=task_id, error=str(error))
        else:
            _refuse(runtime, task, error)
    except OrchestraError as error:
        if isinstance(error, KeyringError) and not runtime.can_submit():
            # It came by the queue of an agent, and is for a worker of a host that can sign for the operator.
            machine.sleep(_GIVEN_BACK_S)
            raise Reject(str(error), requeue=True) from error
        _refuse(runtime, task, error)


#: Said of a task that no session has.
UNKNOWN: Final = "no session has it yet; it is dropped when it comes"


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

"""Celery tasks: a submission by hand, and the notification on which a slot takes runs from the ledger."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from orchestrator import machine
from orchestrator.client.submission import Submission
from orchestrator.dispatch import RESUME_TASK, START_TASK, WORK_TASK
from orchestrator.errors import (
    InputError,
    KeyringError,
    OrchestraError,
    ServerUnavailable,
    SubmissionRefused,
)
from orchestrator.log import get_logger
from orchestrator.operations.table import SUBMIT
from orchestrator.redisdb.retry import retry_outages, was_refused
from orchestrator.worker.container import RuntimeOfProcess
from orchestrator.worker.execution.deaths import SoundRequest, release_runs_of, request_class
from orchestrator.worker.execution.shutdown import TakeNoMore
from orchestrator.worker.execution.slot import SlotLoop

_log = get_logger()

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

    # An error before anything is submitted must reach the caller that waits, so any arguments are taken, and judged.
    @app.task(
        name=START_TASK,
        Request=SoundRequest,
        bind=True,
        ignore_result=True,
        store_errors_even_if_ignored=True,
    )
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

    @app.task(
        name=RESUME_TASK,
        Request=SoundRequest,
        bind=True,
        ignore_result=True,
        store_errors_even_if_ignored=True,
    )
    def resume_session(
        task: Task,
        *_positional: object,
        agent: str = "",  # noqa: ARG001  (what it takes is taken to be refused with a reason)
        session: str | None = None,  # noqa: ARG001
        run: str | None = None,  # noqa: ARG001
        prompt: str | None = None,  # noqa: ARG001
        **_others: object,
    ) -> str:
        """Refuse with a reason: services resume sessions."""
        _refuse(runtime, task, InputError(_NOT_BY_HAND))
        raise Ignore

    app.steps["worker"].add(TakeNoMore)

    # Acknowledged as soon as a slot has it: it may run for hours, and what it does is the ledger's to repeat.
    # Each run that it takes is shown to Flower as a task of its own; the ring is not.
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
                process.ring_each([agent])
            verdicts = SlotLoop(process, worker=str(task.request.hostname or "unknown")).run()
        except ServerUnavailable as error:
            # The runs stay ready; the sweep rings when Redis is back.
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

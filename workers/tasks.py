"""The two Celery tasks. Their messages carry ids, so that Flower shows them and repeating one is harmless."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery, Task
from celery.exceptions import Ignore, Reject

from orchestrator.dispatch import RESUME_TASK, START_TASK
from orchestrator.errors import InputError, OrchestraError, RunFailed, ServerUnavailable, SubmissionRefused
from orchestrator.ledger import Dispatch
from orchestrator.log import get_logger
from orchestrator.submission import Submission
from workers.bundle import Bundle, Ticket
from workers.deaths import request_class
from workers.outcome import celery_outcome
from workers.patience import persist, was_refused
from workers.runner import execute_runs
from workers.runtime import RuntimeOfProcess

_log = get_logger()

#: A resume runs what the ledger has queued; words for a session come into the ledger first.
_NOT_BY_HAND = (
    f"{RESUME_TASK} runs what the ledger has queued, and is sent by the services; to give a session another "
    "prompt use Client.resume or `orchestra resume SESSION PROMPT`"
)


def register_tasks(app: Celery, runtime: RuntimeOfProcess) -> None:
    """Make the tasks known to the app of a worker."""
    # Who sends one by hand waits for its result, so that an error before anything is submitted (arguments of other
    # names, say) is stored. The messages of runs say themselves that nothing is to be stored of them.
    request = request_class(runtime.get)

    @app.task(name=START_TASK, bind=True, throws=(RunFailed,), Request=request)
    def start_session(
        task: Task,
        *,
        agent: str = "",
        session: str | None = None,
        run: str | None = None,
        prompt: str | None = None,
        title: str = "",
        token: str | None = None,
        more: Sequence[Sequence[str]] = (),
    ) -> str:
        """The first run of a session; or, with a prompt instead of a run, a submission."""
        if run is None or session is None:
            _submit(runtime, task, agent=agent, prompt=prompt, title=title, token=token)
            # The result is stored when the root is over, which is not now.
            raise Ignore
        return _execute(runtime, task, "start", _tickets(agent, session, run, more))

    @app.task(name=RESUME_TASK, bind=True, throws=(RunFailed,), Request=request)
    def resume_session(
        task: Task,
        *,
        agent: str = "",
        session: str | None = None,
        run: str | None = None,
        prompt: str | None = None,  # noqa: ARG001  (taken to be refused with a reason)
        more: Sequence[Sequence[str]] = (),
    ) -> str:
        """Another run of a session, with callbacks or a user's words."""
        if run is None or session is None:
            _refuse(runtime, task, InputError(_NOT_BY_HAND))
            raise Ignore
        return _execute(runtime, task, "callbacks", _tickets(agent, session, run, more))


def _tickets(agent: str, session: str, run: str, more: Sequence[Sequence[str]]) -> list[Ticket]:
    return [Ticket(agent, session, run), *(Ticket(*one) for one in more)]


def _execute(runtime: RuntimeOfProcess, task: Task, cause: str, tickets: Sequence[Ticket]) -> str:
    process = runtime.get()

    def give_back(rest: Sequence[Ticket]) -> None:
        for ticket in rest:
            dispatch = Dispatch(run=ticket.run, session=ticket.session, agent=ticket.agent, cause=cause)
            queue = process.parts.queue_of(ticket.agent)
            if queue is not None:  # else the sweep sends it once its agent is registered again
                runtime.dispatcher.send(dispatch, queue)

    with Bundle(tickets, give_back) as bundle:
        try:
            ends = execute_runs(process, bundle.next, worker=_worker(task))
        except ServerUnavailable as error:
            _log.error("run-not-begun", run=tickets[0].run, runs=len(tickets), error=str(error))
            # The whole message comes again; what of it was done is refused then. Each time the server is waited for.
            raise Reject(str(error), requeue=True) from error
    return celery_outcome(ends, redelivered=bool((task.request.delivery_info or {}).get("redelivered")))


def _refuse(runtime: RuntimeOfProcess, task: Task, error: OrchestraError) -> None:
    """Tell whoever waits for this very task why nothing comes of it."""
    _log.warning("submission-refused", task=task.request.id, error=str(error))
    results = runtime.get().results
    persist(lambda: results.store_result(str(task.request.id), error), what="refuse")


def _submit(
    runtime: RuntimeOfProcess, task: Task, *, agent: object, prompt: object, title: object, token: object
) -> None:
    """Write a root into the ledger under the id of this very task, so that a redelivery is the same session."""
    task_id = str(task.request.id)
    submission = Submission(runtime.get().parts)
    try:
        if not isinstance(agent, str) or not isinstance(prompt, str | None) or not isinstance(title, str):
            raise InputError(f"{START_TASK} takes agent and prompt as text")
        words = prompt or ""

        def begin() -> None:
            if runtime.settings.submissions == "token":
                submission.check_token(token, agent=agent, prompt=words, title=title, task_id=task_id)
            submission.submit(agent, words, key=task_id, title=title, task=task_id)

        persist(begin, what="submit")
    except ServerUnavailable as error:
        if not was_refused(error):
            # Nobody but the broker has it. It was waited for long enough to give the message back at once.
            raise Reject(str(error), requeue=True) from error
        _refuse(runtime, task, error)
    except SubmissionRefused as error:
        # Under the id of a session that there is: its result is for that session to write.
        if persist(lambda: submission.is_known(task_id), what="submit"):
            _log.warning("submission-refused", task=task_id, error=str(error))
        else:
            _refuse(runtime, task, error)
    except OrchestraError as error:
        _refuse(runtime, task, error)


def _worker(task: Task) -> Any:
    return task.request.hostname or "unknown"

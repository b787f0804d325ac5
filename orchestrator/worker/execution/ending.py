"""The end of a run: its outcome for the ledger, the envelope that reports it, and runs that killed their process."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from billiard.exceptions import WorkerLostError
from celery.exceptions import InvalidTaskError, WorkerShutdown, WorkerTerminate
from celery.signals import task_received
from celery.worker import state
from celery.worker.request import Request

from orchestrator import errors, machine
from orchestrator.display.text import word
from orchestrator.envelope.bodies import ErrorReport, TaskCompletion
from orchestrator.envelope.model_values import Timestamp, with_values
from orchestrator.envelope.payload import MAX_PAYLOAD_BYTES
from orchestrator.envelope.prompt_text import pack_body
from orchestrator.errors import InputError, OrchestraError, PlanError, RunParked, TaskFailed
from orchestrator.ids import new_claim_id
from orchestrator.ledger import BY_FORCE, Lease, Outcome, Outgoing
from orchestrator.log import get_logger
from orchestrator.machine import SystemClock
from orchestrator.messages.factory import summary
from orchestrator.policy.plan import looks_like_plan
from orchestrator.policy.sealed_text import ENCRYPTED
from orchestrator.redisdb.client import retry_outages
from orchestrator.worker.container import Runtime
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.steps import Steps
from orchestrator.worker.execution.heartbeat import ClaimStatus
from orchestrator.worker.execution.printing import traceback_of

#: Errors with which another attempt would end as well.
_FINAL: Final = (
    errors.BudgetExceeded,
    errors.ConfigurationError,
    errors.DamagedRecord,
    errors.DefinitionChanged,
    errors.ModelFailed,
    errors.PayloadError,
)
#: Errors that say all there is to say: where they were raised helps nobody.
_SENTENCES: Final = (
    errors.BudgetExceeded,
    errors.ConfigurationError,
    errors.ModelFailed,
    errors.NoResponse,
    errors.Retry,
)

_log = get_logger()


def answer_with_plan(context: Context, answer_of: Callable[[], str], *, given: bool) -> str:
    """The answer of an agent whose answers are plans, after its plan was launched.

    A plan that is not valid is handed back to the agent once. In a resume an answer that does not begin as a JSON
    array is the agent's last word, and no plan; so it is where the agent waits for children or a reply first.

    Args:
        context: the run.
        answer_of: calls the agent.
        given: the operator gave the plan as the prompt, and the agent is not asked for one.

    Raises:
        PlanError: the second answer is not valid either, or the plan that was given.
    """
    answer = context.prompt if given else answer_of()
    while (
        given
        or looks_like_plan(answer)
        # An agent that waits for a child, or for a reply, has given no answer yet.
        or (context.cause == "start" and not context.has_launched and not context.waits)
    ):
        try:
            context.carry_out(answer)
        except PlanError as error:
            if given or context.correction:
                context.steps.reject_answer()
                raise
            context.correct(error.shown)
            answer = answer_of()
        else:
            break
    return answer


def answered(text: str, context: Context, effects: Effects) -> Outcome:
    """Return the outcome of a run whose agent has answered, with the agent's own report of the end of its task.

    Raises:
        StepMismatch: an earlier try asked for a step that this one did not ask for.
        InputError: the state is not JSON, or the answer is too large.
    """
    context.steps.end()
    state = context.new_state
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise InputError(f"ctx.state holds a value that is not JSON: {error}") from error
    if len(text) > MAX_PAYLOAD_BYTES // 4 and len(text.encode(errors="replace")) > MAX_PAYLOAD_BYTES:
        raise InputError(
            f"the answer of {len(text)} characters is larger than {MAX_PAYLOAD_BYTES} bytes; write it to a file"
        )
    outcome = Outcome(
        status="completed",
        text=text,
        state=state,
        waiting=context.new_waiting,
        steps_left_out=context.steps.left_out,
        memory=context.new_memory,
        once=context.answers_in_text,
        attachments=context.attachments,
    )
    if effects.completion is None:
        return outcome
    own = effects.completion = _filled(effects.completion, text, effects)
    partial = own.status == "partial-success"
    return replace(outcome, body=pack_body(own), told="partial-success" if partial else "completed")


def is_final(error: BaseException | None) -> bool:
    """Return True if another attempt would end in the same way."""
    # A worker beside this one may have the key that this one lacks.
    return isinstance(error, _FINAL) and not isinstance(error, errors.KeyringError)


def log_failure(error: BaseException, *, encrypted: bool) -> None:
    """Log what an agent raised; of an encrypted session no text."""
    if encrypted:
        _log.warning("agent-failed", error=type(error).__name__, text=ENCRYPTED)
    elif isinstance(error, _SENTENCES):
        _log.warning("agent-failed", error=str(error))
    else:
        _log.warning("agent-failed", exc_info=error)


def failed(error: BaseException, text: str, effects: Effects, steps: Steps) -> Outcome:
    """The outcome of a run whose agent has failed; ``text`` explains the error."""
    body: ErrorReport | TaskCompletion | None = None
    if isinstance(error, TaskFailed) and effects.failure is not None:
        body = effects.failure = with_values(effects.failure, message=text)
    elif isinstance(error, TaskFailed) and effects.completion is not None:
        body = _filled(effects.completion, text, effects) if effects.completion.status == "failed" else None
    return Outcome(
        status="failed",
        text=text,
        body=_packed(body),
        traceback=traceback_of(error),
        steps_failed=steps.failed_with(error),
    )


def parked(error: RunParked) -> Outcome:
    """The outcome of a run that waits for the provider of its model."""
    waits_ms = math.ceil(float(error.args[1]) * 1000)
    return Outcome(status="parked", text=str(error), parked_ms=waits_ms, provider=word(error.provider))


def stopped(claim_status: ClaimStatus) -> Outcome:
    """The outcome of a run that was asked to stop: past its time limit it has failed."""
    return Outcome(status="failed" if claim_status.timed_out else "stopped", text=claim_status.stop_reason)


def forced(claim_status: ClaimStatus, reason: str, grace_s: float) -> Outcome:
    """The outcome of a run whose agent did not stop within ``grace_s`` seconds."""
    text = f"{reason}, and its agent, which did not stop within {grace_s:g} s, was {BY_FORCE}"
    return replace(stopped(claim_status), text=text)


def report(outcome: Outcome, effects: Effects) -> Outgoing:
    """Write the envelope that reports the end of the session, if the run is its end.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    session, factory = effects.held.session, effects.message_factory
    parties = effects.parties(effects.delegator, session.parent)
    own = effects.completion if outcome.status == "completed" else effects.failure
    if own is not None and (outcome.status == "completed" or outcome.body):
        return factory.as_written(own, **parties)
    if outcome.status == "completed":
        return factory.completion(task_id=session.reported_as, result=outcome.text, **parties)
    details = {
        "session": session.id,
        "task": session.reported_as,
        "run": effects.held.claim.run,
        "status": outcome.status,
    }
    return factory.error(
        error=ErrorReport(
            message=outcome.text, error_type="timeout" if effects.claim_status.timed_out else "task-failed"
        ),
        details=json.dumps(details),
        **parties,
    )


def _filled(own: TaskCompletion, answer: str, effects: Effects) -> TaskCompletion:
    """Return an agent's own task-completion, with what it left out filled in."""
    return with_values(
        own,
        task_id=effects.held.session.reported_as,
        result=answer,
        summary=own.summary or summary(answer),
        completion_timestamp=own.completion_timestamp or Timestamp.from_ms(SystemClock().now_ms()),
    )


def _packed(body: ErrorReport | TaskCompletion | None) -> str:
    """The structured part of a failure; of a report that is too large only the text goes out."""
    try:
        return "" if body is None else pack_body(body)
    except InputError as error:
        _log.warning("report-too-large", error=str(error))
        return ""


#: What a signal that ends a pool process raises in it: so billiard tells the signal to the worker's main process.
_SIGNALLED: Final = tuple(number - 256 for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
#: How often the runs of a process are released at most: a heartbeat may come between the look at a lease and its release.
_ROUNDS: Final = 5
#: Levels of lists and objects that a message may have.
_MOST_DEPTH: Final = 100
_NESTS: Final = (list, dict, tuple)


def claim_of_this_process() -> str:
    """A new claim id that tells which process made it."""
    return f"{new_claim_id()}@{machine.own_mark()}"


def ends_process(error: BaseException) -> bool:
    """Return True if the error tells this process to end, and is no failure of the agent in which it was raised."""
    if isinstance(error, BaseExceptionGroup):  # of a task group that was at work
        return any(map(ends_process, error.exceptions))
    return isinstance(error, WorkerShutdown | WorkerTerminate) or (
        isinstance(error, SystemExit) and error.code in _SIGNALLED
    )


def release_runs_of(pid: int, runtime: Runtime, died: str = "") -> None:
    """Take the runs of a process from it, in the ledger: of a fork of this one that died, or of this one at its end.

    ``died`` says how it ended, and counts against each run. Without it their worker was lost. Each is released under the
    claim that the process has, so that nothing is taken from anybody else. Where that is not possible now, the leases
    run out.
    """
    parts = runtime.parts
    mark, shards, sweep = f"@{machine.mark_of(pid)}", range(parts.settings.shards), parts.ledger.sweep

    def held() -> list[Lease]:
        return [lease for n in shards for lease in sweep.leases(n) if lease.claim.endswith(mark)]

    try:
        for _ in range(_ROUNDS):
            leases = retry_outages(held, what="deaths", retry_for_s=parts.settings.lease_s)
            if "moved" not in [_release(lease, runtime, died) for lease in leases]:
                break
    except OrchestraError as error:
        _log.warning("dead-process-not-reported", pid=pid, died=died, error=str(error))


def _release(lease: Lease, runtime: Runtime, died: str) -> str:
    parts = runtime.parts

    def release() -> str:
        run, found = parts.ledger.run(lease.run), parts.ledger.find([lease.session])
        if run is None or not found:
            return "deleted"
        if died:
            from orchestrator.transcript.reading import write_account

            write_account(parts, lease, died)
        definition = runtime.catalogue.get(found[0].agent)
        wait_ms = definition.record.retry_ms(run.died + 1) if definition and died else 0
        # In the name of the agent, whose key is here.
        return parts.ledger.release(lease, died=died, wait_ms=wait_ms, by=found[0].agent)

    outcome = retry_outages(release, what="release", retry_for_s=parts.settings.lease_s)
    if died:
        runtime.events.died(lease, died)
    event = "process-died" if died else "run-released"
    _log.error(event, run=lease.run, session=lease.session, died=died, outcome=outcome)
    return outcome


class SoundRequest(Request):
    """Celery's request for a message, refused if nested too deeply.

    A worker hands it to a process of its pool by pickle, which ends the worker where lists and objects are nested some
    900 levels deep. Celery drops an invalid message.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if _is_deep([self.request_dict, self.args, self.kwargs]):
            raise InvalidTaskError(f"it has more than {_MOST_DEPTH} levels of lists and objects")


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MOST_DEPTH):
        inner: list[Any] = []
        for one in level:
            inner += one.values() if isinstance(one, dict) else one
        level = [one for one in inner if isinstance(one, _NESTS)]
        if not level:
            return False
    return True


def request_class(runtime: Callable[[], Runtime]) -> type[Request]:
    """Return the class of Celery's requests for notifications of slots."""

    class RunRequest(SoundRequest):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            # Whoever reaches the broker may not end the runs that the slot takes for this message.
            self.time_limits = (None, None)

        def on_failure(
            self,
            exc_info: Any,
            send_failed_event: bool = True,  # noqa: FBT001, FBT002  (Celery's signature)
            return_ok: bool = False,  # noqa: FBT001, FBT002
        ) -> None:
            """Celery gives the message back when its process died; here its death is reported."""
            super().on_failure(exc_info, send_failed_event=send_failed_event, return_ok=return_ok)
            error = getattr(exc_info.exception, "exc", exc_info.exception)
            # A worker that is ended cold kills its processes itself.
            if not isinstance(error, WorkerLostError) or not self.worker_pid or state.should_terminate:
                return
            died = self.worker_pid, runtime(), _how(error)
            # Celery's event loop waits for nobody's Redis.
            machine.start_thread(lambda: release_runs_of(*died), "death")

    return RunRequest


def _how(error: WorkerLostError) -> str:
    """Return how the process ended, without the text that billiard puts around it."""
    return (
        str(error).removeprefix("Worker exited prematurely: ").partition(" Job:")[0].rstrip(" .") or "no word"
    )


#: Seconds of silence that are never too long: a loaded machine is slow, and not deaf.
LEAST_WAIT_S: Final = 10.0
#: Seconds without anything at work after which a worker that was to end for its silence is killed.
END_S: Final = 5.0


class Silence:
    """Tells when a consumer has been silent for too long, from one look to the next."""

    def __init__(self, *, silent_for_s: float) -> None:
        self._silent_for_s = silent_for_s
        self._since: float | None = None

    def lasts(self, *, now: float, free_slot: bool, moved_at: float, waiting: Callable[[], bool]) -> bool:
        """Return True if at each look for `silent_for_s` a slot was free, runs waited and the consumer did not move.

        ``waiting`` is asked only while a slot is free. A silence that was too long is counted from its start again.
        """
        if not free_slot or not waiting():
            self._since = None
            return False
        if self._since is None or moved_at > self._since:
            self._since = now
        if now - self._since < self._silent_for_s:
            return False
        self._since = None
        return True


class Watchdog:
    """Watches the consumer of this worker from a thread of its own, until the process ends."""

    def __init__(
        self,
        consumer: Any,
        ready: Callable[[], Sequence[str]],
        wake: Callable[[str], None],
        *,
        silent_for_s: float,
        end: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGTERM),
    ) -> None:
        """Watch a Celery consumer.

        Args:
            consumer: Celery's own, as the signal ``worker_ready`` names it.
            ready: the agents that this worker serves and that have ready runs.
            wake: tells the workers of such an agent.
            silent_for_s: seconds of silence after which the worker ends.
            end: ends the worker; by default as Celery does when it is asked to: what runs may finish.
        """
        self._consumer = consumer
        self._ready = ready
        self._wake = wake
        self._look_every_s = silent_for_s / 5
        self._silence = Silence(silent_for_s=silent_for_s)
        self._end = end
        self._moved_at = machine.monotonic()
        self._ended_it = False

    def start(self) -> None:
        """Begin to watch."""
        task_received.connect(self.note, weak=False)
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def note(self, **_: Any) -> None:
        """Take note that the consumer took a message."""
        self._moved_at = machine.monotonic()

    def _watch(self) -> None:
        looking = threading.Event()
        while not looking.wait(self._look_every_s):
            if state.should_stop is not None or state.should_terminate is not None:
                self._see_to_the_end(looking)
                return
            try:
                self.look()
            except Exception as error:  # noqa: BLE001  (the watch goes on, whatever Redis or the consumer goes through)
                _log.debug("watchdog-look-failed", error=repr(error))

    def _see_to_the_end(self, looking: threading.Event) -> None:
        """Kill a worker that is to end for its silence, whose shutdown waits for the broker although nothing is at work."""
        if not self._ended_it:
            return
        idle_s = 0
        while idle_s < END_S:
            looking.wait(1)
            idle_s = 0 if state.reserved_requests else idle_s + 1
        _log.error("consumer-silent", action="the worker is killed: its shutdown waits for the broker")
        os.kill(os.getpid(), signal.SIGKILL)

    def look(self) -> None:
        """See whether the consumer is silent, and end the worker if it is."""
        silent = self._silence.lasts(
            now=machine.monotonic(),
            free_slot=len(state.reserved_requests) < int(self._consumer.pool.num_processes),
            moved_at=self._moved_at,
            waiting=self._wait_for_work,
        )
        if silent:
            _log.error("consumer-silent", action="the worker ends when its runs have")
            self._ended_it = True
            self._end()

    def _wait_for_work(self) -> bool:
        agents = self._ready()
        for agent in agents:
            self._wake(agent)
        return bool(agents)

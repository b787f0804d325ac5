"""Execution of one run, from its claim to its commit."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

import redis
from billiard.process import current_process
from pydantic import ValidationError

from orchestrator import machine
from orchestrator.client.current import working_for
from orchestrator.crashpoints import failpoint
from orchestrator.dispatch.results import publish_result
from orchestrator.errors import (
    ClaimLost,
    DefinitionChanged,
    OrchestraError,
    Retry,
    RunParked,
    ServerUnavailable,
    SessionStopped,
    WorkerEnds,
)
from orchestrator.ids import shard_of
from orchestrator.ledger import ClaimedRun, Committed, EndedRun, Outcome, PollRequest, RunRef
from orchestrator.ledger.launches import seed_of
from orchestrator.ledger.transitions import RetryLater, Settled, TooLate
from orchestrator.log import get_logger, in_span, log_context
from orchestrator.redisdb.client import retry_outages, was_refused
from orchestrator.worker.container import Runtime
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.steps import Steps
from orchestrator.worker.context.verification import Verifier
from orchestrator.worker.context.view import RunParts
from orchestrator.worker.context.waits import Blocking
from orchestrator.worker.execution import ending
from orchestrator.worker.execution.ending import claim_of_this_process, ends_process, release_runs_of
from orchestrator.worker.execution.heartbeat import ClaimStatus, Heartbeat
from orchestrator.worker.execution.printing import RunEnd, Verdict, cause_of, keeping, names_in_log
from orchestrator.worker.execution.shutdown import only_in_this_process
from orchestrator.worker.execution.slot_sharing import Queued, SlotSharing, serves
from orchestrator.worker.executors import executor_of
from orchestrator.worker.gateway import Gateway

#: Seconds that the events of a process which is about to be killed may take.
LAST_EVENTS_S: Final = 2.0

_log = get_logger()


def execute_run(runtime: Runtime, *, agent: str, session: str, run: str, worker: str) -> Verdict:
    """Claim a certain run, run its agent, and commit the outcome.

    Nothing is done when another worker has it or it has ended.

    Raises:
        ServerUnavailable: the ledger is out of reach, and nothing was begun.
    """
    claim_id = claim_of_this_process()
    ledger = runtime.parts.ledger
    try:
        held = retry_outages(
            lambda: ledger.claim(
                run,
                claim_id,
                session_id=session,
                worker=worker,
                version=runtime.version_of(agent),
            ),
            what="claim",
        )
    except ServerUnavailable as error:
        if not was_refused(error):
            raise
        # It is about this run, and no other has a part in it. The sweep looks at it again, ever more rarely.
        _log.warning("run-not-claimed", agent=agent, session=session, run=run, error=str(error))
        return "damaged"
    if held is None:
        _log.info("run-refused", agent=agent, session=session, run=run)
        return "refused"
    failpoint("worker.claimed")
    end = complete_run(runtime, held)
    failpoint("worker.settled")
    return end.verdict


def complete_run(runtime: Runtime, held: ClaimedRun) -> RunEnd:
    """Run the agent of a claimed run, and commit the outcome.

    A run that its worker holds when it is to end, and has not begun, is given back. A run whose worker cannot reach the
    ledger any more is left as it is: its lease runs out, and it is tried again.
    """
    run = HeldRun(runtime, held)
    run.execute()
    return commit_runs(runtime, [run])[0]


def commit_runs(
    runtime: Runtime, runs: Sequence[HeldRun], polls: Sequence[PollRequest] = (), *, shard: int = 0
) -> list[RunEnd]:
    """Commit the outcomes of runs that were executed, in this order, and ask for the next runs of a shard with that.

    What is asked for is held under leases that nobody renews yet.
    """
    ended = [run.ended for run in runs if run.ended is not None]
    with ExitStack() as leases:
        for run in runs:
            leases.callback(run.let_go)
        done = iter(
            retry_outages(lambda: runtime.parts.ledger.commit_all(ended, polls, shard=shard), what="commit")
        )
        return [run.settle(next(done) if run.ended is not None else None) for run in runs]


class HeldRun:
    """A run that this process holds: executed first, then committed and settled."""

    def __init__(self, runtime: Runtime, held: ClaimedRun) -> None:
        definition = runtime.catalogue[held.session.agent]
        self._runtime = runtime
        self._ledger = runtime.parts.ledger
        self._message_factory = runtime.parts.message_factory
        self._definition = definition
        self._executor = executor_of(definition)
        self._held = held
        self._claim_status = ClaimStatus(held.claim)
        self._error: BaseException | None = None
        settings = runtime.parts.settings
        self._heartbeat = Heartbeat(
            self._ledger,
            self._claim_status,
            interval_s=settings.heartbeat_s,
            time_limit_s=definition.record.time_limit_s or settings.run_time_limit_s,
            grace_s=settings.stop_grace_s,
            end=self._end_by_force,
            beats=runtime.beats,
        )
        self._leased = ExitStack()
        #: The run for its commit, once it was executed; None: there is nothing to say of it.
        self.ended: EndedRun | None = None
        #: Whether the agent has returned, so that nothing of it needs to be ended by force.
        self._worked = False
        self._gateway: Gateway | None = None
        self._opening = threading.Lock()
        self._context: Context | None = None
        self._effects = Effects(
            held,
            ledger=self._ledger,
            message_factory=self._message_factory,
            claim_status=self._claim_status,
        )
        verifier = Verifier(self._effects, runtime.parts.authenticity)
        # In the agent's own thread, whose steps come in order.
        self._steps = Steps(self._effects, policy=definition.steps, pause=runtime.pause, verify=verifier.own)
        self._parts = RunParts(
            definition=definition,
            effects=self._effects,
            steps=self._steps,
            verifier=verifier,
            container=runtime.parts,
            make_blocking=self._make_blocking,
            environment=self._open_gateway,
        )

    def execute(self) -> None:
        """Run the agent; its lease is renewed from now on until the run is settled."""
        settings = self._runtime.parts.settings
        names = names_in_log(self._held, traces=settings.log_traces)
        run, log = self._held.run, _log.bind(**names)
        log.debug("run-claimed", cause=run.cause, attempt=run.attempt, items=len(self._held.items))
        self._runtime.events.begun(self._held)
        self._leased.enter_context(self._heartbeat)
        try:
            with (
                log_context(**names),
                keeping(
                    self._held,
                    self._ledger.printed,
                    limit=settings.printed_max_bytes,
                    ttl_s=settings.tree_ttl_s,
                ),
            ):
                outcome = self._in_time(self._let_agent_work())
            self._worked = True
            if outcome is not None:
                self._account()
                failpoint("worker.worked")
                self.ended = self._to_commit(outcome)
        except BaseException:
            self.let_go()
            raise

    @property
    def may_wait(self) -> bool:
        """True if the commit may come a little later: nothing has failed, and no caller waits for its result."""
        return self.may_be_followed and self.ended is not None and self.ended.outcome.status == "completed"

    @property
    def may_be_followed(self) -> bool:
        """True if the next run may be asked for with the commit: a root's result is stored after it, before anything else."""
        return self.ended is not None and bool(self._held.session.parent) and not self._runtime.stopping()

    def let_go(self) -> None:
        """Renew the lease no longer."""
        self._leased.close()

    def _let_agent_work(self) -> Outcome | None:
        """Run the agent and return its outcome; None if there is none to report, because the ledger was out of reach."""
        claim_status = self._claim_status
        try:
            if self._runtime.stopping():
                raise WorkerEnds(self._held.claim.run, 0)
            self._check_version()
            context = self._context = self._make_context()
            return ending.answered(self._answer(context), context, self._effects)
        except (ClaimLost, SessionStopped) as error:
            if claim_status.stop_reason:
                return ending.stopped(claim_status)
            return self._failed(error)
        except DefinitionChanged as error:
            self._error = error
            _log.warning("version-refused", began_with=error.args[1], version=error.args[2])
            return Outcome(status="failed", text=str(error))
        except RunParked as error:
            return ending.parked(error)
        # Whatever an agent raises is its failure, also a cancelled task or an interrupt of its own.
        except BaseException as error:
            if ends_process(error):
                raise
            if self._effects.outage is not None:
                _log.error("ledger-away", error=str(self._effects.outage))
                return None
            if claim_status.stop_reason:
                return ending.stopped(claim_status)
            ending.log_failure(error, encrypted=self._held.session.encrypted)
            return self._failed(error)

    def _in_time(self, outcome: Outcome | None) -> Outcome | None:
        """The outcome; that of a timeout where the agent, whatever it returned, did so after its time limit."""
        if outcome is None or not self._claim_status.is_too_late():
            return outcome
        return ending.stopped(self._claim_status)

    def _check_version(self) -> None:
        """Return if the session may go on with the definition that this worker has.

        Raises:
            DefinitionChanged: it refuses to go on with another one than it began with.
        """
        session, own = self._held.session, self._definition.record.version
        if session.on_deploy == "refuse" and session.version != own:
            raise DefinitionChanged(session.agent, session.version, own)

    def _open_gateway(self) -> dict[str, str]:
        """The environment of programs that take part in the run; the first call opens its socket."""
        assert self._context is not None
        with self._opening:
            if self._gateway is None:
                self._gateway = Gateway(self._context)
            return {**self._gateway.environment, "TRACEPARENT": self._context.traceparent}

    def _answer(self, context: Context) -> str:
        """Return the agent's answer; a plan is launched. No program has effects after that."""
        given = self._held.session.planned and context.cause == "start"
        answer_of = partial(self._executor.execute, self._definition, context)
        try:
            with only_in_this_process(), working_for(context), in_span(context.traceparent):
                if given or self._definition.record.answer == "plan":
                    return ending.answer_with_plan(context, answer_of, given=given)
                return answer_of()
        except BaseExceptionGroup as group:
            error = cause_of(group)
        finally:
            with self._opening:
                if self._gateway is not None:
                    self._gateway.close()
        raise error  # not while the group is handled, which would take the place of what led to the error

    def _account(self) -> None:
        """Report which durable steps this try recorded, what it spent on models, and its turns, which the ledger keeps, too."""
        run, steps, context, spent = self._held.run, self._steps.finished, self._context, self._effects.spent
        if context is None or not (steps or context.turns or spent.requests):
            return
        from orchestrator.transcript.model import account

        text, said = account(run.id, run.attempt, steps, spent, context.turns)
        try:
            outgoing = self._effects.write_status(None, text)
            self._effects.retrying(
                "account",
                lambda: self._ledger.effect(
                    self._held.claim,
                    effect=f"account:{run.attempt}",
                    envelope=outgoing,
                    only_audit=True,
                    text=said,
                ),
            )
        except (OrchestraError, ValidationError) as error:
            # The commit says what became of the run; a claim that is lost shows there.
            _log.warning("account-not-written", error=str(error))

    def _failed(self, error: BaseException) -> Outcome:
        self._error = error
        try:
            text = self._executor.explain(error, self._definition)
        except BaseException:  # noqa: BLE001  (an error of an agent's own class may be unable to say what it is)
            text = f"{type(error).__name__}, which has no text"
        return ending.failed(error, text, self._effects, self._steps)

    def _retry_ms(self) -> int:
        """Return the milliseconds to wait before another try of the run, if it failed and has attempts left."""
        if isinstance(self._error, Retry) and self._error.after_s is not None:
            return round(self._error.after_s * 1000)
        return self._definition.record.retry_ms(self._held.run.failures + 1)

    def _make_context(self) -> Context:
        self._effects.held = self._as_forked(self._parts.verifier.held())
        return Context(self._parts.decrypter.held(), self._parts)

    def _make_blocking(self, parts: RunParts) -> Blocking:
        """Return what the run waits with; meanwhile its slot executes what is queued, if the worker shares slots."""
        slot_sharing = self._runtime.slot_sharing
        return self._runtime.blocking(
            parts.effects,
            parts.message_sender,
            decrypter=parts.decrypter,
            verifier=parts.verifier,
            slot_sharing=slot_sharing,
            queued=Queued(self._ledger, self._may_take(slot_sharing)) if slot_sharing is not None else None,
            execute=self._execute_beside,
        )

    def _as_forked(self, held: ClaimedRun) -> ClaimedRun:
        """The first run of a fork finds what the run found at which its tree was forked."""
        if not held.session.forked_at or held.run.number > 1:
            return held
        seed = self._effects.retrying("fork", lambda: seed_of(self._ledger, held.session.id))
        if seed is None:
            return held
        return dataclasses.replace(
            held,
            run=dataclasses.replace(held.run, cause=seed.cause),
            items=(*held.items, *(item for item, _ in seed.given)),
            texts={**held.texts, **{item.id: text for item, text in seed.given}},
        )

    def _may_take(self, slot_sharing: SlotSharing) -> Callable[[str], bool]:
        """Tells whether a lent slot may take a run of an agent now."""
        served = serves(self._runtime.catalogue, slot_sharing.queues)
        shard, concurrency = shard_of(self._held.session.id), self._runtime.parts.concurrency
        stopping = self._runtime.stopping
        return lambda agent: (
            not stopping() and served(agent) and concurrency.held_back(agent, shard=shard) is None
        )

    def _execute_beside(self, run: RunRef, slot_sharing: SlotSharing) -> None:
        """Execute another run in this slot, while the run that it holds waits."""
        execute_run(
            dataclasses.replace(self._runtime, slot_sharing=slot_sharing),
            agent=run.agent,
            session=run.session,
            run=run.run,
            worker=self._held.run.worker,
        )

    def _to_commit(self, outcome: Outcome) -> EndedRun:
        session = self._held.session
        final = self._claim_status.timed_out or ending.is_final(self._error)
        if session.task and not session.parent and outcome.status == "completed":
            # Before the commit, while the claim is ours: afterwards the result may be final already.
            retry_outages(lambda: self._runtime.results.store_waiting(session.task), what="store_waiting")
        outcome = dataclasses.replace(
            outcome,
            last_effect=self._effects.last,
            last_taken=self._effects.last_taken,
            attempts=1 if final else self._definition.record.attempts,
            retry_ms=self._retry_ms(),
        )
        return EndedRun(
            self._held.claim,
            outcome,
            make_envelope=partial(ending.report, outcome, self._effects),
            about=session,
            expect_over=session.pending <= len(self._held.items) and not self._effects.launched,
            # Which items it carries cannot be told from a record that cannot be read.
            answer_questions=None if self._held.damage else partial(self._refuse_to_answer, why=outcome.text),
        )

    def settle(self, done: Settled | Exception | None) -> RunEnd:
        """Do what follows from the answer to the commit; None: there was nothing to commit."""
        if self.ended is None or done is None:
            end = RunEnd(run=self._held.claim.run, verdict="outage")
        else:
            end = self._settled(self.ended, done)
        self.let_go()
        self._runtime.events.ended(self._held, end)
        run, names = self._held.run, names_in_log(self._held, traces=self._runtime.parts.settings.log_traces)
        log, items = _log.bind(**names), len(self._held.items)
        log.info("run-ended", cause=run.cause, attempt=run.attempt, items=items, verdict=end.verdict)
        return end

    def _settled(self, ended: EndedRun, done: Settled | Exception) -> RunEnd:
        run = self._held.claim.run
        match done:
            case ClaimLost():
                self._claim_status.lost = True
                return RunEnd(run=run, verdict="lost")
            case TooLate():
                self._claim_status.ask_to_stop(done.reason, timed_out=True)
                return self._commit(self._to_commit(ending.stopped(self._claim_status)))
            case redis.RedisError() | OSError():
                return self._commit(ended)
            case Exception():
                raise done
        failpoint("worker.committed")
        if isinstance(done, Committed):
            self._runtime.wake_each(done.wake)
        return RunEnd(
            run=run,
            verdict=self._follow_up(done, ended.outcome),
            reason="" if ended.outcome.status == "completed" else ended.outcome.text,
            error=self._error,
            retry_in_s=ended.outcome.retry_ms / 1000,
        )

    def _commit(self, ended: EndedRun) -> RunEnd:
        """Commit this end alone, however long Redis is away."""

        def commit() -> Settled | Exception:
            (done,) = self._ledger.commit_all([ended])
            if isinstance(done, (redis.RedisError, OSError)):
                raise done
            return done

        return self._settled(ended, retry_outages(commit, what="commit"))

    def _refuse_to_answer(self, questions: Sequence[str], *, why: str) -> bool:
        """Tell who asked these questions that this run failed at them; False if it may say nothing any more."""
        about = self._held.session
        try:
            for name in questions:
                question = self._effects.retrying("refuse", partial(self._ledger.item, about.id, name))
                if question is not None:
                    text = f"no reply will come: agent {about.agent!r} failed at the question: {why}"
                    self._parts.message_sender.reply(question, text, refused=True)
        except SessionStopped:
            return False
        return True

    def _follow_up(self, done: Committed | RetryLater, outcome: Outcome) -> Verdict:
        if isinstance(done, RetryLater):
            return "parked" if outcome.status == "parked" else "retry"
        if done.result_unpublished:
            root = self._held.session.root
            retry_outages(lambda: publish_result(self._ledger, self._runtime.results, root), what="settle")
        if outcome.status == "failed" and not done.over:  # its session may go on
            return "failed"
        match done.session_state.value:
            case "finished" | "failed" | "stopped" | "deleted" as state:
                return state
            case _:
                return "idle"

    def _end_by_force(self, reason: str) -> None:
        """End the run of an agent that did not stop when it was asked to, then the process that it blocks."""
        if self._worked:
            return  # the run is being committed, which may take as long as an outage
        _log.error(
            "agent-ended-by-force", run=self._held.claim.run, agent=self._definition.name, reason=reason
        )
        if not self._claim_status.lost:
            grace_s = self._runtime.parts.settings.stop_grace_s
            try:
                end = self._commit(self._to_commit(ending.forced(self._claim_status, reason, grace_s)))
                self._runtime.events.ended(self._held, end)
            except Exception as error:  # noqa: BLE001  (the process is blocked all the same; the run is tried again)
                _log.error("end-not-written", run=self._held.claim.run, error=repr(error))
        if current_process().name == "MainProcess":
            return
        sending = machine.start_thread(self._runtime.events.flush, "last-events")
        sending.join(LAST_EVENTS_S)  # the broker may be away
        # A child of the prefork pool, which is replaced. An agent that has returned meanwhile blocks nothing.
        if not self._worked:
            # The runs that wait in this process have no part in its death.
            release_runs_of(os.getpid(), self._runtime)
            os.kill(os.getpid(), signal.SIGKILL)

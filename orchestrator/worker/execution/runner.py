"""One run, from its claim to its commit."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from billiard.process import current_process
from celery.exceptions import WorkerShutdown, WorkerTerminate
from pydantic import ValidationError

from orchestrator.agents.definition import AgentDefinition
from orchestrator.client.current import working_for
from orchestrator.clock import SystemClock
from orchestrator.crashpoints import failpoint
from orchestrator.dispatch.publishing import publish_result
from orchestrator.envelope.bodies import ErrorReport, TaskCompletion
from orchestrator.envelope.model_values import Timestamp, with_values
from orchestrator.envelope.payload import MAX_PAYLOAD_BYTES
from orchestrator.envelope.structured import pack_body
from orchestrator.errors import (
    BudgetExceeded,
    ClaimLost,
    DefinitionChanged,
    InputError,
    ModelFailed,
    OrchestraError,
    Retry,
    RunParked,
    ServerUnavailable,
    SessionStopped,
    TaskFailed,
)
from orchestrator.ids import shard_of
from orchestrator.ledger import BY_FORCE, Claimed, Committed, Next, Outcome, Outgoing, RetryLater, RunRef
from orchestrator.ledger.forks import seed_of
from orchestrator.log import get_logger, log_context
from orchestrator.messages.factory import summary
from orchestrator.policy.budget import Budget
from orchestrator.policy.sealed_text import ENCRYPTED
from orchestrator.policy.versions import split_lane
from orchestrator.worker.container import Runtime
from orchestrator.worker.context.approvals import ApprovalRequests
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.decryption import Decrypter
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.event_log import EventLog
from orchestrator.worker.context.launches import AgentLaunches
from orchestrator.worker.context.messages import MessageSender
from orchestrator.worker.context.planning import Planning, answer_with_plan
from orchestrator.worker.context.provider_limits import ProviderLimits
from orchestrator.worker.context.spending import RunSpending
from orchestrator.worker.context.steps import Steps
from orchestrator.worker.context.verification import Verifier
from orchestrator.worker.execution.deaths import claim_of_this_process
from orchestrator.worker.execution.heartbeat import ClaimStatus, Heartbeat
from orchestrator.worker.execution.outcome import RunEnd, Verdict, traceback_of
from orchestrator.worker.execution.printing import keeping
from orchestrator.worker.execution.retry import retry_outages, was_refused
from orchestrator.worker.execution.slot_sharing import Queued, SlotSharing, serves
from orchestrator.worker.executors import executor_of
from orchestrator.worker.gateway.server import Gateway

_log = get_logger()


def execute_run(runtime: Runtime, *, agent: str, session: str, run: str, worker: str) -> Verdict:
    """Claim a certain run, let its agent work, and commit what it did.

    Nothing is done when another worker has it or it has ended.

    Raises:
        ServerUnavailable: the ledger is out of reach, and nothing was begun.
    """
    if _definition(runtime, agent) is None:
        _log.warning(
            "agent-not-served", agent=agent, session=session, run=run, served=sorted(runtime.catalogue)
        )
        return "not-served"
    claim_id = claim_of_this_process()
    ledger = runtime.parts.ledger
    try:
        held = retry_outages(
            lambda: ledger.claim(
                run,
                claim_id,
                session_id=session,
                worker=worker,
                agent=agent,
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


def complete_run(runtime: Runtime, held: Claimed, *, following: Next | None = None) -> RunEnd:
    """Let the agent of a held run work, and commit what it did; ``following`` is taken with that commit.

    A run whose worker cannot reach the ledger any more is left as it is: its lease runs out, and it is tried again.
    """
    session, run = held.session, held.run
    log = _log.bind(agent=session.agent, session=session.id, run=run.id)
    definition = _definition(runtime, session.agent)
    if definition is None:
        log.error("agent-not-served", served=sorted(runtime.catalogue))
        return RunEnd(run=run.id, verdict="not-served")
    log.debug("run-claimed", cause=run.cause, attempt=run.attempt, items=len(held.items))
    if runtime.events is not None:
        runtime.events.begun(held)
    end = _RunOfAgent(runtime, definition, held, following=following).complete()
    if runtime.events is not None:
        runtime.events.ended(held, end.without_words() if session.encrypted else end)
    log.info("run-ended", cause=run.cause, attempt=run.attempt, items=len(held.items), verdict=end.verdict)
    return end


def _definition(runtime: Runtime, agent: str) -> AgentDefinition | None:
    definition = runtime.catalogue.get(agent)
    return None if definition is None or definition.record.external else definition


class _RunOfAgent:
    """A held run."""

    def __init__(
        self, runtime: Runtime, definition: AgentDefinition, held: Claimed, *, following: Next | None
    ) -> None:
        self._following = following
        self._runtime = runtime
        self._ledger = runtime.parts.ledger
        self._message_factory = runtime.parts.message_factory
        self._definition = definition
        self._executor = executor_of(definition)
        self._held = held
        self._claim_status = ClaimStatus(held.claim)
        self._error: BaseException | None = None
        self._gateway: Gateway | None = None
        self._opening = threading.Lock()
        self._context: Context | None = None
        self._effects = Effects(
            held,
            ledger=self._ledger,
            message_factory=self._message_factory,
            claim_status=self._claim_status,
            pressure=runtime.parts.pressure,
        )
        self._steps = Steps(self._effects, policy=definition.steps, pause=runtime.pause)
        self._message_sender = MessageSender(self._effects, EventLog(runtime.parts.settings.data))

    def complete(self) -> RunEnd:
        settings = self._runtime.parts.settings
        heartbeat = Heartbeat(
            self._ledger,
            self._held.claim,
            self._claim_status,
            interval_s=settings.heartbeat_s,
            time_limit_s=self._definition.record.time_limit_s or settings.run_time_limit_s,
            grace_s=settings.stop_grace_s,
            end=self._end_by_force,
        )
        about = self._held.session
        with heartbeat:
            with (
                log_context(agent=about.agent, session=about.id, run=self._held.claim.run),
                keeping(
                    self._held,
                    self._ledger.redis,
                    limit=settings.printed_max_bytes,
                    ttl_s=settings.tree_ttl_s,
                ),
            ):
                outcome = self._let_agent_work()
            if outcome is None:
                return RunEnd(run=self._held.claim.run, verdict="outage")
            self._account()
            failpoint("worker.worked")
            # A root has a result to store after its commit, for which the next run had to wait.
            following = self._following if self._held.session.parent else None
            return self._commit(outcome, following)

    def _let_agent_work(self) -> Outcome | None:
        """How the agent ended; None when that cannot be said, because the ledger was out of reach."""
        claim_status = self._claim_status
        try:
            self._check_version()
            context = self._context = self._make_context()
            return self._reported(_completed(self._answer(context), context))
        except (ClaimLost, SessionStopped) as error:
            if claim_status.stop_reason:
                return self._stopped()
            return self._failed(error)
        except DefinitionChanged as error:
            self._error = error
            _log.warning("version-refused", began_with=error.args[1], version=error.args[2])
            return Outcome(status="failed", text=str(error))
        except RunParked as error:
            return Outcome(status="parked", text=str(error), parked_ms=math.ceil(float(error.args[1]) * 1000))
        except (WorkerShutdown, WorkerTerminate):
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever an agent raises is its failure)
            if self._effects.outage is not None:
                _log.error("ledger-away", error=str(self._effects.outage))
                return None
            if claim_status.stop_reason:
                return self._stopped()
            if self._held.session.encrypted:
                _log.warning("agent-failed", error=type(error).__name__, text=ENCRYPTED)
            else:
                _log.warning("agent-failed", exc_info=error)
            return self._failed(error)

    def _check_version(self) -> None:
        """Return if the session may go on with the definition that this worker has.

        Raises:
            DefinitionChanged: it refuses to go on with another one than it began with.
        """
        session, own = self._held.session, self._definition.record.version
        if session.on_deploy == "refuse" and session.version != own:
            raise DefinitionChanged(session.agent, session.version, own)

    def _open_gateway(self, context: Context) -> dict[str, str]:
        """The environment of programs that take part in the run; the first call opens its socket."""
        with self._opening:
            if self._gateway is None:
                self._gateway = Gateway(context)
            return self._gateway.environment

    def _answer(self, context: Context) -> str:
        """What the agent answers; a plan is launched. No program has effects after that."""
        try:
            with working_for(context):
                return self._answer_of_agent(context)
        finally:
            with self._opening:
                if self._gateway is not None:
                    self._gateway.close()

    def _answer_of_agent(self, context: Context) -> str:
        given = self._held.session.planned and context.cause == "start"

        def answer_of() -> str:
            return self._executor.execute(self._definition, context)

        if given or self._definition.record.answer == "plan":
            return answer_with_plan(context, answer_of, given=given)
        return answer_of()

    def _account(self) -> None:
        """Tell the audit trail which durable steps this try recorded, and what it spent on models."""
        text = self._context.account if self._context is not None else ""
        if not text:
            return
        about, effects = self._held.session, self._effects
        try:
            outgoing = effects.write(
                lambda: self._message_factory.status(
                    sender=about.agent,
                    recipient=effects.delegator,
                    task_id=about.reported_as,
                    progress=None,
                    activity=f"{self._held.run.id}, attempt {self._held.run.attempt}: {text}",
                    thread=effects.thread,
                )
            )
            key = f"account:{self._held.run.attempt}"
            effects.retrying(
                "account",
                lambda: self._ledger.effect(
                    effects.held.claim, effect=key, envelope=outgoing, only_audit=True
                ),
            )
        except (OrchestraError, ValidationError) as error:
            # The commit says what became of the run; a claim that is lost shows there.
            _log.warning("account-not-written", error=str(error))

    def _failed(self, error: BaseException) -> Outcome:
        self._error = error
        text = self._executor.explain(error, self._definition)
        return Outcome(
            status="failed",
            text=text,
            body=self._body_of_failure(text) if isinstance(error, TaskFailed) else "",
            traceback=traceback_of(error),
            steps_failed=self._steps.failed_with(error),
        )

    def _reported(self, outcome: Outcome) -> Outcome:
        """An answer with what the agent itself says of the end of its task, which is completed from what is known."""
        said = self._effects.completion
        if said is None:
            return outcome
        own = self._effects.completion = self._complete(said, outcome.text)
        told: Literal["completed", "partial-success"] = (
            "partial-success" if own.status == "partial-success" else "completed"
        )
        return dataclasses.replace(outcome, body=pack_body(own), told=told)

    def _complete(self, said: TaskCompletion, answer: str) -> TaskCompletion:
        return with_values(
            said,
            task_id=self._held.session.reported_as,
            result=answer,
            summary=said.summary or summary(answer),
            completion_timestamp=said.completion_timestamp or Timestamp.from_ms(SystemClock().now_ms()),
        )

    def _body_of_failure(self, text: str) -> str:
        effects = self._effects
        if effects.failure is not None:
            own = effects.failure = with_values(effects.failure, message=text)
        elif effects.completion is not None and effects.completion.status == "failed":
            return self._packed(self._complete(effects.completion, text))
        else:
            return ""
        return self._packed(own)

    @staticmethod
    def _packed(body: ErrorReport | TaskCompletion) -> str:
        """The structured part of a failure; of one that is too large the text alone is told."""
        try:
            return pack_body(body)
        except InputError as error:
            _log.warning("report-too-large", error=str(error))
            return ""

    def _retry_ms(self) -> int:
        """How long the run waits before it is tried again, should it have failed and have attempts left."""
        if isinstance(self._error, Retry) and self._error.after_s is not None:
            return round(self._error.after_s * 1000)
        return self._definition.record.retry_ms(self._held.run.failures + 1)

    def _make_context(self) -> Context:
        runtime = self._runtime
        verifier = Verifier(self._effects, runtime.parts.authenticity)
        self._effects.held = self._as_forked(verifier.held())
        decrypter = Decrypter(self._effects, runtime.parts.opener)
        queued = None
        if runtime.slot_sharing is not None:
            queued = Queued(self._ledger, self._may_take(runtime.slot_sharing))
        blocking = runtime.blocking(
            self._effects,
            self._message_sender,
            decrypter=decrypter,
            verifier=verifier,
            slot_sharing=runtime.slot_sharing,
            queued=queued,
            execute=self._execute_beside,
        )
        return Context(
            decrypter.held(),
            effects=self._effects,
            verifier=verifier,
            claim_status=self._claim_status,
            message_sender=self._message_sender,
            blocking=blocking,
            launches=AgentLaunches(
                self._effects,
                runtime.parts.routing,
                exists=lambda name: runtime.parts.agents.get(name) is not None,
                agents=runtime.parts.agents.all,
            ),
            steps=self._steps,
            environment=self._open_gateway,
            planning=Planning(self._effects, names=runtime.parts.agents.names),
            settings=runtime.parts.settings,
            spending=RunSpending(self._effects, agent_budget=self._agent_budget()),
            limits=ProviderLimits(
                self._effects,
                limits=runtime.parts.settings.provider_limits,
                longest_wait_s=runtime.parts.settings.provider_wait_s,
            ),
            approvals=ApprovalRequests(
                self._effects, blocking, verifier, time_limit_s=runtime.parts.settings.approval_time_limit_s
            ),
        )

    def _as_forked(self, held: Claimed) -> Claimed:
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
        return lambda lane: served(lane) and concurrency.held_back(split_lane(lane)[0], shard=shard) is None

    def _agent_budget(self) -> Budget | None:
        """What all sessions of the agent may spend: each shard has its share of it."""
        budget, shards = self._definition.budget, self._runtime.parts.settings.shards
        return budget.share(shards) if budget is not None else None

    def _execute_beside(self, run: RunRef, slot_sharing: SlotSharing) -> None:
        """Execute another run in this slot, while the run that it holds waits."""
        execute_run(
            dataclasses.replace(self._runtime, slot_sharing=slot_sharing),
            agent=run.agent,
            session=run.session,
            run=run.run,
            worker=self._held.run.worker,
        )

    def _stopped(self) -> Outcome:
        """A run past its time limit has failed; one that was asked to stop was stopped."""
        claim_status = self._claim_status
        return Outcome(
            status="failed" if claim_status.timed_out else "stopped", text=claim_status.stop_reason
        )

    def _commit(self, outcome: Outcome, following: Next | None = None) -> RunEnd:
        session = self._held.session
        final = self._claim_status.timed_out or isinstance(
            self._error, ModelFailed | BudgetExceeded | DefinitionChanged
        )
        attempts = 1 if final else self._definition.record.attempts
        retry_ms = self._retry_ms()
        if session.task and not session.parent and outcome.status == "completed":
            # Before the commit, while the claim is ours: afterwards the result may be final already.
            retry_outages(lambda: self._runtime.results.store_waiting(session.task), what="store_waiting")
        try:
            done = retry_outages(
                lambda: self._ledger.commit(
                    self._held.claim,
                    outcome,
                    make_envelope=self._report(outcome),
                    about=session,
                    expect_over=session.pending <= len(self._held.items) and not self._effects.launched,
                    attempts=attempts,
                    retry_ms=retry_ms,
                    following=following,
                    answer_questions=partial(self._refuse_to_answer, why=outcome.text),
                ),
                what="commit",
            )
        except ClaimLost:
            self._claim_status.lose()
            return RunEnd(run=self._held.claim.run, verdict="lost")
        failpoint("worker.committed")
        if isinstance(done, Committed):
            self._ring(done.ring)
        return RunEnd(
            run=self._held.claim.run,
            verdict=self._follow_up(done, outcome),
            reason="" if outcome.status == "completed" else outcome.text,
            error=self._error,
            retry_in_s=retry_ms / 1000,
        )

    def _ring(self, agents: Sequence[str]) -> None:
        """Tell the workers of other agents what may begin because this run has ended."""
        for agent in agents:
            try:
                self._runtime.ring(agent)
            except ServerUnavailable as error:
                _log.warning("ring-failed", agent=agent, error=str(error))

    def _refuse_to_answer(self, questions: Sequence[str], *, why: str) -> bool:
        """Tell who asked these questions that this run failed at them; False if it may say nothing any more."""
        about = self._held.session
        try:
            for name in questions:
                question = self._effects.retrying("refuse", partial(self._ledger.item, about.id, name))
                if question is not None:
                    text = f"no reply will come: agent {about.agent!r} failed at the question: {why}"
                    self._message_sender.reply(question, text, refused=True)
        except SessionStopped:
            return False
        return True

    def _follow_up(self, done: Committed | RetryLater, outcome: Outcome) -> Verdict:
        if isinstance(done, RetryLater):
            return "parked" if outcome.status == "parked" else "retry"
        if done.result_unpublished:
            root = self._held.session.root
            retry_outages(lambda: publish_result(self._ledger, self._runtime.results, root), what="settle")
        # Its session may go on.
        return "failed" if outcome.status == "failed" and not done.over else _verdict(done)

    def _report(self, outcome: Outcome) -> Callable[[], Outgoing]:
        """Writes the envelope that reports the end of the session, if it is one."""
        session = self._held.session
        thread = self._effects.thread

        def completion() -> Outgoing:
            written = self._effects.completion
            if written is not None:
                return self._message_factory.as_written(
                    written,
                    sender=session.agent,
                    recipient=self._effects.delegator,
                    thread=thread,
                )
            return self._message_factory.completion(
                sender=session.agent,
                recipient=self._effects.delegator,
                task_id=session.reported_as,
                result=outcome.text,
                thread=thread,
            )

        def error() -> Outgoing:
            written = self._effects.failure
            if written is not None and outcome.body:
                return self._message_factory.as_written(
                    written, sender=session.agent, recipient=self._effects.delegator, thread=thread
                )
            return self._message_factory.error(
                sender=session.agent,
                recipient=self._effects.delegator,
                message=outcome.text,
                error_type="timeout" if self._claim_status.timed_out else "task-failed",
                details=json.dumps(
                    {
                        "session": session.id,
                        "task": session.reported_as,
                        "run": self._held.claim.run,
                        "status": outcome.status,
                    }
                ),
                thread=thread,
            )

        return completion if outcome.status == "completed" else error

    def _end_by_force(self, reason: str) -> None:
        """The agent did not stop when it was asked to: end its run, then the process that it blocks."""
        _log.error(
            "agent-ended-by-force", run=self._held.claim.run, agent=self._definition.name, reason=reason
        )
        if not self._claim_status.lost:
            grace_s = self._runtime.parts.settings.stop_grace_s
            text = f"{reason}, and its agent, which did not stop within {grace_s:g} s, was {BY_FORCE}"
            self._commit(dataclasses.replace(self._stopped(), text=text))
        if current_process().name != "MainProcess":  # a child of the prefork pool, which is replaced
            os.kill(os.getpid(), signal.SIGKILL)


def _completed(text: str, context: Context) -> Outcome:
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
    return Outcome(
        status="completed",
        text=text,
        state=state,
        waiting=context.new_waiting,
        steps_left_out=context.steps.left_out,
        memory=context.new_memory,
        once=context.answers_in_text,
        attachments=context.attachments,
    )


def _verdict(done: Committed) -> Verdict:
    match done.session_state.value:
        case "finished" | "failed" | "stopped" | "deleted" as state:
            return state
        case _:
            return "idle"

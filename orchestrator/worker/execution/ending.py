"""The end of a run: its outcome for the ledger, and the envelope that reports it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from orchestrator.envelope.bodies import ErrorReport, TaskCompletion
from orchestrator.envelope.model_values import Timestamp, with_values
from orchestrator.envelope.payload import MAX_PAYLOAD_BYTES
from orchestrator.envelope.structured import pack_body
from orchestrator.errors import InputError, PlanError, TaskFailed
from orchestrator.ledger import Outcome, Outgoing
from orchestrator.log import get_logger
from orchestrator.machine import SystemClock
from orchestrator.messages.factory import summary
from orchestrator.policy.plan import looks_like_plan
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.steps import Steps
from orchestrator.worker.execution.heartbeat import ClaimStatus
from orchestrator.worker.execution.outcome import traceback_of

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


def stopped(claim_status: ClaimStatus) -> Outcome:
    """The outcome of a run that was asked to stop: past its time limit it has failed."""
    return Outcome(status="failed" if claim_status.timed_out else "stopped", text=claim_status.stop_reason)


def report(outcome: Outcome, effects: Effects) -> Outgoing:
    """Write the envelope that reports the end of the session, if the run is its end.

    Raises:
        redis.RedisError: Redis does not answer.
    """
    session, factory = effects.held.session, effects.message_factory
    own = effects.completion if outcome.status == "completed" else effects.failure
    if own is not None and (outcome.status == "completed" or outcome.body):
        return factory.as_written(
            own, sender=session.agent, recipient=effects.delegator, thread=effects.thread
        )
    if outcome.status == "completed":
        return factory.completion(
            sender=session.agent,
            recipient=effects.delegator,
            task_id=session.reported_as,
            result=outcome.text,
            thread=effects.thread,
        )
    details = {
        "session": session.id,
        "task": session.reported_as,
        "run": effects.held.claim.run,
        "status": outcome.status,
    }
    return factory.error(
        sender=session.agent,
        recipient=effects.delegator,
        message=outcome.text,
        error_type="timeout" if effects.claim_status.timed_out else "task-failed",
        details=json.dumps(details),
        thread=effects.thread,
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

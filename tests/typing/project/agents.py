"""Agents of a user who checks types strictly: what an agent is given, what it does and what it may return."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import assert_type

from orchestrator import (
    ApiContract,
    Artifact,
    Attempt,
    AwaitsApproval,
    Blocker,
    Budget,
    BudgetExceeded,
    Callback,
    Completion,
    Constraint,
    Context,
    Criterion,
    CriterionResult,
    Decision,
    Deliverable,
    Dependency,
    ErrorDetails,
    ErrorReport,
    EscalationMatter,
    File,
    FileReference,
    FocusArea,
    LimitExceeded,
    Metric,
    Objective,
    Output,
    Query,
    QueryContext,
    Recommendation,
    RecoveryOption,
    Retry,
    RetryPolicy,
    Review,
    StatusUpdate,
    StepFailed,
    StepMismatch,
    Task,
    TaskContext,
    agent,
    cost_of,
    define_agent,
    model_agent,
)


def fetch(url: str, *, depth: int = 0) -> dict[str, int]:
    return {url: depth}


async def fetch_slowly(url: str) -> list[str]:
    return [url]


@agent("counter", tier="haiku", attempts=3, backoff="linear", tags=["text"], budget={"requests": 10})
def counter(ctx: Context) -> str:
    return str(len(ctx.prompt.split()))


@agent("asker", steps="replace", budget=Budget(usd=1.5, per_s=3600.0), on_deploy="refuse", version="1")
async def asker(ctx: Context) -> int:
    pages = await ctx.astep("fetch", fetch_slowly, "https://example.org")
    assert_type(pages, list[str])
    return len(pages)


@agent("payer")
def payer(ctx: Context) -> str:
    most = cost_of("claude-sonnet-4-5", input_tokens=len(ctx.prompt), output_tokens=2_000)
    assert_type(most.usd, float)
    with ctx.spending.reserve_cost(most) as reservation:
        reservation.settle_cost(cost_of("claude-sonnet-4-5", input_tokens=10, output_tokens=20))
    return "paid"


coder = define_agent("coder", source=__file__, executor="command", options={"preset": "claude"})


@agent("lead", role="coordinator", runs_at_once=2, time_limit_s=60.0, may_send_to=["tag:text"])
def lead(ctx: Context) -> str | None:
    if ctx.cause == "start":
        child = ctx.delegate("counter", ctx.prompt, title="Count", group="first", budget=Budget(requests=2))
        assert_type(child, str)
        assert_type(ctx.delegate_all("counter", ["a", "b"], priority="low"), list[str])
        ctx.delegate(
            "asker",
            "Ask.",
            after=[child],
            retry_policy=RetryPolicy(max_attempts=2, backoff_strategy="linear", timeout_seconds=60),
        )
        ctx.wait_for("quorum", k=2, deadline_s=60.0)
        ctx.when_closed("abandon")
        return None
    assert_type(ctx.callbacks, tuple[Callback, ...])
    for callback in ctx.all_results:
        assert_type(callback.result, str)
        assert_type(callback.error, str)
        assert_type(callback.value_as(int), int)
        assert_type(callback.attachment("log"), str | None)
        assert_type(callback.query, Query | None)
        assert_type(callback.status_update, StatusUpdate | None)
        assert_type(callback.error_report, ErrorReport | None)
        if callback.can_reply:
            assert_type(ctx.reply(callback, "yes"), bool)
    ctx.state["seen"] = len(ctx.all_results)
    return json.dumps([callback.result for callback in ctx.callbacks])


@agent("worker", role="orchestrator")
def work(ctx: Context) -> Completion | ErrorReport:
    try:
        found = ctx.step("fetch", fetch, "https://example.org", depth=2, retries=3)
    except (StepFailed, StepMismatch) as error:
        raise Retry(str(error), after_s=10) from error
    assert_type(found, dict[str, int])
    assert_type(ctx.call("counter", "one two", timeout_s=10.0), Callback)
    assert_type(ctx.ask("Which?", kind="clarification", required_by=datetime.now(UTC)), str)
    assert_type(ctx.ask_later("And then?", urgency="high"), str)
    assert_type(ctx.raise_callback("look", "blocker", {"line": 3}, wait=False), str | None)
    assert_type(ctx.get_status(), StatusUpdate)
    assert_type(ctx.message("parent", "half of it"), str)
    ctx.status(
        40,
        "parsing",
        blockers=[Blocker(text="no key", severity="warning"), "no network"],
        artifacts=[Artifact(type="code", file_path="a.py", lines_of_code=3)],
        metrics=[Metric(name="coverage", text="82.5%")],
        next_steps=["write"],
    )
    decision = ctx.request_approval("deploy", {"to": "production"}, timeout_s=60.0)
    assert_type(decision, Decision)
    assert_type(decision.approved, bool)
    ctx.sleep_until(datetime.now(UTC) + timedelta(hours=1))
    ctx.attach("log.txt", "everything")
    ctx.check()
    if not decision.approved:
        return ErrorReport(
            message=decision.comment,
            error_type="blocked",
            severity="critical",
            details=ErrorDetails(stack_trace="…"),
            recovery_options=(RecoveryOption(text="later", type="retry", priority=1),),
            recommended_action="retry",
        )
    return Completion(
        status="partial-success",
        result="done",
        acceptance_criteria_met=(CriterionResult(name="tests pass", met=True),),
        deliverables=(Deliverable(type="code", files=(File(path="a.py", text="4f2a"),)),),
        recommendations=(Recommendation(type="follow-up", text="cache it"),),
    )


@agent("planner", answer="plan")
def plan(ctx: Context) -> Sequence[dict[str, str]]:
    task = Task(
        title="Parser",
        description="Make it quick.",
        objectives=(Objective(text="halve its time", priority=1),),
        acceptance_criteria=(Criterion(text="tests pass", measurable=True),),
        dependencies=(Dependency(task_id="another"),),
        context=TaskContext(
            file_references=(FileReference(path="a.py", text="the parser"),),
            api_contracts=(ApiContract(endpoint="/v1", text="stays"),),
            constraints=(Constraint(text="no new dependency"),),
        ),
        expected_outputs=(Output(type="code", file_paths=("a.py",)),),
    )
    ctx.delegate("counter", task=task, expires_s=3600.0)
    ctx.delegate("counter", task={"title": "short", "objectives": ["as a mapping"]})
    # The short forms of the parts, checked when the program runs.
    assert_type(Task.model_validate({"description": "short", "objectives": ["halve its time"]}), Task)
    review = Review(
        description="Look.", focus_areas=(FocusArea(text="locks"),), files=(File(path="a.py", text=""),)
    )
    assert_type(ctx.request_review(review=review), str)
    matter = EscalationMatter(description="Stuck.", attempted_solutions=(Attempt(text="again", order=0),))
    assert_type(ctx.escalate(matter=matter), str | None)
    query = Query(query_type="ask-for-help", subject="Which?", context=QueryContext(problem="two ways"))
    assert_type(query.subject, str)
    return [{"agent": "counter", "prompt": "one two"}]


@agent("guard")
def guard(ctx: Context) -> str:
    try:
        ctx.delegate("counter", ctx.prompt)
    except (LimitExceeded, BudgetExceeded) as refused:
        return str(refused)
    except AwaitsApproval:
        raise
    return "fine"


def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())


writer = model_agent("writer", tier="haiku", instructions="You write.", tools=[count_words])

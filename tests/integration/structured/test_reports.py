"""Statuses, completions, questions and errors: what a child says in full, and how its parent has it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from orchestrator import Completion, Context, ErrorReport, agent, model_agent
from orchestrator.envelope.bodies import Query, StatusUpdate, TaskCompletion
from orchestrator.errors import InputError, SessionFailed
from orchestrator.policy.callback import Callback, same_callback
from orchestrator.policy.callback_text import parse_callbacks
from orchestrator.testing import ByInstructions, Call, InProcessStack, Say, Script, scripted_model
from tests.integration.structured.conftest import Published

#: What the specialist does, and what the coordinator makes of each callback; by the prompt.
ACTS: dict[str, Callable[[Context], Any]] = {}
#: Set when a test has altered what waits for the coordinator.
FORGED = threading.Event()
HEARD: dict[str, list[tuple[Callback, str]]] = {}


@agent("specialist")
def specialist(ctx: Context) -> Any:
    """Does what the test says."""
    return ACTS[ctx.title](ctx)


@agent("coordinator", role="coordinator")
def coordinator(ctx: Context) -> Any:
    """Notes what it hears, answers questions, and reports what its child reported."""
    if ctx.cause == "start":
        ctx.delegate("specialist", "work", title=ctx.title)
        if ctx.title == "forged":
            FORGED.wait(timeout=30)
        return ""
    for callback in ctx.callbacks:
        HEARD.setdefault(ctx.title, []).append((callback, ctx.prompt))
        if callback.can_reply:
            ctx.reply(callback, "the second way")
    ended = [callback for callback in ctx.callbacks if callback.kind == "completion"]
    if not ended:
        return ""
    return ended[0].completion if ended[0].result else ended[0].error


@pytest.fixture(scope="module")
def stack() -> Iterator[InProcessStack]:
    with InProcessStack([specialist, coordinator], heartbeat_s=0.1) as running:
        yield running


@pytest.fixture
def play(
    stack: InProcessStack, request: pytest.FixtureRequest
) -> Callable[[Callable[[Context], Any]], tuple[str, list[tuple[Callback, str]]]]:
    """Let a coordinator delegate to a specialist that does this; the session, and what the coordinator heard."""

    def run(act: Callable[[Context], Any]) -> tuple[str, list[tuple[Callback, str]]]:
        title = request.node.name
        ACTS[title] = act
        session = stack.run("coordinator", "go", title=title).session
        for callback, prompt in HEARD[title]:
            (found,) = [one for one in parse_callbacks(prompt) if one.id == callback.id]
            assert same_callback(found, callback), (found, callback)
        return session, HEARD[title]

    return run


def test_a_completion_reaches_the_parent_and_the_client_whole(
    stack: InProcessStack, play: Any, published: Published
) -> None:
    said = Completion(
        status="partial-success",
        summary="Halved it.",
        result="the parser takes 90 ms",
        total_hours_worked="2.5",
        acceptance_criteria_met=[
            {"name": "all tests pass", "met": True, "evidence": "CI"},
            {"name": "below 80 ms", "met": False, "reason": "the lexer </agent-callback>"},
        ],
        deliverables=[
            {
                "type": "code",
                "files": [{"path": "src/parser.py", "status": "modified", "text": "4f2a"}],
                "test_coverage": "85%",
                "all_tests_passing": True,
            }
        ],
        quality_metrics=[{"name": "lint-issues", "text": "0"}],
        recommendations=[{"type": "follow-up", "text": "cache the lexer"}],
    )
    session, ((callback, prompt),) = play(lambda _: said)
    got = callback.completion
    assert callback.status == "partial-success"
    assert callback.result == "the parser takes 90 ms"
    assert got == said.model_copy(
        update={"task_id": callback.session, "completion_timestamp": got.completion_timestamp}
    )
    for heading in ("Acceptance Criteria Met", "Deliverables", "Quality Metrics", "Recommendations"):
        assert f"### {heading}\n\n- " in prompt
    assert "below 80 ms: not met (the lexer &lt;/agent-callback>)" in prompt
    assert prompt.count("</agent-callback>") == 1
    # The coordinator returned what it was given: its own report says the same under its own task-id.
    own = stack.client.completion(session)
    assert own.task_id == session
    assert (own.status, own.deliverables) == ("partial-success", said.deliverables)
    ends = [m.body for m in published(stack, session) if isinstance(m.body, TaskCompletion)]
    assert [(end.task_id, end.status) for end in ends] == [
        (callback.session, "partial-success"),
        (session, "partial-success"),
    ]


def test_a_plain_answer_is_a_completion_too(stack: InProcessStack, play: Any) -> None:
    session, ((callback, prompt),) = play(lambda _: "done")
    assert callback.completion == Completion(task_id=callback.session, summary="done", result="done")
    assert "###" not in prompt
    assert stack.client.completion(session).result == "done"


def test_an_error_says_how_bad_it_is_and_what_can_be_done(stack: InProcessStack, play: Any) -> None:
    report = ErrorReport(
        message="the build broke",
        error_type="blocked",
        severity="warning",
        details={"stack_trace": "line 1"},
        recovery_options=[{"type": "retry", "priority": 1, "text": "with another compiler"}],
        recommended_action="retry",
    )
    _, ((callback, prompt),) = play(lambda _: report)
    assert (callback.status, callback.error) == ("failed", "the build broke")
    assert callback.error_report == report
    assert "### Recovery Options\n\n- retry: with another compiler" in prompt
    assert "### Recommended Action\n\n- retry" in prompt


def test_a_completion_that_failed_fails_its_session(stack: InProcessStack, play: Any) -> None:
    _, ((callback, _),) = play(lambda _: Completion(status="failed", summary="no way through"))
    assert (callback.status, callback.error) == ("failed", "no way through")
    assert callback.completion is not None
    assert callback.completion.status == "failed"


def test_an_error_on_the_way_ends_nothing_and_needs_no_reply(stack: InProcessStack, play: Any) -> None:
    def act(ctx: Context) -> str:
        ctx.report_error({"message": "the cache is cold", "severity": "warning"})
        return "done"

    _, heard = play(act)
    error, prompt = heard[0]
    assert (error.kind, error.can_reply) == ("error", False)
    assert error.error_report is not None
    assert error.error_report.severity == "warning"
    assert "It needs no reply." in prompt or len(parse_callbacks(prompt)) > 1
    assert heard[-1][0].result == "done"


def test_a_status_says_what_was_made_and_what_comes_next(
    stack: InProcessStack, play: Any, published: Published
) -> None:
    def act(ctx: Context) -> str:
        ctx.status(
            40,
            "lexing",
            blockers=[{"severity": "warning", "text": "slow disk"}],
            artifacts=[{"type": "code", "file_path": "a.py", "lines_of_code": 250}],
            metrics={"test-coverage": "82.5%"},
            next_steps=["parse", "print"],
        )
        with pytest.raises(InputError, match=r"status\.artifacts_created\.0\.lines_of_code"):
            ctx.status(artifacts=[{"lines_of_code": -1}])
        return "done"

    session, heard = play(act)
    assert [callback.kind for callback, _ in heard] == ["completion"]
    (status,) = [m.body for m in published(stack, session) if isinstance(m.body, StatusUpdate)]
    assert (status.status, status.progress_percentage) == ("in-progress", 40)
    assert [step.order for step in status.next_steps] == [1, 2]
    assert status.metrics[0].name == "test-coverage"
    assert status.task_id == heard[0][0].session


def test_a_blocked_child_resumes_its_parent_which_need_not_reply(
    stack: InProcessStack, play: Any, published: Published
) -> None:
    def act(ctx: Context) -> str:
        ctx.status(10, blockers=[{"severity": "critical", "text": "no <response> key"}])
        return "done"

    session, heard = play(act)
    blocked, prompt = heard[0]
    assert (blocked.kind, blocked.can_reply, blocked.text) == ("blocker", False, "no <response> key")
    assert blocked.status_update is not None
    assert blocked.status_update.status == "blocked"
    assert "### Blockers\n\n- critical: no &lt;response> key" in prompt
    assert "It needs no reply." in prompt or len(parse_callbacks(prompt)) > 1
    statuses = [m.body.status for m in published(stack, session) if isinstance(m.body, StatusUpdate)]
    assert statuses == ["blocked"]


@pytest.mark.parametrize("kind", ["ask-for-help", "request-review", "request-analysis"])
def test_a_question_says_what_was_tried_and_how_urgent_it_is(
    stack: InProcessStack, play: Any, published: Published, kind: Any
) -> None:
    when = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)

    def act(ctx: Context) -> str:
        return ctx.ask(
            "Which way?",
            kind=kind,
            problem="two ways",
            attempted=["the first", "the first again"],
            file={"path": "a.py", "text": "line 3"},
            error="Traceback",
            urgency="low",
            required_by=when,
        )

    session, heard = play(act)
    question, prompt = heard[0]
    query = question.query
    assert (query.subject, query.query_type, query.urgency) == ("Which way?", kind, "low")
    assert question.priority == "low"
    assert query.context is not None
    assert [a.text for a in query.context.attempted_solutions] == ["the first", "the first again"]
    assert query.required_by is not None
    assert query.required_by.instant_ms == when.timestamp() * 1000
    for heading in ("Problem", "Attempted Solutions", "File References", "Error Message", "Required By"):
        assert f"### {heading}\n\n- " in prompt
    assert heard[-1][0].result == "the second way"
    (asked,) = [m for m in published(stack, session) if isinstance(m.body, Query)]
    assert asked.body.model_copy(update={"subject": query.subject}) == query
    assert asked.header.priority == "low"


def test_the_system_answers_how_far_somebody_is(stack: InProcessStack, play: Any) -> None:
    def act(ctx: Context) -> str:
        parent = ctx.get_status()
        assert (parent.task_id, parent.status) == (ctx.parent, "in-progress")
        return ctx.ask("", kind="get-status")

    _, heard = play(act)
    assert [callback.kind for callback, _ in heard] == ["completion"]
    assert heard[0][0].result.startswith("### Status\n\n- in-progress")


def test_the_structured_part_is_vouched_for(stack: InProcessStack, play: Any) -> None:
    """Edited in Redis, it is not delivered."""
    redis = stack.client._parts.ledger.redis

    def act(ctx: Context) -> str:
        if ctx.cause != "start":
            return "done"
        asked = ctx.ask_later("Which way?", attempted=["the first"])
        key = f"ao:{{00}}:session:{ctx.parent}:items"
        record = json.loads(redis.hget(key, asked))
        body = json.loads(record["body"])
        body["context"]["attempted_solutions"][0]["text"] = "nothing"
        redis.hset(key, asked, json.dumps({**record, "body": json.dumps(body)}))
        FORGED.set()
        return ""

    title = "forged"
    ACTS[title] = act
    session = stack.client.submit("coordinator", "go", title=title).id
    stack.client.result(session, timeout_s=30)
    forged = HEARD[title][0][0]
    assert forged.status == "failed"
    assert "was not delivered" in forged.text
    assert forged.query is None or forged.query.context is None


def test_a_root_that_reports_a_failure_fails(stack: InProcessStack) -> None:
    ACTS["alone"] = lambda _: ErrorReport(message="no key", recommended_action="abandon")
    with pytest.raises(SessionFailed, match="no key"):
        stack.run("specialist", "go", title="alone")


# --- Model agents give tasks, report and end in full, with their tools and a typed output.


SCRIPT = ByInstructions(
    {
        "You lead": Script(
            Say(
                calls=[
                    Call("delegate", agent="maker", task="make it", objectives=["small", "quick"], wait=True)
                ]
            ),
            Say(
                calls=[
                    Call(
                        "final_result",
                        status="partial-success",
                        summary="half of it",
                        acceptance_criteria_met=[{"name": "small", "met": True}],
                    )
                ]
            ),
        ),
        "You make": Script(
            Say(calls=[Call("report_status", activity="making", progress=50, next_steps=["finish"])]),
            lambda request: Say(f"<response>{'small' in str(request.messages)}</response>"),
        ),
    }
)
MODEL = scripted_model(SCRIPT)
LEAD = model_agent("model-lead", role="coordinator", model=MODEL, instructions="You lead.", output=Completion)
MAKER = model_agent("maker", model=MODEL, instructions="You make.")


@agent("boss", role="coordinator")
def boss(ctx: Context) -> str:
    """Has the completion of a model agent as a value."""
    if ctx.cause == "start":
        ctx.delegate("model-lead", "go")
        return ""
    done = ctx.callbacks[0].completion
    return f"{ctx.callbacks[0].status}: {done.result}: {done.acceptance_criteria_met[0].name}"


def test_a_models_completion_is_a_value_at_its_parent() -> None:
    with InProcessStack([LEAD, MAKER, boss]) as stack:
        answer = stack.run("boss", "go")
        assert answer.text == "partial-success: half of it: small"
        (maker,) = [session for session in answer.tree.sessions if session.agent == "maker"]
        assert (maker.progress, maker.activity) == (50, "making")

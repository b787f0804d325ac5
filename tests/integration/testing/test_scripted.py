"""A scripted session: the real context of an agent, without a server, a socket or a wait."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import pytest

from orchestrator import Context, agent
from orchestrator.errors import InputError, NoReply, Retry, SessionStopped
from orchestrator.testing import (
    Asks,
    Done,
    Failed,
    InProcessStack,
    Never,
    NotScripted,
    ScriptedSession,
    scripted_model,
)

pytest_plugins = ["orchestrator.testing.plugin"]

Scripted = Callable[..., ScriptedSession]
CALLED: list[str] = []


def costly(what: str) -> str:
    CALLED.append(what)
    return f"read {what}"


@agent("lead", role="coordinator")
def lead(ctx: Context) -> str:
    if ctx.cause == "start":
        for part in ctx.prompt.split():
            ctx.delegate("finder", f"find {part}", title=part, group="parts", budget="tokens=9")
        ctx.status(10, "waiting for the finders")
        ctx.state["parts"] = len(ctx.prompt.split())
        ctx.wait_for("all", group="parts")
        return "waiting"
    return f"{ctx.state['parts']}: " + ", ".join(
        f"{c.title}={c.result or c.error}" for c in sorted(ctx.all_results, key=lambda c: c.title)
    )


@agent("stubborn", attempts=3, backoff_s=100, role="coordinator")
async def stubborn(ctx: Context) -> str:
    text = await ctx.astep("read", costly, ctx.prompt)
    ctx.delegate("finder", text)
    if ctx.attempt < 3:
        raise Retry(f"attempt {ctx.attempt}", after_s=1000)
    return text


@pytest.fixture(autouse=True)
def nothing_called() -> None:
    CALLED.clear()


@pytest.fixture(autouse=True)
def no_connection(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is not about a real stack has no connection to anything."""
    if "real_stack" in request.node.name:
        return

    def refuse(*_: object) -> None:
        raise AssertionError("a scripted session has opened a connection")

    for name in ("connect", "connect_ex", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)


def test_a_run_records_what_the_agent_does_and_a_resume_has_what_the_test_says(scripted: Scripted) -> None:
    session = scripted(lead, "a b")
    start = session.run()
    assert (start.status, start.answer) == ("idle", "waiting")
    assert [(e.kind, e.agent, e.text, e.title) for e in start.delegated] == [
        ("delegate", "finder", "find a", "a"),
        ("delegate", "finder", "find b", "b"),
    ]
    assert [(e.facts["group"], e.facts["budget"]) for e in start.delegated] == [("parts", {"tokens": 9})] * 2
    [status] = start.of("status")
    assert (status.text, status.facts["progress"]) == ("waiting for the finders", 10)
    assert session.state == {"parts": 2}
    session.end(start.delegated[0], "A")
    with pytest.raises(NotScripted, match=r"outstanding: finder ses_"):
        session.run()
    session.fail(start.delegated[1], "no source")
    end = session.run()
    assert (end.status, end.answer) == ("finished", "2: a=A, b=no source")
    assert end.effects == ()
    with pytest.raises(NotScripted, match="has finished"):
        session.run()


def test_attempts_that_fail_are_retried_without_waiting_and_steps_are_called_once(scripted: Scripted) -> None:
    began = time.monotonic()
    session = scripted(stubborn, "x")
    run = session.run()
    assert run.answer == "read x"
    assert [(a.how, str(a.error) if a.error else "", a.wait_s) for a in run.attempts] == [
        ("failed", "attempt 1", 1000.0),
        ("failed", "attempt 2", 1000.0),
        ("ended", "", 0.0),
    ]
    assert CALLED == ["x"]
    assert [(e.kind, e.attempt) for e in run.effects] == [("step", 1), ("delegate", 1)]
    assert time.monotonic() - began < 60


def test_an_agent_that_fails_for_good_fails_the_session(scripted: Scripted) -> None:
    @agent("broken", attempts=2)
    def broken(ctx: Context) -> str:
        raise ValueError("no such file")

    run = scripted(broken).run()
    assert (run.status, len(run.attempts)) == ("failed", 2)
    assert isinstance(run.error, ValueError)
    with pytest.raises(AssertionError, match="no such file"):
        _ = run.answer


@pytest.mark.parametrize("point", [1, 2, 3, 4, "step", "delegate", ("delegate", 2), "status"])
def test_a_crash_after_any_effect_doubles_none(scripted: Scripted, point: Any) -> None:
    @agent("crashing", role="coordinator")
    def crashing(ctx: Context) -> str:
        text = ctx.step("read", costly, "x")
        ctx.delegate_all("finder", [text, "more"])
        ctx.status(50, "half")
        return text

    session = scripted(crashing)
    run = session.run(crash_after=point)
    assert [a.how for a in run.attempts] == ["crashed", "ended"]
    assert [(e.kind, e.text) for e in run.effects] == [
        ("step", "read#1"),
        ("delegate", "read x"),
        ("delegate", "more"),
        ("status", "half"),
    ]
    assert CALLED == ["x"]
    assert session.session.launched == 2
    assert run.answer == "read x"


def test_a_crash_that_nothing_leads_to_is_an_error(scripted: Scripted) -> None:
    with pytest.raises(AssertionError, match="no effect to crash after: 'ask'"):
        scripted(lead, "a").run(crash_after="ask")


def test_an_agent_that_swallows_everything_crashes_all_the_same(scripted: Scripted) -> None:
    @agent("deaf", role="coordinator")
    def deaf(ctx: Context) -> str:
        for part in "ab":
            try:
                ctx.delegate("finder", part)
            except BaseException:
                ctx.state["deaf"] = True
        return "done"

    session = scripted(deaf)
    run = session.run(crash_after="delegate")
    assert [a.how for a in run.attempts] == ["crashed", "ended"]
    assert [(e.text, e.attempt) for e in run.effects] == [("a", 1), ("b", 2)]
    assert session.state is None


def test_calls_that_wait_get_what_the_script_says(scripted: Scripted) -> None:
    @agent("caller", role="coordinator")
    def caller(ctx: Context) -> str:
        first = ctx.call("finder", "1", answer=lambda question: f"re: {question.text}")
        second = ctx.call("finder", "2")
        with pytest.raises(TimeoutError):
            ctx.call("finder", "3", timeout_s=3600)
        return f"{first.result} {second.error} {ctx.call('other', 'four').attachment('diff')}"

    session = scripted(
        caller,
        answers={
            "finder": [Asks("which?", then=lambda reply: f"[{reply}]"), Failed("lost"), Never()],
            "*": lambda task: Done(task, attachments={"diff": f"+{task}"}),
        },
    )
    assert session.run().answer == "[re: which?] lost +four"


def test_what_is_not_scripted_is_named_even_if_the_agent_swallows_it(scripted: Scripted) -> None:
    @agent("quiet", role="coordinator")
    def quiet(ctx: Context) -> str:
        try:
            return ctx.call("finder", "1").text
        except Exception:
            return "never mind"

    with pytest.raises(NotScripted, match="waits for 'finder'"):
        scripted(quiet).run()


@agent("asker")
def asker(ctx: Context) -> str:
    name = ctx.ask("Which name?")
    decision = ctx.request_approval("rename", {"to": name}, reason="it is long")
    ctx.sleep(86_400)
    return f"{name}: {decision}"


@pytest.mark.parametrize("parent", ["", "boss"])
def test_questions_approvals_and_sleeps_park_and_finish_answers_them(scripted: Scripted, parent: str) -> None:
    session = scripted(asker, parent=parent, replies="lease.py", decisions=True)
    end = session.finish()
    assert end.answer == "lease.py: approved"
    assert [(e.kind, e.text, e.agent) for e in session.effects if e.kind != "step"] == [
        ("ask", "Which name?", parent or "operator"),
        ("approval", "rename", "operator"),
    ]
    assert session.effects[1].facts["arguments"] == {"to": "lease.py"}


def test_a_test_answers_by_itself(scripted: Scripted) -> None:
    session = scripted(asker)
    asked = session.run()
    assert asked.status == "parked"
    with pytest.raises(NotScripted, match="parked"):
        session.run()
    session.reply(asked.effects[0], "ids.py")
    [approval] = session.run().of("approval")
    session.decide(approval, approved=False, comment="keep it")
    assert session.run().status == "parked"
    session.pass_time(86_399)
    with pytest.raises(NotScripted, match="parked"):
        session.run()
    session.pass_time(2)
    assert session.run().answer == "ids.py: denied: keep it"


def test_a_question_that_is_declined_or_late_raises_in_the_agent(scripted: Scripted) -> None:
    @agent("polite")
    def polite(ctx: Context) -> str:
        said = []
        for question in ("one?", "two?"):
            try:
                said.append(ctx.ask(question, timeout_s=60))
            except NoReply as error:
                said.append(str(error))
        return " / ".join(said)

    session = scripted(polite, parent="boss", replies=[Failed("ask somebody else"), Never()])
    text = session.run().answer
    assert "ask somebody else" in text
    assert "none came within 60 s" in text
    assert [e.kind for e in session.effects] == ["ask", "ask", "withdraw"]


def test_children_ask_and_say_and_users_speak(scripted: Scripted) -> None:
    @agent("host", role="coordinator")
    def host(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("finder", "go")
            return "gone"
        for callback in ctx.callbacks:
            if callback.can_reply:
                ctx.reply(callback, "yes")
        return ctx.prompt

    session = scripted(host)
    [child] = session.run().delegated
    question = session.ask(child, "may I?", kind="clarification")
    session.tell(child, "half done")
    run = session.run()
    assert "may I?" in run.answer
    assert "half done" in run.answer
    assert [(e.kind, e.text, e.facts["answers"]) for e in run.effects] == [("reply", "yes", question)]
    session.end(child, "all done")
    assert session.run().status == "finished"
    session.say("once more")
    assert session.run().answer == "once more"


def test_deadlines_pass_when_the_test_says(scripted: Scripted) -> None:
    @agent("hasty", role="coordinator")
    def hasty(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("finder", "slow")
            ctx.wait_for("all", deadline_s=600)
            return "waiting"
        return f"{len(ctx.missing)} missing"

    session = scripted(hasty)
    session.run()
    with pytest.raises(NotScripted, match="not resumed yet"):
        session.run()
    session.pass_time(601)
    assert session.run().answer == "1 missing"


def test_retries_of_a_step_wait_for_nothing(scripted: Scripted) -> None:
    @agent("flaky")
    def flaky(ctx: Context) -> str:
        def call() -> str:
            CALLED.append("x")
            if len(CALLED) < 4:
                raise OSError("busy")
            return "ok"

        return ctx.step("call", call, retries=5, backoff_s=60)

    began = time.monotonic()
    run = scripted(flaky).run()
    assert run.answer == "ok"
    assert [e.facts["how"] for e in run.effects] == ["retry", "retry", "retry", "done"]
    assert time.monotonic() - began < 30


def test_a_stop_is_heard_by_the_next_effect(scripted: Scripted) -> None:
    sessions: list[ScriptedSession] = []

    @agent("slow")
    def slow(ctx: Context) -> str:
        ctx.status(1, "one")
        sessions[0].stop("enough")
        while not ctx.stopping:  # the heartbeat hears of it
            time.sleep(0.01)
        with pytest.raises(SessionStopped):
            ctx.status(2, "two")
        raise SessionStopped(ctx.session, ctx.stopping)

    sessions.append(scripted(slow, heartbeat_s=0.1))
    run = sessions[0].run()
    assert (run.status, [e.text for e in run.effects]) == ("stopped", ["one"])


def test_arguments_are_checked_as_in_a_stack(scripted: Scripted) -> None:
    @agent("sloppy", role="coordinator")
    def sloppy(ctx: Context) -> str:
        for wrong in (
            lambda: ctx.delegate("", "x"),
            lambda: ctx.delegate("finder", "x", priority="soon"),  # type: ignore[arg-type]
            lambda: ctx.wait_for("quorum"),
            lambda: ctx.status(101),
            lambda: ctx.step("a#b", lambda: 1),
            lambda: ctx.ask(" "),
            lambda: ctx.message("parent", "hello"),
        ):
            with pytest.raises(InputError):
                wrong()  # type: ignore[no-untyped-call]
        return "all refused"

    run = scripted(sloppy).run()
    assert run.answer == "all refused"
    assert run.effects == ()


def test_a_model_agent_runs_with_its_tools(scripted: Scripted) -> None:
    pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")
    from orchestrator import model_agent
    from orchestrator.testing import Call, Say, Script

    script = Script(
        Say(calls=[Call("delegate", agent="finder", task="find it", wait=True)]),
        lambda request: Say("found" if "it is here" in request.last else "lost"),
    )
    model = model_agent("thinker", role="coordinator", model=scripted_model(script), instructions="You lead.")
    session = scripted(model, "Where?", answers={"finder": "it is here"})
    run = session.run(crash_after="delegate")
    assert session.finish().answer == "found"
    assert [a.how for a in run.attempts] == ["crashed", "ended"]
    assert [(e.agent, e.text) for e in run.delegated] == [("finder", "find it")]


def test_a_tool_of_a_model_may_park_its_run(scripted: Scripted) -> None:
    """It waits for a person as a function does, and is no tool that failed."""
    pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")
    from orchestrator import model_agent
    from orchestrator.testing import Call, Say, Script

    def rename(ctx: Context, to: str) -> str:
        ctx.sleep(86_400)
        return f"renamed to {to}: {ctx.request_approval('rename', {'to': to})}"

    script = Script(Say(calls=[Call("rename", to="x.py")]), lambda request: Say(request.last))
    session = scripted(
        model_agent("renamer", model=scripted_model(script), tools=[rename]), "Go.", decisions=True
    )
    assert session.run().status == "parked"
    session.pass_time(86_400)
    assert session.finish().answer == "renamed to x.py: approved"


# --- the scripted session and a real stack ---------------------------------------------------------

EVERY_METHOD: dict[str, Callable[[Context], Any]] = {
    "agents": lambda ctx: [a.name for a in ctx.agents()],
    "all_results": lambda ctx: [c.text for c in ctx.all_results],
    "delegate": lambda ctx: len(ctx.delegate("finder", "1", title="one", group="g", on_close="abandon")),
    "delegate_all": lambda ctx: len(ctx.delegate_all("finder", ["2", "3"])),
    "outstanding": lambda ctx: ctx.outstanding,
    "waits": lambda ctx: ctx.waits,
    "has_launched": lambda ctx: ctx.has_launched,
    "call": lambda ctx: ctx.call("finder", "4").text,
    "collect": lambda ctx: sorted(c.text for c in collected(ctx)),
    "read_result": lambda ctx: ctx.read_result(ctx.all_results[0].session, length=3).text,
    "get_status": lambda ctx: ctx.get_status().status,
    "ask": lambda ctx: ctx.ask("Which?"),
    "raise_callback": lambda ctx: ctx.raise_callback("May I?"),
    "ask_later": lambda ctx: ctx.ask_later("And then?")[:4],
    "post_question": lambda ctx: ctx.post_question({"message": "Who?"})[:4],
    "reply_to": lambda ctx: ctx.reply_to(ctx.post_question({"message": "When?"}), timeout_s=20).text,  # type: ignore[union-attr]
    "reply": lambda ctx: refused(lambda: ctx.reply("ask_none", "text")),
    "message": lambda ctx: ctx.message("parent", "hello")[:4],
    "escalate": lambda ctx: ctx.escalate("too hard"),
    "request_review": lambda ctx: len(ctx.request_review("look")),
    "status": lambda ctx: ctx.status(5, "busy", blockers=["slow"]),
    "report_error": lambda ctx: ctx.report_error({"message": "odd", "severity": "warning"}),
    "attach": lambda ctx: ctx.attach("notes", "text"),
    "step": lambda ctx: ctx.step("sum", sum, [1, 2]),
    "step_key": lambda ctx: ctx.step("key", lambda: ctx.step_key.startswith(ctx.run)),
    "now_ms": lambda ctx: ctx.now_ms() > 0,
    "wait_for": lambda ctx: ctx.wait_for("any", window_s=0),
    "new_waiting": lambda ctx: ctx.new_waiting,
    "new_state": lambda ctx: ctx.new_state,
    "when_closed": lambda ctx: ctx.when_closed("stop"),
    "carry_out": lambda ctx: ctx.carry_out("[]"),
    "correct": lambda ctx: ctx.correct("too short"),
    "check": lambda ctx: ctx.check(),
    "claim_lost": lambda ctx: ctx.claim_lost,
    "stopping": lambda ctx: ctx.stopping,
    "patience_s": lambda ctx: ctx.patience_s > 0,
    "has_caller": lambda ctx: ctx.has_caller,
    "parse_callbacks": lambda ctx: ctx.parse_callbacks("nothing"),
    "read_memory": lambda ctx: ctx.read_memory(),
    "live": lambda ctx: ctx.live.earlier(ctx.session, ctx.run),
    "write_live": lambda ctx: ctx.write_live("text", text="said"),
}
#: What ends or parks the run, or needs an event loop: shown by the tests above.
ELSEWHERE = {
    "astep",
    "decision",
    "end_with",
    "environment",
    "post_approval",
    "report_status",
    "request_approval",
    "sleep",
    "sleep_until",
}


def collected(ctx: Context) -> Any:
    brought: Any = ()
    while len(brought) < 3:
        brought = ctx.collect(timeout_s=20, known=[c.id for c in brought]).callbacks
    return brought


def refused(call: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        call()
    return type(caught.value).__name__


SEEN: list[dict[str, Any]] = []


@agent("every", role="coordinator")
def every(ctx: Context) -> str:
    """Use each public name of the context once."""
    if ctx.cause == "start":
        assert type(ctx) is Context
        SEEN.append({name: use(ctx) for name, use in EVERY_METHOD.items()})
    return "done"


@agent("finder")
def finder(ctx: Context) -> str:
    return f"found {ctx.prompt}"


@agent("boss", role="coordinator")
def boss(ctx: Context) -> str:
    if ctx.cause == "start":
        ctx.delegate("every", "go")
        return "delegated"
    for callback in ctx.callbacks:
        if callback.can_reply:
            ctx.reply(callback, "so")
    return "heard"


@agent("code-reviewer")
def reviewer(ctx: Context) -> str:
    return "fine"


def test_every_public_name_of_the_context_is_used_here() -> None:
    public = {name for name in dir(Context) if not name.startswith("_")}
    public -= {name for name in public if isinstance(getattr(Context, name), cached_property)}
    assert public == EVERY_METHOD.keys() | ELSEWHERE | {"traceparent"}  # that one in tests/telemetry


def test_a_scripted_session_and_a_real_stack_do_the_same(scripted: Scripted) -> None:
    with InProcessStack([boss, every, finder, reviewer]) as stack:
        answer = stack.run("boss", "go")
        answer.tree.assert_settled()
        [real] = [s for s in answer.tree.sessions if s.agent == "every"]
        real_items = {(c.agent, c.title) for c in answer.tree.children(real.id)}
    session = scripted(
        every,
        "go",
        parent="boss",
        replies="so",
        answers={"finder": lambda task: f"found {task}", "code-reviewer": "fine"},
    )
    assert session.finish().status == "finished"
    on_stack, in_script = SEEN[-2:]
    assert in_script == on_stack
    assert {(e.agent, e.title) for e in session.effects if e.kind in ("delegate", "review")} == real_items
    assert session.session.launched == real.launched

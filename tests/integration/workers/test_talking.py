"""What agents say to each other: questions, replies, messages, and calls that wait for an answer."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import InputError, NoReply, WrongState
from orchestrator.ledger import ItemState, SessionState
from orchestrator.policy.callback import Callback
from orchestrator.redisdb import keys
from orchestrator.worker.context.context import Context
from tests.kit import Kit
from tests.waiting import wait_until
from tests.workers import Workers


def events(kit: Kit) -> list[dict[str, Any]]:
    file = kit.settings.data / "_events.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def asking_tree(kit: Kit, *, wait: bool = True, **question: Any) -> list[Callback]:
    """A parent that answers whatever it is asked, and a child that asks once; what the parent is told."""

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        if ctx.cause == "callbacks":
            (reply,) = ctx.callbacks
            return f"told later {reply.text!r}"
        answer = ctx.raise_callback("which one?", wait=wait, **question)
        return f"told {answer!r}" if wait else "asked"

    return kit.lead("worker: do it", reply=lambda asked: f"about {asked.text}: yes")


@pytest.mark.parametrize(("wait", "runs"), [(True, 1), (False, 2)])
def test_a_question_is_answered_in_its_run_or_by_a_resume(
    kit: Kit, workers: Workers, wait: bool, runs: int
) -> None:
    """The latter is the default for agents that are text: nothing is held while the answer is awaited."""
    said = asking_tree(kit, wait=wait, context={"tried": ["a", "b"]})
    root = kit.submit("lead")
    answer = f"told {'' if wait else 'later '}'about which one?: yes'"
    assert workers.answer(root) == answer
    assert [(c.kind, c.agent, c.text) for c in said] == [
        ("query", "worker", "which one?"),
        ("completion", "worker", answer),
    ]
    assert said[0].context == {"tried": ["a", "b"]}
    (child,) = kit.children(root)
    assert child.runs == runs


def test_every_question_is_an_event_and_an_envelope(kit: Kit, workers: Workers) -> None:
    said = asking_tree(kit, callback_type="blocker", context={"file": "a.py"}, priority="low")
    root = kit.submit("lead")
    workers.finish(root)
    (event,) = events(kit)
    assert event["event_type"] == "AGENT_CALLBACK"
    assert event["timestamp"].endswith("Z")
    (child,) = kit.children(root)
    assert event["data"] == {
        "from": "worker",
        "to": "lead",
        "type": "blocker",
        "message": "which one?",
        "id": said[0].id,
        "priority": "critical",
        "session": child.id,
        "parent": root,
        "context": {"file": "a.py"},
    }
    (query,) = kit.redis.xrange(keys.messages(0, "query", "critical"))
    (reply,) = kit.redis.xrange(keys.messages(0, "reply", "high"))
    assert b"type: blocker" in query[1][b"envelope"]
    item = kit.ledger.item(root, said[0].id)
    assert f"<in-reply-to>{item.extra['message']}</in-reply-to>".encode() in reply[1][b"envelope"]


@pytest.mark.parametrize(
    ("kind", "seen"),
    [
        ("weather", "weather"),
        ("completion", "agent-completion"),
        ("prompt", "agent-prompt"),
        ("  ", "query"),
        ("Re-ply", "agent-Re-ply"),
        ("escalation", "agent-escalation"),
        ("blocker", "blocker"),
    ],
)
def test_any_type_passes_through_and_none_is_taken_for_what_it_is_not(
    kit: Kit, workers: Workers, kind: str, seen: str
) -> None:
    said = asking_tree(kit, callback_type=kind)
    root = kit.submit("lead")
    assert workers.answer(root).startswith("told 'about")
    assert said[0].kind == seen
    assert kit.ledger.session(root).launched == kit.ledger.session(root).delivered == 1


def test_a_root_has_no_parent_to_raise_a_callback_to(kit: Kit, workers: Workers) -> None:
    """What it asks it asks the user: see `test_ask_user.py`."""

    kit.agent("lead", role="coordinator")(lambda ctx: repr(ctx.raise_callback("anyone?")))
    assert workers.answer(kit.submit("lead")) == "None"
    assert events(kit) == []


#: A value that JSON cannot say.
CIRCLE: dict[str, Any] = {}
CIRCLE["itself"] = CIRCLE


@pytest.mark.parametrize(
    "wrong",
    [
        {"message": None},
        {"message": b"which?"},
        {"message": "  "},
        {"message": "which?", "context": CIRCLE},
        {"message": "which?", "callback_type": 5},
        {"message": "which?", "priority": 5},
        {"message": "which?", "timeout_s": "5"},
        {"message": "which?", "timeout_s": float("nan")},
    ],
    ids=str,
)
def test_a_wrong_value_asks_nothing_and_is_not_raised_either(
    kit: Kit, workers: Workers, wrong: dict[str, Any]
) -> None:
    """Nor is a question left open that nobody would hear the answer of."""
    said = kit.lead("worker: do it", answer=lambda ctx: repr(ctx.raise_callback(**wrong)))
    kit.agent("worker")(lambda ctx: repr(ctx.raise_callback(**wrong)))
    assert workers.answer(kit.submit("lead")) == "None"
    assert [(c.kind, c.text) for c in said] == [("completion", "None")]


def test_a_question_that_nobody_answers_in_time_is_withdrawn(kit: Kit, workers: Workers) -> None:
    """The session can finish; what was not read yet is never read."""
    busy = threading.Event()

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "do it")
            assert busy.wait(60)
        return ",".join(f"{c.kind}:{c.text}" for c in ctx.callbacks)

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        began = time.monotonic()
        with pytest.raises(NoReply, match=r"none came within 0\.1 s"):
            ctx.ask("quick?", timeout_s=0.1)
        assert ctx.raise_callback("quick?", timeout_s=0.1) is None
        assert time.monotonic() - began < 5
        busy.set()
        return "went on"

    root = kit.submit("lead")
    assert workers.answer(root) == "completion:went on"
    questions = [i for i in kit.ledger.items(root) if i.kind == "query"]
    assert [i.state for i in questions] == [ItemState.DEAD, ItemState.DEAD]
    assert all(i.reason.startswith("no reply in time") for i in questions)


def test_a_question_that_nobody_answers_does_not_cost_its_asker_the_run(
    kit: Kit, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a limit of its own it waits for a share of the run's time, and leaves the agent the rest."""
    monkeypatch.setattr("orchestrator.worker.context.messaging._WAIT_SHARE", 0.1)
    kit.lead("worker: do it", reply=None)

    @kit.agent("worker", time_limit_s=10)
    def worker(ctx: Context) -> str:
        assert ctx.raise_callback("anybody?") is None
        return "went on without"

    root = kit.submit("lead")
    assert workers.answer(root) == "went on without"
    (child,) = kit.children(root)
    assert child.questions == ()


def test_a_reply_that_comes_too_late_is_told_so(kit: Kit, workers: Workers) -> None:
    replied: list[bool] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "do it")
        for callback in ctx.callbacks:
            if callback.kind == "query":
                asker = callback.session
                wait_until(lambda asker=asker: not kit.ledger.session(asker).questions, "a withdrawal")
                replied.append(ctx.reply(callback.id, "late"))
        return "done"

    kit.agent("worker")(lambda ctx: repr(ctx.raise_callback("quick?", timeout_s=0.5)))
    workers.finish(kit.submit("lead"))
    assert replied == [False]


def test_only_what_one_was_asked_can_be_answered(kit: Kit, workers: Workers) -> None:
    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "do it")
            with pytest.raises(InputError, match="not a question that session"):
                ctx.reply("ask_" + "0" * 38, "yes")
            return ""
        with pytest.raises(InputError, match="is not a question"):
            ctx.reply(ctx.callbacks[0], "thanks")
        return "right"

    kit.agent("worker")(lambda _: "done")
    assert workers.answer(kit.submit("lead")) == "right"


@pytest.mark.parametrize("wait", [True, False])
def test_a_parent_that_waits_for_a_child_cannot_be_asked_by_it_and_says_so_at_once(
    kit: Kit, workers: Workers, wait: bool
) -> None:
    """Both forms of asking: neither waits for somebody who waits for it."""

    kit.agent("lead", role="coordinator")(lambda ctx: ctx.call("worker", "do it").result)

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        if ctx.cause == "callbacks":
            return f"{ctx.callbacks[0].status}: {ctx.callbacks[0].text}"
        return f"told {ctx.raise_callback('which one?', wait=wait)}"

    answer = workers.answer(kit.submit("lead"))
    why = "no reply will come: agent 'lead' waits for this session to end"
    assert answer == ("told None" if wait else f"failed: {why}")


def test_a_call_may_answer_what_the_child_asks(kit: Kit, workers: Workers) -> None:
    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        done = ctx.call("worker", "do it", answer=lambda c: f"{c.agent} asked {c.text!r}")
        assert (done.kind, done.status, done.agent) == ("completion", "completed", "worker")
        return done.result

    kit.agent("worker")(lambda ctx: f"{ctx.ask('first?')}; {ctx.ask('second?')}")
    root = kit.submit("lead")
    assert workers.answer(root) == "worker asked 'first?'; worker asked 'second?'"
    assert kit.ledger.session(root).runs == 1


def test_a_call_returns_the_end_of_a_child_and_delivers_it_once(kit: Kit, workers: Workers) -> None:
    """Completed or failed; the children of the child included; by the run that called."""

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        good, bad = ctx.call("middle", "good"), ctx.call("middle", "bad")
        assert [good.status, bad.status] == ["completed", "failed"]
        assert [c.text for c in ctx.all_results] == [good.result, bad.error]
        return f"{good.result} / {bad.error}"

    @kit.agent("middle", role="coordinator")
    def middle(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", ctx.prompt, on_failure="fail")
            return "waiting"
        return f"middle heard {ctx.all_results[0].result}"

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        if ctx.prompt == "bad":
            raise ValueError("no luck")
        return ctx.prompt

    root = kit.submit("lead")
    answer = workers.answer(root)
    assert answer.startswith("middle heard good / ")
    assert "no luck" in answer
    session = kit.ledger.session(root)
    assert (session.runs, session.launched, session.delivered) == (1, 2, 2)


def test_a_call_that_takes_too_long_leaves_its_child_to_come_back_as_a_callback(
    kit: Kit, workers: Workers
) -> None:
    gate = threading.Event()

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            with pytest.raises(TimeoutError, match=r"has not ended after 0\.05 s"):
                ctx.call("worker", "do it", timeout_s=0.05)
            gate.set()
            return "gave up"
        return f"later: {ctx.callbacks[0].result}"

    @kit.agent("worker")
    def worker(_: Context) -> str:
        assert gate.wait(60)
        return "here"

    assert workers.answer(kit.submit("lead")) == "later: here"


def test_a_stop_reaches_a_run_that_waits(kit: Kit, workers: Workers) -> None:
    workers.held_back = lambda dispatch: dispatch.agent == "worker"

    kit.agent("lead", role="coordinator")(lambda ctx: ctx.call("worker", "never").text)
    kit.agent("worker")(lambda _: "")
    root = kit.submit("lead")
    wait_until(lambda: kit.children(root), "the child")
    kit.ledger.stop(root, "enough")
    assert workers.finish(root, timeout_s=60).state is SessionState.STOPPED
    assert kit.ledger.session(root).reason == "enough"


def test_messages_go_to_parents_and_children_and_need_no_answer(kit: Kit, workers: Workers) -> None:
    heard: list[tuple[str, str, str]] = []
    ready = threading.Event()

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        heard.extend(("lead", c.kind, c.text) for c in ctx.callbacks)
        if ctx.cause == "start":
            child = ctx.delegate("worker", "do it")
            assert ctx.message(child, "one more thing").startswith("itm_")
            with pytest.raises(InputError, match="is a root"):
                ctx.message("parent", "hello")
            with pytest.raises(InputError, match="neither the parent nor a child"):
                ctx.message(ctx.session, "hello")
            ready.set()
        return "done"

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        heard.extend(("worker", c.kind, c.text) for c in ctx.callbacks)
        if ctx.cause == "start":
            assert ready.wait(60)
            ctx.message("parent", "halfway")
        return f"run for {ctx.cause}"

    root = kit.submit("lead")
    assert workers.answer(root) == "done"
    assert sorted(heard) == [
        ("lead", "completion", "run for callbacks"),
        ("lead", "message", "halfway"),
        ("worker", "message", "one more thing"),
    ]


def test_a_message_to_a_session_that_is_closed_is_refused(kit: Kit, workers: Workers) -> None:
    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "do it")
            return ""
        with pytest.raises(WrongState, match="will not run again"):
            ctx.message(ctx.callbacks[0].session, "too late")
        return "refused"

    @kit.agent("worker")
    def worker(_: Context) -> str:
        raise ValueError("no luck")

    assert workers.answer(kit.submit("lead")) == "refused"


def documented(name: str) -> Any:
    """The agent of that name in the how-to, as it is printed there."""
    text = (Path(__file__).parents[3] / "docs" / "howto" / "questions.md").read_text(encoding="utf-8")
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if f"def {name}(" in c]
    found: dict[str, Any] = {"agent": lambda *_, **__: lambda function: function}
    exec(code, found)
    return found[name]


def test_the_documented_manager_hears_messages_and_questions(kit: Kit, workers: Workers) -> None:
    """What asks nothing is not answered, and does not fail it."""
    kit.agent("manager", role="coordinator")(documented("manager"))

    @kit.agent("developer")
    def developer(ctx: Context) -> str:
        ctx.message("parent", "half of it is done")
        return f"told {ctx.raise_callback('create it?', 'blocker')!r}"

    assert workers.answer(kit.submit("manager")) == "told 'yes, from the template'"


@pytest.mark.parametrize("wait", [True, False])
def test_a_parent_that_raises_at_a_question_stops_nobody(kit: Kit, workers: Workers, wait: bool) -> None:
    """The question is answered with the failure, its asker goes on, and so does the parent, with all it is owed."""
    tries: list[str] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "do it")
        for callback in ctx.callbacks:
            tries.append(callback.kind)
            if callback.can_reply:
                raise ValueError("no idea")
        return ",".join(c.text for c in ctx.all_results)

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        if ctx.cause == "callbacks":
            (reply,) = ctx.callbacks
            return f"{reply.status}: {reply.text}"
        if wait:
            with pytest.raises(NoReply, match="failed at the question: ValueError: no idea"):
                ctx.ask("which one?")
            return "went on"
        ctx.raise_callback("which one?", wait=False)
        return "asked"

    root = kit.submit("lead")
    answer = workers.answer(root)
    if wait:
        assert answer == "went on"
    else:
        assert answer.startswith(
            "failed: no reply will come: agent 'lead' failed at the question: ValueError: no idea"
        )
    assert tries == ["query", "completion"]
    (child,) = kit.children(root)
    assert (child.state, child.questions) == (SessionState.FINISHED, ())
    assert [r.state.value for r in kit.ledger.runs(root)] == ["completed", "failed", "completed"]
    (reply,) = kit.redis.xrange(keys.messages(0, "reply", "high"))
    assert b"failed at the question" in reply[1][b"envelope"]


def test_a_session_that_had_its_answer_keeps_it_when_it_fails_at_a_question(
    kit: Kit, workers: Workers
) -> None:
    """A child that owes its parent nothing asks one that has finished."""

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "do it", callback=False)
            return "mine"
        raise ValueError("no idea")

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        wait_until(lambda: kit.ledger.session(ctx.parent).state is SessionState.FINISHED, "its parent's end")
        return repr(ctx.raise_callback("which one?"))

    root = kit.submit("lead")
    workers.finish(root)
    (child,) = kit.children(root)
    assert workers.answer(child.id) == "None"
    assert workers.answer(root) == "mine"


def test_a_call_whose_answer_raises_goes_on(kit: Kit, workers: Workers) -> None:
    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        def answer(_: Callback) -> str:
            raise ValueError("no idea")

        return ctx.call("worker", "do it", answer=answer).result

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        with pytest.raises(NoReply, match="failed at the question: ValueError: no idea"):
            ctx.ask("which one?")
        return "went on"

    assert workers.answer(kit.submit("lead")) == "went on"

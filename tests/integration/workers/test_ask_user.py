"""A root asks the user: the run waits without its slot, for as long as it takes, and goes on with the reply."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.audit import AuditStore, AuditWriter
from orchestrator.audit.store import Changes
from orchestrator.client.client import Client
from orchestrator.doctor import Severity
from orchestrator.envelope.bodies import Query
from orchestrator.envelope.prompt_text import unpack_body
from orchestrator.errors import InputError, NoReply, UnknownSession, WrongState
from orchestrator.ids import reply_id
from orchestrator.ledger import ItemState, RunRef, SessionState
from orchestrator.redisdb import keys
from orchestrator.streams import all_streams
from orchestrator.worker.context.context import Context
from tests.examined import doctor_of
from tests.kit import Kit
from tests.transitions import disagreements
from tests.workers import Workers

from .conftest import Calls, made_ready
from .test_gateway import remote


def asks(kit: Kit, calls: Calls, **options: float) -> tuple[str, RunRef]:
    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        ctx.step("plan", calls.of("plan"))
        try:
            answer = ctx.ask("Ship it?", context={"version": "1.2"}, **options)  # type: ignore[arg-type]
        except NoReply as error:
            return f"none: {error.args[1]}"
        return f"answer: {answer}"

    dispatch = kit.start(kit.submit("lead"))
    assert kit.execute(dispatch) == "parked"
    return dispatch.session, dispatch


def test_it_is_listed_and_its_reply_resumes_the_run(kit: Kit, client: Client, calls: Calls) -> None:
    session, dispatch = asks(kit, calls)
    (question,) = client.questions()
    assert (question.session, question.agent, question.text) == (session, "lead", "Ship it?")
    assert question.context == {"version": "1.2"}
    assert client.questions(session) == [question]
    assert not made_ready(kit, dispatch)
    assert kit.execute(dispatch) == "refused"
    (parked,) = [event.text for event in client.history(session) if event.what == "attempt"]
    assert parked.endswith(f"waits for a user's reply to {question.id}, without its slot; tried again")
    assert client.reply(question.id, "yes") == session
    assert client.questions() == []
    with pytest.raises(WrongState, match="not open"):
        client.reply(question.id, "no")
    assert made_ready(kit, dispatch)
    assert kit.execute(dispatch) == "finished"
    assert kit.answer(session) == "answer: yes"
    assert calls.made == {"plan": 1}
    (asked,) = [item for item in kit.ledger.items(session) if item.id == question.id]
    assert (asked.state, asked.reason) == (ItemState.DEAD, "answered by the operator")


def test_it_says_what_was_tried_and_the_next_one_comes_after_its_reply(kit: Kit, client: Client) -> None:
    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        first = ctx.ask("Which key?", attempted=["the old one"], urgency="critical")
        return first + ctx.ask("And now?")

    session = kit.submit("lead")
    dispatch = kit.start(session)
    for text, reply in (("Which key?", "this"), ("And now?", "go")):
        assert kit.execute(dispatch) == "parked"
        (question,) = client.questions(session)
        assert question.text == text
        client.reply(question.id, reply)
        assert made_ready(kit, dispatch)
    assert kit.execute(dispatch) == "finished"
    assert kit.answer(session) == "thisgo"
    items = {kit.ledger.texts(session, [item.id])[item.id]: item for item in kit.ledger.items(session)}
    asked = unpack_body(str(items["Which key?"].extra["body"]), "")
    assert isinstance(asked, Query)
    assert asked.context is not None
    assert [tried.text for tried in asked.context.attempted_solutions] == ["the old one"]
    assert items["Which key?"].priority == "critical"
    (after,) = [
        message
        for priority in ("high", "normal", "critical")
        for _, fields in kit.redis.xrange(keys.messages(0, "query", priority))
        if "And now?" in (message := fields[b"envelope"].decode())
    ]
    assert str(items["this"].extra["message"]) in after


def test_a_worker_that_is_lost_with_the_reply_gets_it_again(kit: Kit, client: Client) -> None:
    @kit.agent("lead", attempts=3)
    def lead(ctx: Context) -> str:
        answer = ctx.ask("Ship it?")
        if ctx.attempt == 2:
            raise ValueError("boom")
        return answer

    session = kit.begin("lead", ends="parked")
    (question,) = client.questions()
    client.reply(question.id, "yes")
    assert kit.again(session) == "retry"
    assert kit.again(session) == "finished"
    assert kit.answer(session) == "yes"


def test_its_time_limit_ends_the_wait(kit: Kit, client: Client, calls: Calls) -> None:
    session, dispatch = asks(kit, calls, timeout_s=0.2)
    while not made_ready(kit, dispatch):
        pass
    assert client.questions() == []
    assert kit.execute(dispatch) == "finished"
    assert kit.answer(session).startswith("none: no reply will come: its time is over")


def test_stop_ends_it_and_leaves_no_question(kit: Kit, client: Client, calls: Calls) -> None:
    session, dispatch = asks(kit, calls)
    (question,) = client.questions()
    assert client.stop(session).outcome == "ended"
    assert client.session(session).state is SessionState.STOPPED
    assert client.questions() == []
    with pytest.raises(WrongState):
        client.reply(question.id, "yes")
    assert kit.execute(dispatch) == "refused"


def test_ask_later_leaves_the_session_idle_until_the_reply(kit: Kit, client: Client) -> None:
    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.ask_later("Ship it?")
            return "asked"
        (reply,) = ctx.callbacks
        return f"{reply.kind}: {reply.text}"

    session = kit.begin("lead", ends="idle")
    (question,) = client.questions()
    client.reply(question.id, "yes")
    assert kit.play(session) == "finished"
    assert kit.answer(session) == "reply: yes"


def test_another_try_that_does_not_ask_again_withdraws_it(kit: Kit, client: Client) -> None:
    @kit.agent("lead", attempts=2)
    def lead(ctx: Context) -> str:
        if ctx.attempt == 1:
            ctx.ask_later("Ship it?")
            raise ValueError("boom")
        return "decided"

    session = kit.begin("lead", ends="retry")
    assert len(client.questions()) == 1
    assert kit.again(session) == "finished"
    assert client.questions() == []
    (item,) = kit.ledger.items(session)
    assert (item.state, item.reason) == (ItemState.DEAD, "not asked again when its run was tried again")


def test_the_envelope_is_signed_for_the_operator_and_routed(kit: Kit, client: Client, calls: Calls) -> None:
    asks(kit, calls)
    ((_, entry),) = kit.redis.xrange(keys.messages(0, "query", "normal"))
    assert b"<agent-name>operator</agent-name>" in entry[b"envelope"]
    handled = kit.route(types=["query"])
    assert (handled.done, handled.dead, handled.parked) == (1, 0, 0)


def test_the_doctor_names_who_is_waited_for_and_finds_no_fault(
    kit: Kit, client: Client, calls: Calls
) -> None:
    session, _ = asks(kit, calls)
    doctor = doctor_of(kit)
    blocker = doctor.why(session)[1]
    (question,) = client.questions()
    assert blocker.mover == f"you: orchestra reply {question.id} TEXT"
    found = [p for p in doctor.examine(watch_leases=False).findings if p.session == session]
    assert [p for p in found if p.severity is Severity.BREAK or p.rule == "late"] == []


def test_a_question_that_nobody_could_read_is_refused(kit: Kit) -> None:
    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        for wrong in ("", " ", "x" * 70_000):
            with pytest.raises(InputError):
                ctx.ask(wrong)
        return "done"

    kit.begin("lead", ends="finished")


def test_a_program_of_a_root_asks_the_user_too(kit: Kit, client: Client) -> None:
    """It keeps its slot meanwhile, as it is a process that waits."""

    @kit.agent("tool")
    def tool(ctx: Context) -> str:
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(remote(ctx).ask, "Ship it?")
            while not (open_now := client.questions()):
                assert not answer.done()
            client.reply(open_now[0].id, "yes")
            return str(answer.result(timeout=20))

    session = kit.begin("tool", ends="finished")
    assert kit.answer(session) == "yes"


def test_the_trail_has_each_state_of_a_question_and_of_an_approval(kit: Kit, client: Client) -> None:
    """Asked, answered, told, and what became of the one that nobody answered."""

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.ask_later("Ship it?")
            ctx.ask_later("And then?")
            ctx.approvals.post("deploy", {"version": 1})
            ctx.approvals.post("publish")
        return "done"

    root = kit.begin("lead")
    question, left = sorted(
        (one for one in kit.ledger.items(root) if one.kind == "query"), key=lambda one: one.seq
    )
    approved, denied = client.approvals(root)
    client.reply(question.id, "yes")
    client.approve(approved.id)
    client.deny(denied.id)
    client.stop(root)
    store = AuditStore(kit.settings.audit_database)
    while AuditWriter(kit.redis, store, consumer="a1", sources=all_streams()).run_once():
        pass
    assert disagreements(kit.ledger, store, [root]) == []
    said: dict[str, list[str]] = {}
    for change in Changes(store).of(root):
        said.setdefault(change.id, []).append(f"{change.kind} {change.state} by {change.by}")
    assert said[question.id][0] == "item asked by post"
    assert said[left.id][0] == "item asked by post"
    for one in (approved, denied):
        assert said[one.id] == ["approval delivered by post", "approval answered by post"]
    assert said[reply_id(question.id)][0] == "item queued by post"


# --- A user answers an agent's question: once, and whoever was asked is spared it.


def busy_parent(kit: Kit) -> tuple[str, str]:
    """A child that asked by ending its run, and its parent that has not run since; the question's id."""
    kit.lead(
        "worker: do it",
        reply=None,
        answer=lambda ctx: ",".join(f"{c.kind} {c.text}" for c in ctx.callbacks),
    )

    @kit.agent("worker")
    def worker(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.raise_callback("which one?", wait=False)
            return "asked"
        (reply,) = ctx.callbacks
        assert reply.question.startswith("ask_")
        return f"{reply.agent} says {reply.text}"

    root = kit.begin("lead")
    (child,) = kit.children(root)
    assert kit.play(child.id) == "idle"
    (question,) = kit.ledger.session(child.id).questions
    return root, question


def test_the_answer_resumes_who_asked_and_spares_who_was_asked(kit: Kit, client: Client) -> None:
    root, question = busy_parent(kit)
    (child,) = kit.children(root)
    assert client.reply(question, "the left one") == child.id
    item = kit.ledger.item(root, question)
    assert (item.state, item.reason) == (ItemState.DEAD, "answered by the operator")
    lines = [event.text for event in client.history(root)]
    assert any(line.endswith("closed: answered by the operator") for line in lines), lines
    with Workers(kit) as workers:
        assert workers.answer(root) == "completion operator says the left one"
    with pytest.raises(WrongState, match="has its reply, or was withdrawn"):
        client.reply(question, "or the right one")


def test_what_is_no_open_question_cannot_be_answered(kit: Kit, client: Client) -> None:
    _, question = busy_parent(kit)
    with pytest.raises(InputError, match="is not the id of a question"):
        client.reply("ses_00", "x")
    with pytest.raises(InputError, match="is empty"):
        client.reply(question, "  ")
    with pytest.raises(UnknownSession):
        client.reply("ask_00" + "0" * 36, "x")
    with pytest.raises(WrongState, match="is not open"):
        client.reply(question[:-12] + "0" * 12, "x")

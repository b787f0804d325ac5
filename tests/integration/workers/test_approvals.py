"""Approvals in the ledger: who may answer, in which time, and what becomes of those that nobody answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from orchestrator import Approval, Client, Decision, agent
from orchestrator.errors import ApprovalRefused, LimitExceeded, WrongState
from orchestrator.ids import decision_id
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.client import connect
from orchestrator.router.deadletters.store import DeadLetters
from orchestrator.streams import ROUTER_GROUP, RedisStreams, all_streams
from orchestrator.testing.stack import InProcessStack
from orchestrator.worker.context.context import Context
from tests.examined import doctor_of
from tests.kit import Kit
from tests.waiting import wait_until

from .conftest import made_ready
from .test_gateway import remote

DAY_MS = 86_400_000


class Place:
    """One session of an agent that asks, and the hands that move it."""

    def __init__(self, kit: Kit, client: Client) -> None:
        self.kit, self.client = kit, client
        self.steps: list[str] = []
        self.seen: list[Decision] = []
        self.now = kit.ledger.server_ms()

    def ask(self, *, ends: str = "parked", **terms: Any) -> str:
        """Submit to an agent that asks twice, one after the other; its session, whose run is parked."""

        @self.kit.agent("ops")
        def ops(ctx: Context) -> str:
            ctx.step("plan", self.steps.append, "plan")
            self.seen = []
            for version in (1, 2):
                decision = ctx.request_approval("deploy", {"version": version}, **terms)
                self.seen.append(decision)
                if decision.approved:
                    ctx.step("deploy", self.steps.append, f"deploy {version}")
            return "; ".join(map(str, self.seen))

        return self.begin("ops", ends=ends)

    def begin(self, agent: str, *, ends: str = "parked") -> str:
        """Submit to an agent whose first run ends so; its session."""
        self.session = self.kit.submit(agent)
        self.run = self.kit.start(self.session)
        assert self.kit.execute(self.run) == ends
        return self.session

    def before_the_commit(self, act: Callable[[], Any]) -> None:
        """Have this happen between the last look of a run and the commit that parks it."""
        ledger = self.kit.ledger
        commit = ledger.commit_all

        def first_act(*args: Any, **given: Any) -> Any:
            ledger.commit_all = commit  # type: ignore[method-assign]
            act()
            return commit(*args, **given)

        ledger.commit_all = first_act  # type: ignore[method-assign]

    @property
    def open(self) -> Approval:
        [found] = self.client.approvals(self.session)
        return found

    def go_on(self) -> str:
        """The sweep makes the run ready, and a worker takes it."""
        assert made_ready(self.kit, self.run)
        return self.kit.execute(self.run)

    def sweep(self) -> None:
        self.kit.services.reaper.run_once()

    def later(self, ms: int) -> None:
        """Let time pass, for every part of the stack."""
        self.now += ms
        self.kit.ledger.set_time(self.now)
        self.client._parts.ledger.set_time(self.now)

    def findings(self) -> set[str]:
        known = {
            "service-silent",
            "fsync-not-always",
            "no-append-only-file",
            "entries-unread",
            "no-audit-trail",
        }
        found = doctor_of(self.kit).examine(watch_leases=False).findings
        return {finding.rule for finding in found} - known


@pytest.fixture
def place(kit: Kit, client: Client) -> Place:
    return Place(kit, client)


def test_one_session_has_no_more_open_than_a_person_can_look_at(place: Place) -> None:
    """One more is refused, also a question, until one is answered; a run that is tried again has those that it had."""
    asked: list[str] = []
    refused: list[str] = []

    @place.kit.agent("flood")
    def flood(ctx: Context) -> str:
        asked.clear()
        for number in range(60):
            try:
                asked.append(ctx.post_approval("deploy", {"number": number}))
            except LimitExceeded as error:
                refused.append(str(error))
                break
        try:
            ctx.ask_later("and this?")
        except LimitExceeded as error:
            refused.append(str(error))
        return str([ctx.decision(one) for one in asked[:2]])

    session = place.begin("flood")
    why = f"limit max_open_questions = 50 reached for session {session}; wait for work to finish, or split it"
    assert refused == [why, why]
    first = list(asked)
    assert {one.id for one in place.client.approvals(session)} == set(first)
    place.client.deny(first[0])
    assert place.go_on() == "parked"
    assert (asked[:50], len(asked), refused[2:]) == (first, 51, [why, why])
    assert len(place.client.approvals(session)) == 50


def test_two_in_a_row_and_a_week_in_between(place: Place) -> None:
    place.ask()
    place.later(7 * DAY_MS)
    place.sweep()
    place.client.approve(place.open.id, "one")
    assert place.go_on() == "parked"
    place.later(7 * DAY_MS)
    place.sweep()
    place.client.approve(place.open.id, "two")
    assert place.go_on() == "finished"
    assert place.kit.answer(place.session) == "approved: one; approved: two"
    assert place.steps == ["plan", "deploy 1", "deploy 2"]
    run = place.kit.ledger.runs(place.session)[0]
    assert (run.failures, run.lost) == (0, 0)
    assert place.client.approvals() == []
    assert not place.kit.redis.exists(ledger_keys.approvals(0))
    assert place.findings() == set()


def test_an_answer_that_comes_while_the_run_is_being_parked_wakes_it(place: Place) -> None:
    place.before_the_commit(lambda: place.client.approve(place.open.id))
    place.ask()
    assert place.go_on() == "parked"  # for the second one
    assert place.steps == ["plan", "deploy 1"]


def test_a_run_that_is_stopped_in_the_last_moment_is_not_parked(place: Place) -> None:
    """Its session ends at once, not after the week in which nobody answers."""
    place.before_the_commit(lambda: place.client.stop(place.session))
    place.ask(ends="stopped")
    assert place.client.approvals() == []


def test_a_run_whose_session_a_child_fails_in_the_last_moment_is_not_parked(kit: Kit, place: Place) -> None:
    @kit.agent("broken", attempts=1)
    def broken(ctx: Context) -> str:
        raise ValueError(ctx.prompt)

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        ctx.delegate("broken", "no", on_failure="fail")
        return str(ctx.request_approval("deploy", {}))

    place.session = kit.submit("lead")
    place.before_the_commit(lambda: kit.play(kit.children(place.session)[0].id))
    assert kit.play(place.session) == "stopped"
    assert place.client.approvals() == []


@pytest.mark.parametrize("default", ["deny", "approve"])
def test_what_nobody_answers_in_time_is_decided_by_its_default(place: Place, default: Any) -> None:
    place.ask(timeout_s=86_400, default=default)
    asked = place.open
    place.later(DAY_MS - 1000)
    place.sweep()
    assert place.open == asked
    place.later(2000)
    with pytest.raises(WrongState, match="expired"):
        place.client.approve(asked.id)
    place.sweep()
    assert place.client.approvals() == []
    with pytest.raises(WrongState, match="not open"):
        place.client.approve(asked.id)
    assert place.go_on() == "parked"
    assert [(one.approved, one.how) for one in place.seen] == [(default == "approve", "expired")]
    assert place.steps == ["plan"] + ["deploy 1"] * (default == "approve")
    history = [event.text for event in place.client.history(place.session)]
    assert any("nobody answered in time" in text and default in text for text in history)


def test_an_answer_for_another_call_is_no_consent(place: Place) -> None:
    """Whoever can write to Redis changes what is asked: the operator is told, and the worker compares digests."""
    place.ask()
    asked = place.open
    items = ledger_keys.items(place.session)
    record = json.loads(place.kit.redis.hget(items, asked.id))
    context = json.loads(record["context"])
    forged = {**record, "context": json.dumps({**context, "arguments": '{"version":"evil"}'})}
    place.kit.redis.hset(items, asked.id, json.dumps(forged))
    assert place.open.fault
    assert "not-genuine" in place.findings()
    with pytest.raises(ApprovalRefused, match="something else than what agent 'ops' asked"):
        place.client.approve(asked.id)
    # The person was shown another call, approved it, and the record was put back.
    place.client._parts.authenticity._required = False
    del forged["proof"]
    other = {**context, "arguments": '{"version":"1.0"}', "digest": "ab" * 32}
    place.kit.redis.hset(items, asked.id, json.dumps({**forged, "context": json.dumps(other)}))
    place.client.deny(asked.id, "what is this?")
    place.kit.redis.hset(items, asked.id, json.dumps(record))
    assert place.go_on() == "parked"
    assert place.steps == ["plan"]
    assert [one.approved for one in place.seen] == [False]


@pytest.mark.parametrize("by", ["ops", "router", "reaper", "the time"])
def test_nobody_but_the_operator_is_believed(place: Place, by: str) -> None:
    """Others who can write to the ledger, with keys of their own: an agent, a router, a reaper, also before time is up."""
    place.ask(timeout_s=86_400, default="approve")
    asked = place.open
    said = Decision(approval=asked.id, approved=True, digest=asked.digest, by="me").model_dump(mode="json")
    extra = {"agent": "operator", "answers": asked.id}
    if by == "the time":
        said = {"expired": True, "approved": True, "digest": asked.digest}
        extra["status"] = "failed"
    place.kit.ledger.enqueue(
        place.session,
        "approved",
        item_id=decision_id(asked.id),
        kind="reply",
        priority="high",
        answers=asked.id,
        extra={**extra, "context": json.dumps(said)},
        **({} if by == "the time" else {"by": by}),
    )
    assert place.go_on() == "parked"
    assert place.steps == ["plan"]
    assert [(one.approved, one.how) for one in place.seen] == [(False, "refused")]
    assert ("not-genuine" in place.findings()) == (by != "the time")


def test_two_people_at_once_answer_once(place: Place) -> None:
    place.ask()
    asked, said, failed = place.open, list[str](), list[Exception]()
    ready = threading.Barrier(8)

    def answer(approves: bool) -> None:
        with Client(place.kit.settings) as client:
            ready.wait()
            try:
                (client.approve if approves else client.deny)(asked.id, f"{approves}")
                said.append(f"{approves}")
            except WrongState as error:
                failed.append(error)

    threads = [threading.Thread(target=answer, args=(n % 2 == 0,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(said), len(failed)) == (1, 7)
    assert place.go_on() == "parked"
    assert [one.comment for one in place.seen] == said


def test_a_stopped_session_is_answered_no_more(place: Place) -> None:
    place.ask()
    asked = place.open
    assert place.client.stop(place.session).outcome == "ended"
    assert place.client.approvals() == []
    assert not place.kit.redis.exists(ledger_keys.approvals(0))
    assert not [t for t in place.kit.redis.zrange(ledger_keys.timers(0), 0, -1) if t.startswith(b"approval|")]
    with pytest.raises(WrongState):
        place.client.approve(asked.id)
    item = place.kit.ledger.item(place.session, asked.id)
    assert (item.state.value, item.reason) == ("dead", "session stopped: stopped by a user")
    assert place.findings() == set()


def test_a_try_that_does_not_ask_again_leaves_nothing_open(kit: Kit, place: Place) -> None:
    tries: list[int] = []

    @kit.agent("ops", attempts=2)
    def ops(ctx: Context) -> str:
        tries.append(1)
        if len(tries) == 1:
            ctx.post_approval("deploy")
            raise ValueError("no luck")
        return "done without"

    session = kit.begin("ops", ends="retry")
    assert len(place.client.approvals(session)) == 1
    assert kit.again(session) == "finished"
    assert place.client.approvals() == []
    assert place.findings() == set()


def test_of_what_was_not_asked_there_is_no_decision(kit: Kit) -> None:
    kit.agent("ops")(lambda ctx: ctx.decision("apr_nothing"))
    session = kit.begin("ops", ends="failed")
    why = f"InputError: session {session} has asked for no approval 'apr_nothing'"
    assert kit.answer(session).startswith(why)


def test_why_doctor_and_fix(place: Place) -> None:
    place.ask(timeout_s=86_400)
    asked, redis = place.open, place.kit.redis
    doctor = doctor_of(place.kit)
    _, wait, breaks = doctor.why(place.session)
    assert not breaks
    assert wait.waits_for == f"a person's yes or no to {asked.id} (deploy)"
    assert wait.mover == f"you: orchestra approve {asked.id}, or orchestra deny {asked.id}"
    assert wait.by.endswith("then its default counts, deny")
    assert "approval-unserved" in place.findings()  # no worker serves it
    redis.delete(ledger_keys.approvals(0))
    redis.zrem(ledger_keys.timers(0), f"approval|{asked.id}")
    assert "approval-unindexed" in place.findings()
    doctor.repair(doctor.examine(watch_leases=False))
    assert place.findings() == {"approval-unserved", "agent-unserved"}
    assert place.open == asked
    assert redis.zscore(ledger_keys.timers(0), f"approval|{asked.id}") == asked.expires_ms
    redis.zadd(ledger_keys.approvals(0), {"apr_00nobody": 1})
    assert "approval-stray" in place.findings()
    place.sweep()
    assert place.findings() == {"approval-unserved", "agent-unserved"}
    redis.zrem(ledger_keys.timers(0), f"approval|{asked.id}")
    place.later(2 * DAY_MS)
    assert {"approval-late", "approval-unindexed"} <= place.findings()
    record = json.loads(redis.hget(ledger_keys.items(place.session), asked.id))
    redis.hset(ledger_keys.items(place.session), asked.id, json.dumps({**record, "context": "{"}))
    assert "approval-unanswerable" in place.findings()
    assert place.open.fault
    with pytest.raises(ApprovalRefused):
        place.client.approve(asked.id)
    place.client.deny(asked.id)
    assert place.client.approvals() == []


def test_an_approval_whose_record_is_lost_is_given_up_by_the_doctor(place: Place) -> None:
    place.ask()
    asked = place.open
    place.kit.redis.hdel(ledger_keys.items(place.session), asked.id)
    doctor = doctor_of(place.kit)
    found = doctor.examine(watch_leases=False)
    assert "question-lost" in {finding.rule for finding in found.findings}
    doctor.repair(found)
    assert place.client.session(place.session).approvals == ()
    assert not place.kit.redis.exists(ledger_keys.approvals(0))


def test_the_commands(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: str, ok: bool = True) -> str:
        done = place.kit.orchestra(*arguments)
        assert (done.exit_code == 0) == ok, done.output
        return done.output

    place.ask(reason="because \x1b[2J")
    asked = place.open
    shown = run("questions")
    assert asked.id in shown
    assert '{"version": 1}' in shown
    assert "\x1b" not in shown
    [listed] = json.loads(run("questions", place.session, "--json"))["approvals"]
    assert (listed["id"], listed["digest"], listed["default"]) == (asked.id, asked.digest, "deny")
    assert f"waits for you: orchestra approve {asked.id}" in run("tree", place.session)
    assert asked.id in run("why", place.session)
    assert "not the id of an approval" in run("approve", "apr_x", ok=False)
    assert "look at it again" in run("approve", asked.id, "--digest", "0" * 8, ok=False)
    done = json.loads(run("approve", asked.id, "-m", "fine", "--by", "ann", "--json"))
    assert (done["approved"], done["decided"][0]["id"]) == (True, asked.id)
    assert "not open" in run("approve", asked.id, ok=False)
    assert f"{decision_id(asked.id)}, approved by ann: fine" in run("logs", place.session)
    assert place.go_on() == "parked"
    assert "denied" in run("deny", place.open.id)
    assert place.go_on() == "finished"
    assert run("questions").strip() == "nothing waits for you"
    assert json.loads(run("questions", "--json")) == {"questions": [], "approvals": []}
    monkeypatch.setenv("ORCHESTRA_SESSION_TOKEN", "x")
    place.ask()
    assert "a person answers it" in run("approve", place.open.id, ok=False)
    monkeypatch.delenv("ORCHESTRA_SESSION_TOKEN")
    some = place.kit.orchestra("approve", place.open.id, asked.id, "--json")
    assert (some.exit_code, "not open" in some.stderr) == (2, True)
    assert len(json.loads(some.stdout)["decided"]) == 1  # what was decided before the refusal stands


def test_a_program_is_given_an_answer_that_comes_as_its_question_is_withdrawn(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("acp")
    from acp.schema import PermissionOption

    from orchestrator.worker.context.approvals import ApprovalRequests
    from orchestrator.worker.executors.command.acp import Permissions

    withdraw = ApprovalRequests.withdraw

    def too_late(self: ApprovalRequests, approval: str, reason: str) -> bool:
        with ThreadPoolExecutor() as person:
            person.submit(place.client.approve, approval).result()
        return withdraw(self, approval, reason)

    monkeypatch.setattr(ApprovalRequests, "withdraw", too_late)
    monkeypatch.setattr(Context, "patience_s", 0.0)
    options = [
        PermissionOption(option_id=kind, name=kind, kind=kind) for kind in ("allow_once", "reject_once")
    ]

    @place.kit.agent("ops")
    def ops(ctx: Context) -> str:
        chosen = Permissions(ctx, "approve", lambda *_: None).decide("rm", {"path": "x"}, options)
        return chosen.kind if chosen is not None else "none"

    session = place.kit.begin("ops", ends="finished")
    assert place.kit.answer(session) == "allow_once"


def test_a_whole_stack_ends_what_nobody_answers_and_says_so_signed() -> None:
    """The reaper's word travels as every message does: a router takes it, and it is no dead letter."""

    @agent("patient-ops")
    def ops(ctx: Context) -> str:
        return str(ctx.request_approval("deploy", {"version": 1}, timeout_s=0.2))

    with InProcessStack([ops]) as stack:
        answer = stack.run("patient-ops", "go")
        assert answer.text.startswith("denied: nobody answered before ")
        answer.tree.assert_settled()
        redis = connect(stack.settings.redis_url or "", check=False)
        said = [fields[b"envelope"] for _, fields in redis.xrange(keys.messages(0, "reply", "high"))]
        assert len(said) == 1
        assert b"reaper" in said[0]
        assert b"&quot;expired&quot;: true" in said[0] or b'"expired": true' in said[0]
        streams = RedisStreams(redis)
        wait_until(lambda: not any(one.pending for one in streams.backlog(ROUTER_GROUP, all_streams())))
        assert DeadLetters(redis).all() == []
        redis.close()


def test_a_program_of_an_agent_asks_and_a_person_answers(kit: Kit, place: Place) -> None:
    """Over the socket of the run, as `orchestra program mcp` does."""

    @kit.agent("cli")
    def cli(ctx: Context) -> str:
        program = remote(ctx)
        asked = {"tool": "push", "arguments": {"branch": "main"}, "key": "push", "timeout_s": 0}
        first = program.call("request_approval", **asked)
        assert (first["approved"], first["ask_again_s"]) == (None, 1.0)
        assert program.call("request_approval", **asked) == first
        place.client.approvals()
        answered.set()
        found = first
        while found["approved"] is None:
            found = program.call("decision", approval=first["approval"], timeout_s=5)
        return f"{found['approved']} {found['comment']}"

    answered = threading.Event()
    session = kit.submit("cli")
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(kit.play, session)
        assert answered.wait(30)
        [asked] = place.client.approvals(session)
        place.client.approve(asked.id, "once")
        assert running.result() == "finished"
    assert kit.answer(session) == "True once"

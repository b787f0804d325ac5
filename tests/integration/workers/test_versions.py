"""Sessions keep the version that they began with: who may go on with them after a deploy, and what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from orchestrator.agents.definition import define_agent
from orchestrator.doctor import Doctor
from orchestrator.ids import callback_id, new_claim_id
from orchestrator.ledger import Claimed, ItemState, Next, RunRef, RunState, Session, SessionState, Slot
from orchestrator.policy.versions import lane_queue
from orchestrator.reconciler.delivery import hand_over
from orchestrator.redisdb import ledger_keys
from orchestrator.runtime.service import SignsOfLife
from orchestrator.worker.announce import queues_of, versions_of
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.slot import SlotLoop

from .conftest import StackHarness


def deploy(
    stage: StackHarness, version: str, on_deploy: str = "pin", *, agent: str = "lead", **options: Any
) -> None:
    """What a worker with this version of an agent serves from now on: it waits for a helper, then names its version."""

    def work(ctx: Context) -> str:
        if ctx.cause == "start" and ctx.prompt == "go":
            ctx.delegate("helper", "help")
            return "waits"
        return f"{version} was told {[one.result or one.error for one in ctx.callbacks]}"

    stage.agent(agent, version=version, on_deploy=on_deploy, role="coordinator", **options)(work)


def slots(stage: StackHarness) -> dict[str, int]:
    """Let one slot of the worker work until nothing is ready for it."""
    return dict(SlotLoop(stage.runtime, worker="w1").run())


def take(stage: StackHarness, version: str, on_deploy: str = "pin") -> Claimed | None:
    """What a slot of a worker that has this version takes next."""
    known = dict.fromkeys(("lead", f"lead@{version}"), f"{version} {on_deploy}")
    wish = Next(slot=Slot(name="s", worker="w", agents=tuple(known), versions=known), claim=new_claim_id())
    stage.ledger.claim_next(0, wish)
    return wish.held


def parked(stage: StackHarness, *, task: str = "") -> str:
    """A session of the lead that has had its first run and waits for its helper."""
    stage.agent("helper")(lambda ctx: "done")
    session = stage.submit("lead", task=task)
    stage.start(session)
    assert slots(stage) == {"idle": 1}
    return session


def told(stage: StackHarness, session: str) -> RunRef:
    """The helper has answered, and the resume of its parent is ready."""
    (child,) = stage.children(session)
    stage.start(child.id)
    mine = {name: one for name, one in stage.catalogue.items() if name == "helper"}
    lead = stage.catalogue.pop("lead")
    assert slots(stage) == {"finished": 1}
    stage.catalogue.update(mine | {"lead": lead})
    flushed = stage.ledger.flush(session).dispatch
    assert flushed is not None
    return flushed


def session_of(stage: StackHarness, session: str) -> Session:
    return stage.ledger.session(session)


@pytest.fixture
def alive(stage: StackHarness) -> Iterator[Any]:
    """Lets workers with what the catalogue has now show signs of life."""
    lives = []

    def begin() -> SignsOfLife:
        life = SignsOfLife(
            "worker",
            stage.redis,
            stage.steady,
            serves=queues_of(stage.catalogue),
            versions=versions_of(stage.catalogue),
        )
        life.begin()
        lives.append(life)
        return life

    yield begin
    for life in lives:
        life.end()


def test_the_first_run_writes_the_version_down(stage: StackHarness) -> None:
    """Before it nobody knows which worker will take the session; the run has its version as well."""
    deploy(stage, "v1")
    session = stage.submit("lead")
    assert (session_of(stage, session).version, session_of(stage, session).on_deploy) == ("", "latest")
    stage.start(session)
    deploy(stage, "v2")  # deployed before it began: it begins with this one
    slots(stage)
    assert (session_of(stage, session).version, session_of(stage, session).on_deploy) == ("v2", "pin")
    assert [run.version for run in stage.ledger.runs(session)] == ["v2"]


def test_the_latest_version_goes_on(stage: StackHarness) -> None:
    """The mode is the one that it began with; the version is that of its latest run."""
    deploy(stage, "v1", "latest")
    session = parked(stage)
    deploy(stage, "v2", "refuse")
    told(stage, session)
    assert slots(stage) == {"finished": 1}
    assert stage.ledger.result(session) == (SessionState.FINISHED, "v2 was told ['done']")
    assert (session_of(stage, session).version, session_of(stage, session).on_deploy) == ("v2", "latest")
    assert [run.version for run in stage.ledger.runs(session)] == ["v1", "v2"]


def test_a_pinned_session_is_taken_by_its_version_only(stage: StackHarness) -> None:
    """Old and new workers side by side, and a version that comes back after a rollback."""
    deploy(stage, "v1")
    session = parked(stage)
    deploy(stage, "v2")
    resumed = told(stage, session)
    assert resumed.lane == "lead@v1"
    assert slots(stage) == {}
    assert stage.execute(resumed) == "refused"  # by its name, as in a slot that is lent
    deploy(stage, "v1")
    assert slots(stage) == {"finished": 1}
    assert stage.ledger.result(session)[1] == "v1 was told ['done']"
    left = stage.redis.keys("*@*")
    assert left == []


def test_new_sessions_begin_with_the_new_version_beside_pinned_ones(stage: StackHarness) -> None:
    deploy(stage, "v1")
    old = parked(stage)
    told(stage, old)
    deploy(stage, "v2")
    new = parked(stage)
    assert session_of(stage, new).version == "v2"
    assert stage.ledger.sweep.ready(0, ["lead", "lead@v1", "lead@v2"]) == {"lead@v1": 1}


@pytest.mark.parametrize("how", ["fails", "is lost"])
def test_a_try_that_ended_is_repeated_by_its_version(stage: StackHarness, how: str) -> None:
    """Also of the first run: it may have done something already."""
    deploy(stage, "v1", attempts=2)
    session = stage.submit("lead")
    run = stage.start(session).run
    held = take(stage, "v1")
    assert held is not None
    if how == "fails":
        stage.redis.hset(ledger_keys.run(run), "state", "queued")
        stage.redis.zadd(ledger_keys.queued(0), {run: 0})
    else:
        (lease,) = stage.ledger.sweep.leases(0)
        assert stage.ledger.release(lease) == "queued"
    again = stage.ledger.sweep.make_ready(run)
    assert again is not None
    assert (again.version, again.lane) == ("v1", "lead@v1")
    assert take(stage, "v2") is None
    assert take(stage, "v1") is not None


def test_a_run_of_a_tree_at_its_limit_waits_for_its_version(stage: StackHarness) -> None:
    """What is blocked and freed again is ready where it was."""
    deploy(stage, "v1")
    session = parked(stage)
    told(stage, session)
    stage.parts.concurrency.limit_tree(session, 1)
    stage.redis.hset(ledger_keys.at_work(0), f"tree:{session}", 1)
    assert take(stage, "v1") is None
    assert stage.redis.zcard(ledger_keys.blocked(session)) == 1
    stage.parts.concurrency.limit_tree(session, "none")
    assert stage.ledger.sweep.ready(0, ["lead", "lead@v1"]) == {"lead@v1": 1}


def test_limits_and_pauses_of_an_agent_hold_for_all_its_versions(stage: StackHarness) -> None:
    deploy(stage, "v1")
    session = parked(stage)
    told(stage, session)
    concurrency = stage.parts.concurrency
    concurrency.pause("agent", "lead")
    assert take(stage, "v1") is None
    concurrency.unpause("agent", "lead", agents=["lead"])
    concurrency.limit_agent("lead", 1)
    stage.redis.hset(ledger_keys.at_work(0), "agent:lead", 1)
    assert take(stage, "v1") is None
    stage.redis.hdel(ledger_keys.at_work(0), "agent:lead")
    assert take(stage, "v1") is not None
    assert stage.redis.hget(ledger_keys.at_work(0), "agent:lead") == b"1"


def test_workers_of_the_version_are_rung(stage: StackHarness) -> None:
    """On a queue that only they read: a ring that another worker heard would be lost."""
    deploy(stage, "v1")
    session = parked(stage)
    resumed = told(stage, session)
    assert resumed.ring
    ready = hand_over([resumed], ledger=stage.ledger, agents=stage.parts.agents)
    assert ready == [(resumed, "orchestra.lead@v1")]
    assert stage.parts.queue_of("lead@v1") == lane_queue("lead@v1") == "orchestra.lead@v1"
    assert queues_of(stage.catalogue)["lead@v1"] == "orchestra.lead@v1"


def test_a_session_that_refuses_fails_with_one_sentence(stage: StackHarness) -> None:
    """What it was to be told is dead with that reason, and no attempt is made again."""
    deploy(stage, "v1", "refuse", attempts=5)
    session = parked(stage)
    (child,) = stage.children(session)
    deploy(stage, "v2", "refuse", attempts=5)
    told(stage, session)
    assert slots(stage) == {"failed": 1}
    state, reason = stage.ledger.result(session)
    assert state is SessionState.FAILED
    assert reason.startswith("the definition of agent 'lead' has changed: the session began with version v1")
    callback = stage.ledger.item(session, callback_id(child.id))
    assert callback is not None
    assert (callback.state, callback.reason) == (ItemState.DEAD, f"resume failed: {reason}")


def test_a_session_that_refuses_goes_on_after_a_rollback(stage: StackHarness) -> None:
    deploy(stage, "v1", "refuse")
    session = parked(stage)
    deploy(stage, "v2", "refuse")
    deploy(stage, "v1", "refuse")
    told(stage, session)
    assert slots(stage) == {"finished": 1}


def test_the_parent_of_a_session_that_refuses_hears_of_it(stage: StackHarness) -> None:
    deploy(stage, "v1", "refuse")
    heard: list[str | None] = []

    @stage.agent("boss", role="coordinator")
    def boss(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("lead", "go")
        heard.extend(one.error for one in ctx.callbacks)
        return "waits"

    stage.agent("helper")(lambda ctx: "done")
    root = stage.submit("boss")
    stage.start(root)
    slots(stage)
    (lead,) = stage.children(root)
    stage.start(lead.id)
    slots(stage)
    deploy(stage, "v2", "refuse")
    (helper,) = [one for one in stage.ledger.tree(root) if one.agent == "helper"]
    stage.start(helper.id)
    slots(stage)
    stage.ledger.flush(lead.id)
    slots(stage)
    stage.ledger.flush(root)
    slots(stage)
    assert len(heard) == 1
    assert "'lead' has changed" in str(heard[0])


@pytest.mark.parametrize("on_deploy", ["pin", "refuse"])
def test_a_user_may_let_any_version_go_on(stage: StackHarness, on_deploy: str) -> None:
    """Also when its run is ready already; done twice it is done once."""
    deploy(stage, "v1", on_deploy)
    session = parked(stage)
    told(stage, session)
    deploy(stage, "v2", on_deploy)
    run = stage.ledger.sweep.unpin(session)
    assert (run is not None) == (on_deploy == "pin")
    assert stage.ledger.sweep.unpin(session) is None
    assert slots(stage) == {"finished": 1}
    assert stage.ledger.result(session)[1] == "v2 was told ['done']"
    assert stage.redis.keys("*@*") == []


def test_the_doctor_names_a_session_that_nobody_can_take(stage: StackHarness, alive: Any) -> None:
    """Before it is resumed, too; and not once a worker with its version lives."""
    deploy(stage, "v1")
    session = parked(stage)
    deploy(stage, "v2")
    alive()

    def named() -> list[str]:
        seen = Doctor(stage.parts, audit=None, sleep=lambda _: None).examine(watch_leases=False)
        assert seen.holds
        return [one.message for one in seen.findings if one.rule == "version-unserved"]

    (message,) = named()
    assert message == (
        f"{session} is pinned to the version that it began with, and no living worker has version v1 of 'lead': start "
        f"a worker that has it, or let any version go on with it: orchestra unpin {session}"
    )
    told(stage, session)
    _, wait, _ = Doctor(stage.parts, audit=None, sleep=lambda _: None).why(session)
    assert wait is not None
    assert wait.waits_for.endswith("is queued for a worker that has version v1 of agent 'lead'")
    assert "no living worker has version v1" in wait.mover
    deploy(stage, "v1")
    alive()
    assert named() == []


def test_a_deleted_session_leaves_nothing_in_its_lane(stage: StackHarness) -> None:
    deploy(stage, "v1")
    session = parked(stage)
    told(stage, session)
    run = session_of(stage, session).run
    assert stage.redis.zscore(ledger_keys.ready(0, "lead@v1"), run) is not None
    for member in reversed(stage.ledger.tree(session)):
        stage.ledger.sweep.delete_session(member.id, session)
    assert stage.redis.keys("*@*") == []


def test_a_run_that_was_taken_by_its_name_leaves_its_lane(stage: StackHarness) -> None:
    """As in a slot that a waiting run lends."""
    deploy(stage, "v1")
    session = parked(stage)
    resumed = told(stage, session)
    assert stage.execute(resumed) == "finished"
    assert stage.redis.keys("*@*") == []
    assert [run.state for run in stage.ledger.runs(session)] == [RunState.COMPLETED] * 2


def test_a_slot_is_told_what_it_serves(stage: StackHarness) -> None:
    """The lane of a version that nobody named and nothing is pinned to would only cost time."""
    stage.catalogue["plain"] = define_agent("plain", function=lambda ctx: "x", source="here")
    deploy(stage, "v1", "latest")
    assert stage.runtime.served == ("lead", "lead@v1", "plain")
    assert stage.runtime.version_of("lead@v1") == "v1 latest"

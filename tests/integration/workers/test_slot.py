"""What a slot does once it is woken: it takes what is ready, in the ledger's order, until there is none."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.ids import new_claim_id
from orchestrator.ledger import RunState, SessionState
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution import slot
from orchestrator.worker.execution.slot import SlotLoop
from orchestrator.worker.execution.slot_sharing import SlotSharing
from tests.clock import SteppedMachine
from tests.kit import Kit
from tests.waiting import wait_until


def work(kit: Kit, worker: str = "w1", **options: Any) -> Counter[str]:
    """Wake one slot of a worker that serves everything; ``options`` change its runtime."""
    return Counter(SlotLoop(replace(kit.runtime, **options), worker=worker).run())


def started(kit: Kit, *agents: str, priority: str | None = None) -> list[str]:
    """A started child of each of these agents, all of one parent."""
    made: list[str] = []
    kit.agent("lead", role="coordinator")(
        lambda ctx: made.extend(ctx.delegate(agent, "do", priority=priority) for agent in agents)
    )
    kit.begin("lead")
    for child in made:
        kit.start(child)
    return made


def test_a_run_that_somebody_else_has_is_passed_over(kit: Kit) -> None:
    kit.agent("helper")(lambda ctx: "done")
    sessions = started(kit, *["helper"] * 4)
    for session in (sessions[0], sessions[2]):
        run = kit.ledger.session(session).run
        assert kit.ledger.claim(run, new_claim_id(), session_id=session, worker="w2")
    kit.redis.zadd(ledger_keys.ready(0, "helper"), {run: 1})  # where it should be no longer
    assert work(kit) == {"finished": 2}
    assert kit.ledger.session(sessions[0]).state is SessionState.RUNNING


def test_a_failure_in_the_middle_is_its_own(kit: Kit) -> None:
    """Agents that fail, that are not served here, and that are tried again leave the others alone."""
    attempts: Iterator[int] = iter(range(5))

    @kit.agent("broken")
    def broken(ctx: Context) -> str:
        raise ValueError("broken")

    @kit.agent("shaky", attempts=2)
    def shaky(ctx: Context) -> str:
        if next(attempts) == 0:
            raise ValueError("shaky")
        return "at last"

    kit.agent("helper")(lambda ctx: "done")
    kit.agent("elsewhere")(lambda ctx: "done")
    started(kit, "helper", "broken", "elsewhere", "shaky", "helper")
    del kit.catalogue["elsewhere"]
    assert work(kit) == {"finished": 2, "failed": 1, "retry": 1}
    assert kit.ledger.sweep.ready(0, ["helper", "broken", "elsewhere", "shaky"]) == {"elsewhere": 1}


def test_a_lost_commit_does_not_cost_the_next_run_its_claim(kit: Kit) -> None:
    """The run was taken away while its agent worked; the one after it is executed all the same."""

    @kit.agent("robbed")
    def robbed(ctx: Context) -> str:
        kit.redis.hset(ledger_keys.run(ctx.run), "claim", "somebody else")
        return "too late"

    kit.agent("helper")(lambda ctx: "done")
    started(kit, "robbed", "helper")
    assert work(kit) == {"lost": 1, "finished": 1}


@pytest.mark.parametrize(("begun", "done"), [(0, {}), (1, {"finished": 1})])
def test_a_worker_that_is_to_end_takes_nothing_more(kit: Kit, begun: int, done: dict[str, int]) -> None:
    """What it has begun it finishes; the rest is left to others."""
    stopping = threading.Event()
    kit.agent("helper")(lambda ctx: stopping.set())
    started(kit, *["helper"] * 3)
    if not begun:
        stopping.set()
    assert work(kit, stopping=stopping.is_set) == done
    assert kit.ledger.sweep.ready(0, ["helper"]) == {"helper": 3 - begun}


def test_a_run_that_was_taken_when_its_worker_was_to_end_is_given_back(kit: Kit) -> None:
    """It was claimed with the commit before it, and that took as long as Redis was away: it has not begun."""
    stopping, runs = threading.Event(), list[str]()
    kit.agent("helper", attempts=1)(lambda ctx: runs.append(ctx.session))
    sessions = started(kit, "helper", "helper")
    commit = kit.ledger.commit_all

    def commit_and_stop(*args: Any, **given: Any) -> Any:
        done = commit(*args, **given)
        stopping.set()
        return done

    kit.ledger.commit_all = commit_and_stop  # type: ignore[method-assign]
    assert work(kit, stopping=stopping.is_set) == {"finished": 1, "parked": 1}
    assert runs == sessions[:1]
    (run,) = kit.ledger.runs(sessions[1])
    assert (run.state, run.failures, run.lost) == (RunState.QUEUED, 0, 0)
    assert kit.ledger.sweep.make_ready(run.id) is not None
    assert work(kit) == {"finished": 1}


def test_short_runs_are_executed_together(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many with each round trip, up to sixteen, in their order; each is committed for itself."""
    monkeypatch.setattr(slot, "SHORT_S", 60)
    held, seen = list[int](), list[str]()

    @kit.agent("helper")
    def helper(ctx: Context) -> str:
        held.append(kit.redis.zcard(ledger_keys.running(0)))
        seen.append(ctx.session)
        return f"answer of {ctx.session}"

    sessions = started(kit, *["helper"] * 50)
    assert work(kit) == {"finished": 50}
    assert (held, seen) == ([n for n in (1, 2, 4, 8, 16, 16, 3) for _ in range(n)], sessions)
    for session in sessions:
        assert kit.ledger.result(session) == (SessionState.FINISHED, f"answer of {session}")
    left = (
        ledger_keys.running(0),
        ledger_keys.ready(0, "helper"),
        ledger_keys.turns(0, "helper"),
        ledger_keys.queued(0),
    )
    assert [kit.redis.exists(key) for key in left] == [0, 0, 0, 0]
    assert work(kit) == {}


def test_runs_that_were_taken_together_are_taken_once(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer is lost, and all of it is sent again."""
    monkeypatch.setattr(slot, "SHORT_S", 60)
    kit.agent("helper")(lambda ctx: "done")
    started(kit, *["helper"] * 20)
    commit_all = kit.ledger.commit_all

    def lose_an_answer(*args: Any, **given: Any) -> Any:
        commit_all(*args, **given)
        return commit_all(*args, **given)

    monkeypatch.setattr(kit.ledger, "commit_all", lose_an_answer)
    assert work(kit) == {"finished": 20}
    assert kit.redis.zcard(ledger_keys.running(0)) == 0


def test_a_slow_run_takes_none_with_it(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that its slot holds with it, what has ended is committed, and what has not begun is given back."""
    monkeypatch.setattr(slot, "SHORT_S", 60)
    monkeypatch.setattr(slot, "SLOW_S", 0.05)
    begun, goes_on, sessions = threading.Event(), threading.Event(), list[str]()

    @kit.agent("helper")
    def helper(ctx: Context) -> str:
        if ctx.session == sessions[4]:
            begun.set()
            assert goes_on.wait(60)
        return "done"

    def states() -> list[SessionState]:
        return [kit.ledger.session(session).state for session in sessions]

    sessions += started(kit, *["helper"] * 7)  # taken are 1, 2 and 4 of them
    held_up = threading.Thread(target=work, args=(kit, "w1"))
    held_up.start()
    assert begun.wait(60)
    finished = [SessionState.FINISHED]
    wait_until(lambda: states()[:4] == finished * 4, "the ends before it")
    wait_until(lambda: kit.redis.zcard(ledger_keys.running(0)) == 1, "the others are given back")
    assert work(kit, "w2") == {"finished": 2}
    assert states() == [*finished * 4, SessionState.RUNNING, *finished * 2]
    goes_on.set()
    held_up.join()
    assert states() == finished * 7


def test_a_run_whose_worker_was_lost_is_executed_alone(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may end its process again, and that would count for whatever else its slot holds."""
    monkeypatch.setattr(slot, "SHORT_S", 60)
    held = dict[str, int]()
    kit.agent("helper")(lambda ctx: held.update({ctx.session: kit.redis.zcard(ledger_keys.running(0))}))
    sessions = started(kit, *["helper"] * 7)
    for session in sessions[4:6]:
        run = kit.ledger.runs(session)[0].id
        assert kit.ledger.claim(run, "gone" * 8, session_id=session, worker="gone") is not None
    assert [kit.ledger.release(lease, died="SIGKILL") for lease in kit.ledger.sweep.leases(0)] == [
        "queued"
    ] * 2
    for session in sessions[4:6]:
        assert kit.ledger.sweep.make_ready(kit.ledger.runs(session)[0].id) is not None
    assert work(kit) == {"finished": 7}
    assert [held[session] for session in sessions[4:6]] == [1, 1]
    assert max(held.values()) > 1


def test_a_slot_whose_worker_is_to_end_is_lent_to_nobody(kit: Kit) -> None:
    """A run that waits goes on waiting: another worker begins what it waits for."""
    looks = list[bool]()

    @kit.agent("caller", role="coordinator")
    def caller(ctx: Context) -> str:
        looks.append(True)
        return str(ctx.call("helper", "do"))

    def stopping() -> bool:  # as soon as the run has begun
        looks.extend(looks[:1])
        return bool(looks)

    kit.agent("helper")(lambda ctx: "done")
    root = kit.submit("caller")
    kit.start(root)
    first = threading.Thread(
        target=work, args=(kit,), kwargs={"stopping": stopping, "slot_sharing": SlotSharing()}
    )
    first.start()
    wait_until(lambda: kit.children(root), "the child")
    (child,) = kit.children(root)
    run = kit.start(child.id).run
    before = len(looks)
    wait_until(
        lambda: len(looks) > before + 5 or kit.ledger.run(run).attempt,  # type: ignore[union-attr]
        "looks for what the slot could be lent to",
    )
    assert work(kit, worker="w2") == {"finished": 1}
    first.join(60)
    done = kit.ledger.run(run)
    assert (done.worker, done.attempt) == ("w2", 1)
    assert kit.ledger.session(root).ended_ms


def test_what_is_urgent_is_taken_before_what_has_waited(kit: Kit) -> None:
    """Runs of low priority wait; a critical one that comes after them is the next one to be taken."""
    order = []
    kit.agent("helper")(lambda ctx: order.append(kit.ledger.session(ctx.session).priority))
    started(kit, *["helper"] * 14, priority="low")
    started(kit, "helper", priority="critical")
    work(kit)
    assert order[0] == "critical"
    assert Counter(order) == {"low": 14, "critical": 1}


def test_agents_take_turns(kit: Kit, stepped: SteppedMachine) -> None:
    """A worker that serves two agents does not let one wait for all that the other has to do.

    On a clock that stands still the runs of both are short, however busy the machine is.
    """
    order = []
    for name in ("anna", "zoe"):
        kit.agent(name)(lambda ctx: order.append(kit.ledger.session(ctx.session).agent))
    started(kit, *["anna"] * 30)
    started(kit, *["zoe"] * 30)
    work(kit)
    assert 5 <= order[:20].count("zoe") <= 15


@pytest.mark.parametrize("items", ["[1", '"no list"', "[1]"])
def test_a_run_that_cannot_be_read_fails_and_the_next_one_is_taken(kit: Kit, items: str) -> None:
    kit.agent("helper")(lambda ctx: "done")
    sessions = started(kit, "helper", "helper")
    run = kit.ledger.session(sessions[0]).run
    kit.redis.hset(ledger_keys.run(run), "items", items)
    assert work(kit) == {"failed": 1, "finished": 1}
    assert "its field 'items' cannot be read" in kit.ledger.session(sessions[0]).reason


def test_a_run_of_another_type_is_put_aside_and_the_next_one_taken(kit: Kit) -> None:
    """It is named, changes nothing, and is looked at again by the sweep."""
    kit.agent("helper")(lambda ctx: "done")
    sessions = started(kit, "helper", "helper")
    run = kit.ledger.session(sessions[0]).run
    kit.redis.delete(ledger_keys.bodies(sessions[0]))
    kit.redis.set(ledger_keys.bodies(sessions[0]), "no hash")
    assert work(kit) == {"finished": 1}
    assert kit.redis.hget(ledger_keys.run(run), "state") == b"queued"
    assert kit.redis.zscore(ledger_keys.queued(0), run) is not None


def test_a_slot_that_finds_more_wakeups_one_more(kit: Kit) -> None:
    """Which wakes the next: so many wake as there is work for, and no more than one message waits unheard."""
    woken: list[str] = []
    object.__setattr__(kit.runtime, "wake", woken.append)
    kit.agent("helper")(lambda ctx: "done")
    started(kit, *["helper"] * 5)
    work(kit)
    assert woken == ["helper"]


def test_what_is_urgent_comes_first_whichever_agent_it_is_for(kit: Kit) -> None:
    order = []
    for name in ("anna", "zoe"):
        kit.agent(name)(lambda ctx: order.append(kit.ledger.session(ctx.session).priority))
    started(kit, *["anna"] * 3, priority="low")
    started(kit, *["zoe"] * 3, priority="high")
    work(kit)
    assert order == ["high"] * 3 + ["low"] * 3

"""How many runs are at work at once, what is paused, and what is fair: one place in the ledger decides."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from orchestrator.errors import InputError
from orchestrator.ids import new_claim_id
from orchestrator.ledger import ClaimedRun, Concurrency, PollRequest, Slot
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.container import RuntimeOfProcess
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.slot import LEAST_URGENT_EVERY, SlotLoop
from orchestrator.worker.execution.slot_sharing import SlotSharing
from tests.kit import Kit

from .test_slot import started, work


def poll(kit: Kit, *agents: str, slot: str = "s1") -> PollRequest:
    """What a slot that serves these agents is given."""
    asked = PollRequest(slot=Slot(name=slot, worker="w1", agents=agents), claim=new_claim_id())
    kit.ledger.claim_next(0, asked)
    return asked


def take(kit: Kit, *agents: str, slot: str = "s1") -> ClaimedRun | None:
    """What a slot that serves these agents takes next."""
    return poll(kit, *(agents or ("helper",)), slot=slot).held


def take_all(kit: Kit, *agents: str) -> list[ClaimedRun]:
    """Everything that slots without end would take."""
    held = []
    while (one := take(kit, *agents, slot=f"s{len(held)}")) is not None:
        held.append(one)
    return held


def end(kit: Kit, held: ClaimedRun, status: str = "completed") -> Sequence[str]:
    """Let a run end; the agents whose workers are to be told of what may begin now."""
    return getattr(kit.commit(held.claim, "x", status=status), "wake", ())


def at_work(kit: Kit) -> dict[str, int]:
    return {k.decode(): int(v) for k, v in kit.redis.hgetall(ledger_keys.at_work(0)).items()}


@pytest.fixture
def limits(kit: Kit) -> Concurrency:
    for name in ("helper", "other"):
        kit.agent(name)(lambda ctx: "done")
    return kit.parts.concurrency


def test_no_more_runs_of_an_agent_are_taken_than_its_limit(kit: Kit, limits: Concurrency) -> None:
    """However many slots ask; and each run that ends, however it ends, makes room for one."""
    started(kit, *["helper"] * 5)
    limits.limit_agent("helper", 2)
    held = take_all(kit)
    assert len(held) == 2
    for number, status in enumerate(["completed", "failed", "stopped"]):
        end(kit, held[number], status)
        more = take_all(kit)
        assert len(more) == 1
        held += more
    assert at_work(kit)["agent:helper"] == 2


def test_a_limit_of_a_definition_counts_until_somebody_sets_another(kit: Kit, limits: Concurrency) -> None:
    started(kit, *["helper"] * 6)
    limits.announce({"helper": ("q", 1)})
    assert len(take_all(kit)) == 1
    limits.limit_agent("helper", 3)
    assert len(take_all(kit)) == 2
    limits.limit_agent("helper", "default")
    assert take(kit) is None
    limits.limit_agent("helper", "none")
    assert len(take_all(kit)) == 3


def test_the_runs_of_other_agents_go_on_beside_a_limit(kit: Kit, limits: Concurrency) -> None:
    started(kit, *["helper"] * 3, *["other"] * 3)
    limits.limit_agent("helper", 1)
    assert Counter(held.session.agent for held in take_all(kit, "helper", "other")) == {
        "helper": 1,
        "other": 3,
    }


def test_a_slot_that_turns_to_another_agent_has_somebody_take_what_may_begin(
    kit: Kit, limits: Concurrency
) -> None:
    """The run that ended made room for one of its agent; the slot itself took one of another agent."""
    started(kit, "helper", "helper", "other")
    limits.limit_agent("helper", 1)
    first = take(kit, "helper")
    assert first is not None
    kit.redis.hdel(ledger_keys.turns(0, "helper"), "woken", "wakeups")
    end(kit, first)
    given = poll(kit, "other", "helper")
    assert given.held is not None
    assert given.held.session.agent == "other"
    assert given.more == ("helper",)


def test_no_more_runs_of_a_tree_are_taken_than_its_limit(kit: Kit, limits: Concurrency) -> None:
    """What is beyond it is blocked, in its order, and every end lets one more begin, of whichever agent it is."""
    first = started(kit, *["helper", "other"] * 3)
    second = started(kit, *["helper"] * 2)
    limits.limit_trees(2)
    held = take_all(kit, "helper", "other")
    assert Counter(h.session.root for h in held) == {
        kit.ledger.session(first[0]).root: 2,
        kit.ledger.session(second[0]).root: 2,
    }
    seen = [h.session.id for h in held]
    while held:
        end(kit, held.pop(0))
        more = take_all(kit, "helper", "other")
        assert len(more) <= 1
        seen += [h.session.id for h in more]
        held += more
    assert sorted(seen) == sorted([*first, *second])
    assert not at_work(kit)
    assert not kit.redis.exists(ledger_keys.blocked_trees(0))


def test_an_end_tells_the_workers_of_the_agent_that_may_begin(kit: Kit, limits: Concurrency) -> None:
    started(kit, "helper", "other")
    limits.limit_trees(1)
    held = take(kit, "helper")
    assert held is not None
    assert take(kit, "other") is None
    kit.redis.delete(ledger_keys.turns(0, "other"))
    assert list(end(kit, held)) == ["other"]


def test_a_higher_limit_of_a_tree_counts_at_once(kit: Kit, limits: Concurrency) -> None:
    sessions = started(kit, *["helper"] * 5)
    root = kit.ledger.session(sessions[0]).root
    limits.limit_tree(root, 1)
    assert len(take_all(kit)) == 1
    limits.limit_tree(root, 3)
    assert len(take_all(kit)) == 2
    limits.limit_tree(root, "default")
    assert len(take_all(kit)) == 2


@pytest.mark.parametrize("kind", ["agent", "queue"])
def test_a_paused_agent_is_not_run_and_not_woken_for(kit: Kit, limits: Concurrency, kind: str) -> None:
    """What is at work goes on, what is ready waits; nobody is told of it again and again, but once it goes on."""
    name = {"agent": "helper", "queue": "orchestra.helper"}[kind]
    limits.announce({"helper": ("orchestra.helper", None)})
    started(kit, *["helper"] * 3)
    working = take(kit)
    assert working is not None
    assert limits.pause(kind, name)  # type: ignore[arg-type]
    assert not limits.pause(kind, name)  # type: ignore[arg-type]
    wakeups = [kit.ledger.sweep.wakeups(0, ["helper"]) for _ in range(5)]
    assert wakeups == [[]] * 5
    assert work(kit) == {}
    end(kit, working)
    assert work(kit) == {}
    assert limits.unpause(kind, name, agents=["helper"])  # type: ignore[arg-type]
    assert not limits.unpause(kind, name, agents=["helper"])  # type: ignore[arg-type]
    assert kit.ledger.sweep.wakeups(0, ["helper"]) == ["helper"]
    assert work(kit) == {"finished": 2}


def test_a_run_that_waits_in_a_call_does_not_count(kit: Kit, limits: Concurrency) -> None:
    """Its tree and its agent have one place; the child that it calls gets it, and gives it back."""
    counts = []
    recounted = []

    @kit.agent("caller")
    def caller(ctx: Context) -> str:
        if ctx.prompt == "child":
            counts.append(at_work(kit))
            recounted.append(limits.forget_slots(0, recount=True))
            return "from the child"
        answer = ctx.call("caller", "child")
        counts.append(at_work(kit))
        return str(answer.result)

    object.__setattr__(kit.runtime, "slot_sharing", SlotSharing())
    limits.limit_agent("caller", 1)
    limits.limit_trees(1)
    root = kit.submit("caller", "root")
    kit.start(root)
    loop = threading.Thread(target=lambda: SlotLoop(kit.runtime, worker="w1").run())
    loop.start()
    while loop.is_alive():
        for member in kit.ledger.tree(root):
            if member.state == "pending" and not member.run:
                kit.start(member.id)
        loop.join(0.02)
    assert kit.answer(root) == "from the child"
    assert [one["agent:caller"] for one in counts] == [1, 1]
    assert recounted == [(0, 0)]
    assert not at_work(kit)


def test_counts_that_are_wrong_are_put_right_by_the_sweep(kit: Kit, limits: Concurrency) -> None:
    started(kit, "helper", "helper")
    assert take(kit) is not None
    root = kit.ledger.sweep.leases(0)[0].session
    kit.redis.hset(ledger_keys.at_work(0), mapping={"agent:helper": 7, "tree:gone": 3})
    assert limits.forget_slots(0, recount=True) == (0, 2)
    assert at_work(kit) == {"agent:helper": 1, f"tree:{kit.ledger.session(root).root}": 1}


def test_the_sweep_unblocks_what_no_end_of_a_run_did(kit: Kit, limits: Concurrency) -> None:
    """As when the run that ended was of a worker that was killed, or the blocked one of an agent that is paused."""
    sessions = started(kit, *["helper"] * 3)
    root = kit.ledger.session(sessions[0]).root
    limits.limit_trees(1)
    assert len(take_all(kit)) == 1
    assert limits.unblock(0) == []
    kit.redis.hdel(ledger_keys.at_work(0), f"tree:{root}")
    kit.redis.delete(ledger_keys.turns(0, "helper"))
    assert limits.unblock(0) == ["helper"]
    assert kit.ledger.sweep.ready(0, ["helper"]) == {"helper": 1}


@pytest.mark.parametrize("most", [0, -1])
def test_a_limit_that_lets_nothing_run_is_refused(limits: Concurrency, most: int) -> None:
    with pytest.raises(InputError, match="at least 1"):
        limits.limit_agent("helper", most)
    with pytest.raises(InputError, match="at least 1"):
        limits.limit_trees(most)


def test_a_limit_is_divided_among_the_shards(kit: Kit) -> None:
    limits = Concurrency(kit.redis, shards=3)
    limits.limit_agent("helper", 7)
    shares = [kit.redis.hget(ledger_keys.run_limits(shard), "agent:helper") for shard in range(3)]
    assert shares == [b"3", b"2", b"2"]
    assert limits.agents(["helper"])[0].limit == 7
    with pytest.raises(InputError, match="divided among the 3 shards"):
        limits.limit_agent("helper", 2)


def test_no_priority_waits_for_ever(kit: Kit, limits: Concurrency) -> None:
    """However many urgent runs there are, and although others of low priority wait as well."""
    order = []

    @kit.agent("helper")
    def helper(ctx: Context) -> None:
        order.append(kit.ledger.session(ctx.session).priority)

    started(kit, *["helper"] * 20, priority="low")
    started(kit, "helper", priority="normal")
    started(kit, "helper", priority="high")
    started(kit, *["helper"] * 4 * LEAST_URGENT_EVERY, priority="critical")
    work(kit)
    assert {"low", "normal", "high"} <= set(order[: 3 * LEAST_URGENT_EVERY])


def test_each_agent_has_its_share_of_what_is_not_urgent(kit: Kit, limits: Concurrency) -> None:
    """Two agents with urgent runs and others: it is not always the same one whose low priority has its turn."""
    order = []
    for name in ("anna", "zoe"):
        kit.agent(name)(lambda ctx: order.append((ctx.agent, kit.ledger.session(ctx.session).priority)))
    for name in ("anna", "zoe"):
        started(kit, *[name] * 3, priority="low")
        started(kit, *[name] * 5 * LEAST_URGENT_EVERY, priority="critical")
    work(kit)
    first = [agent for agent, priority in order[: 9 * LEAST_URGENT_EVERY] if priority == "low"]
    assert set(first) == {"anna", "zoe"}


def test_a_tree_of_ten_beside_one_of_a_thousand_waits_for_about_five(kit: Kit, limits: Concurrency) -> None:
    """So it takes less than twice as long as alone, whatever else it has to wait for."""
    order = []

    @kit.agent("helper")
    def helper(ctx: Context) -> None:
        order.append(kit.ledger.session(ctx.session).root)

    def work_on(runs: int) -> None:
        told = iter(range(runs))
        work(kit, stopping=lambda: next(told, runs) >= runs - 1)

    started(kit, *["helper"] * 300)
    work_on(40)
    small = started(kit, *["helper"] * 10)
    root = kit.ledger.session(small[0]).root
    order.clear()
    work_on(30)
    assert [n for n, tree in enumerate(order) if tree == root][-1] < 17
    assert order[:9].count(root) <= 7  # the large one goes on meanwhile


def test_a_worker_does_not_wake_itself_for_what_is_held_back(kit: Kit, limits: Concurrency) -> None:
    """A watchdog that took paused runs for unheard ones would wake workers for them again and again."""
    process = RuntimeOfProcess(kit.app, kit.settings)
    process._runtime = kit.runtime
    started(kit, "helper")
    assert process.with_ready_runs() == ["helper"]
    limits.pause("agent", "helper")
    assert process.with_ready_runs() == []

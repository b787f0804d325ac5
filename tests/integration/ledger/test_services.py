"""The callback service and the reaper over a real ledger: who is resumed, closed, released, settled, and when."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import redis as redis_py

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.ids import callback_id
from orchestrator.ledger import ItemState, Ledger, SessionState
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.reconciler.delivery import Delivery
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.client import connect, is_outage
from tests.kit import Kit
from tests.refusing import REFUSALS, Refusing
from tests.services import Services
from tests.waiting import act_until


def test_events_of_a_dead_copy_are_taken_over(services: Services, kit: Kit) -> None:
    """It was handed the events and died before it acknowledged any."""
    root, child = kit.parent_of("a")
    kit.finish(child)
    services.redis.xreadgroup("callbacks", "dead", {keys.session_events(0): ">"})
    assert services.service.run_once() == 0
    threading.Event().wait(0.15)
    services.clock.advance(1)
    assert services.service.run_once() > 0
    assert [d.session for d in services.sent] == [root]


def test_a_stop_of_a_parent_stops_its_children_and_theirs(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """Parent-close policy `stop`: a tree ends from the top; what runs is asked."""
    root, waiting, running = kit.parent_of("w", "r")
    child = kit.run(running)
    grandchild = kit.delegate(child, "g")
    ledger.stop(root, "enough")
    services.drain()
    assert ledger.session(waiting).state == SessionState.STOPPED
    renewal = ledger.renew(child.claim)
    assert renewal.held
    assert renewal.stop == f"parent {root} stopped"
    kit.commit(child.claim, renewal.stop, status="stopped")
    services.drain()
    assert ledger.session(grandchild).state == SessionState.STOPPED
    assert kit.balance(root) == (2, 0, 0, 2)
    assert kit.balance(running) == (1, 0, 0, 1)
    assert ledger.sweep.closing(0) == []


@pytest.mark.parametrize(
    ("policy", "state"), [("stop", "stopped"), ("abandon", "pending"), ("heir", "pending")]
)
def test_what_becomes_of_children_is_the_closed_parents_policy(
    services: Services, kit: Kit, ledger: Ledger, policy: str, state: str
) -> None:
    """Stopped, let go, or handed to an heir who then is owed the callback."""
    heir = kit.given("heir")
    kit.finish(heir)
    root, parent = kit.given_run()
    chosen = f"heir:{heir}" if policy == "heir" else policy
    ledger.effect(parent.claim, effect="policy", facts={"close_policy": chosen})
    child = kit.delegate(parent, "a")
    kit.commit(parent.claim, "boom", status="failed")
    services.drain()
    assert ledger.session(child).state == state
    assert kit.balance(root) == (1, 0, 0, 1)
    assert ledger.sweep.closing(0) == []
    if policy == "heir":
        assert ledger.items(root)[0].reason == f"handed to heir {heir}"
        kit.finish(child, "for the heir")
        held = services.resumed()
        assert held.texts == {callback_id(child): "for the heir"}
        kit.commit(held.claim)
        assert kit.balance(heir) == (1, 1, 0, 0)


@pytest.mark.parametrize(
    ("policy", "root_state", "balance", "reason"),
    [
        ("deliver", "idle", (1, 0, 1, 0), ""),
        ("ignore", "idle", (1, 0, 0, 1), "failure ignored by policy"),
        ("fail", "failed", (1, 0, 0, 1), "failed its parent by policy"),
    ],
)
def test_what_a_failed_child_means_is_a_policy(
    services: Services,
    kit: Kit,
    ledger: Ledger,
    policy: str,
    root_state: str,
    balance: tuple[int, ...],
    reason: str,
) -> None:
    root, child = kit.parent_of("a", on_failure=policy)
    kit.finish(child, "no luck", status="failed")
    services.drain()
    assert ledger.session(root).state == root_state
    assert kit.balance(root) == balance
    assert ledger.items(root)[0].reason == reason


def test_a_failure_that_is_to_fail_a_busy_parent_does_so_whoever_is_first(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """Its agent comes to an answer before it hears that it is to stop; nothing runs in between."""
    for number, heard in enumerate((True, False)):
        root, parent = kit.given_run(f"root{number}")
        kit.finish(kit.delegate(parent, "a", on_failure="fail"), "no luck", status="failed")
        if heard:
            services.drain()
        assert kit.commit(parent.claim, "answer").session_state == SessionState.IDLE
        assert ledger.flush(root).outcome == "waits"
        services.drain()
        assert ledger.session(root).state == SessionState.FAILED
    assert services.sent == []


def test_an_ignored_failure_still_lets_a_parent_that_waits_for_it_end(services: Services, kit: Kit) -> None:
    """Nothing is left to come: the parent is resumed for its final answer."""
    _, child = kit.parent_of("a", on_failure="ignore")
    kit.finish(child, "no luck", status="failed")
    services.drain()
    (sent,) = services.sent
    last = kit.claim(sent)
    assert (last.run.cause, last.items) == ("callbacks", ())
    assert kit.commit(last.claim, "final").session_state == SessionState.FINISHED


def test_a_lease_that_stands_still_is_released_after_a_whole_lease_time(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """By the observer's own clock; a renewal in between starts it again."""
    root, held = kit.given_run()

    def watch_for(seconds: int) -> int:
        released = 0
        for _ in range(seconds):
            services.clock.advance(1)
            released += services.reaper.run_once().released
        return released

    services.reaper.run_once()
    assert watch_for(14) == 0
    ledger.renew(held.claim)
    services.reaper.run_once()
    assert watch_for(14) == 0
    services.clock.jump(3600)
    assert services.reaper.run_once().released == 0
    assert watch_for(1) == 1
    assert [d.run for d in services.sent] == [held.run.id]
    assert kit.claim(root).run.lost == 1


def test_what_a_crash_left_between_two_steps_the_sweep_completes(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """No event reached anybody: the sweep finds who waits, what was never sent, and what result is owed."""
    root, child = kit.parent_of("a")
    kit.finish(child)
    services.redis.delete(keys.session_events(0))
    services.broken = True
    assert services.reaper.run_once().resumed == 1
    assert services.sent == []
    services.broken = False
    ledger.set_time(ledger.server_ms() + ledger.limits.redispatch_ms + 1)
    assert services.reaper.run_once().redispatched == 1
    kit.commit(kit.claim(services.sent[0]).claim)
    services.reaper.run_once()
    assert services.settled == [root]


def test_trees_expire_a_set_time_after_their_root_is_over(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """A finished root that a user resumed meanwhile keeps its tree."""
    ledger.set_time(1_000_000)
    root, again = kit.given("root"), kit.given("again")
    for session in (root, again):
        kit.finish(session)
    services.reaper.run_once()
    later = 1_000_000 + ledger.limits.tree_ttl_ms
    ledger.set_time(later - 1000)
    ledger.enqueue(again, "more", item_id="itm_00x")
    kit.commit(kit.resume(again).claim)
    ledger.set_time(later)
    assert services.reaper.run_once().pruned == 1
    assert list(ledger.all_roots(0)) == [again]
    ledger.set_time(later + ledger.limits.tree_ttl_ms)
    assert services.reaper.run_once().pruned == 1
    assert list(ledger.all_roots(0)) == []


def test_an_orphan_of_a_second_try_is_stopped_by_the_service(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    root, held = kit.given_run()
    left = kit.delegate(held, "left")
    kit.crash(root)
    kit.commit(kit.claim(root).claim)
    services.drain()
    assert ledger.session(left).state == SessionState.STOPPED
    assert ledger.item(root, callback_id(left)).state == ItemState.DEAD
    assert kit.balance(root) == (1, 0, 0, 1)


def test_deleting_a_root_leaves_tombstones_and_nothing_else(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """What was delivered, what is owed and what is queued goes; counts and dead letters stay, until they expire."""
    root, done, running, pending = kit.parent_of("d", "r", "p")
    kit.finish(done)
    child = kit.run(running)
    grandchild = kit.delegate(child, "g")
    kit.commit(services.resumed().claim)
    assert ledger.stop(root, "deleted by a user", state="deleted").outcome == "ended"
    services.drain()
    assert ledger.renew(child.claim).stop == f"parent {root} deleted"
    kit.commit(child.claim, "gone", status="stopped")
    services.drain()
    sessions = [root, done, running, pending, grandchild]
    assert {ledger.session(s).state for s in sessions} == {SessionState.DELETED}
    assert kit.balance(root) == (3, 1, 0, 2)
    assert kit.balance(running) == (1, 0, 0, 1)
    left = {k.decode() for s in sessions for k in services.redis.scan_iter(f"*{s[4:]}*")}
    assert left == {ledger_keys.session(s) for s in sessions} | {
        ledger_keys.items(root),
        ledger_keys.items(running),
    } | {ledger_keys.tree(root)}
    assert not list(services.redis.scan_iter("*:run:*"))
    assert all(i.reason for s in (root, running) for i in ledger.items(s))


@pytest.mark.parametrize("code", REFUSALS)
def test_a_server_that_takes_no_writes_for_a_while_costs_nobody_a_lease(
    start_valkey: Callable[..., ValkeyProcess], code: str
) -> None:
    """Nobody could renew meanwhile; a sweep that had nothing to write would have taken that for death."""
    server = start_valkey(durable=False)
    client = connect(server.url)
    refusal, kit = Refusing(server, code), Kit.of(Ledger(client))
    services = kit.services
    kit.run(kit.given())

    def sweep(times: int) -> int:
        released = 0
        for _ in range(times):
            services.clock.advance(5)
            released += services.reaper.run_once().released
        return released

    assert sweep(2) == 0
    refusal.begin()
    with pytest.raises(redis_py.ResponseError) as caught:
        sweep(1)
    assert is_outage(caught.value)
    refusal.end()
    assert sweep(3) == 0
    assert sweep(1) == 1
    client.close()


def test_events_are_acknowledged_after_what_they_set_off(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """A copy that is cut off in the middle has acknowledged none of them, and another one takes them over."""
    root, child = kit.parent_of("a")
    kit.finish(child)

    class CutOff(Delivery):
        def flush(self, *_: object) -> int:  # type: ignore[override]
            raise redis_py.ConnectionError("cut off")

    def cut_off(name: str) -> None:
        delivery = CutOff(ledger, lambda _: None)
        copy = CallbackService(services.redis, delivery, consumer=name, clock=services.clock, take_over_ms=1)
        with pytest.raises(redis_py.ConnectionError):
            copy.run_once()

    cut_off("one")
    held = services.redis.xpending(keys.session_events(0), "callbacks")["pending"]
    assert held == services.redis.xlen(keys.session_events(0)) > 0
    time.sleep(0.005)
    cut_off("two")
    assert services.redis.xpending(keys.session_events(0), "callbacks")["pending"] == held
    services.clock.advance(1)

    def take_over() -> None:
        services.clock.advance(1)
        services.service.run_once()

    act_until(lambda: services.sent, take_over)
    assert [d.session for d in services.sent] == [root]

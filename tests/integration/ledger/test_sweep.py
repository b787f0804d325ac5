"""The sweep when things go wrong around it: lost messages, busy brokers, frozen machines, wrong clocks, broken parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import pytest
import redis as redis_py

from orchestrator import machine
from orchestrator.errors import ServerUnavailable, WrongState
from orchestrator.ledger import Lease, Ledger, RetryLater, Session, SessionState
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.reconciler.reaper import LeaseWatch, Reaper
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.client import connect
from orchestrator.redisdb.holders import Connected, connect_holder, connected_holders
from tests.clock import ManualClock
from tests.kit import Kit
from tests.services import Services
from tests.waiting import wait_until

SOME_SESSION = "ses_00ffffffffffffffffffffffff"


def reaper_of(services: Services, **parts: object) -> Reaper:
    """The stack's reaper with some of its parts exchanged."""
    chosen: dict[str, object] = {
        "settle": services.ledger.sweep.mark_result_published,
        "clock": services.clock,
        "lease_s": 15,
        **parts,
    }
    return Reaper(services.ledger, services.delivery, **chosen)  # type: ignore[arg-type]


def later(ledger: Ledger, ms: int) -> None:
    """Let time pass on the server."""
    ledger.set_time(ledger.server_ms() + ms)


# --- queued runs of which no worker was told (any more) -----------------------------------------------------------


def waking(services: Services, woken: list[str], **parts: object) -> Reaper:
    """A reaper that tells workers, and which agents it told them of."""
    return reaper_of(services, wake=woken.extend, agents=lambda: ["lead", "reviewer"], **parts)


def test_a_failed_run_is_ready_when_its_time_has_come(services: Services, kit: Kit, ledger: Ledger) -> None:
    held = kit.run(kit.given())
    assert isinstance(kit.commit(held.claim, "oops", status="failed", attempts=2), RetryLater)
    assert ledger.sweep.ready(0, ["lead"]) == {}
    later(ledger, 1)
    assert reaper_of(services).run_once().redispatched == 1
    assert ledger.sweep.ready(0, ["lead"]) == {"lead": 1}
    assert [d.run for d in services.sent] == [held.run.id]


@pytest.mark.parametrize("runs", [1, 510])
def test_workers_are_told_again_of_what_nobody_takes_however_much_waits(
    services: Services, kit: Kit, ledger: Ledger, runs: int
) -> None:
    """A message that was lost costs a second, beside hundreds of runs as well; one message serves them all."""
    later(ledger, 0)
    for number in range(runs):
        kit.start(kit.given(str(number)))
    woken: list[str] = []
    reaper = waking(services, woken)
    assert reaper.run_once().woken == 0
    later(ledger, 1_001)
    assert reaper.run_once().woken == 1
    assert woken == ["lead"]


def test_what_nobody_hears_is_said_ever_more_rarely(services: Services, kit: Kit, ledger: Ledger) -> None:
    """All slots may be busy for hours; a slot that hears begins this again."""
    kit.start(kit.given())
    woken: list[str] = []
    reaper = waking(services, woken)
    for _ in range(600):
        later(ledger, 1_000)
        reaper.run_once()
    assert 10 < len(woken) < 20


def test_a_claim_begins_the_backing_off_anew(kit: Kit, ledger: Ledger) -> None:
    """How often a run was lost with its worker says nothing of how well its messages arrive."""
    root, held = kit.given_run()
    for _ in range(ledger.limits.max_lost_workers - 1):
        assert kit.crash(root) == "queued"
        assert ledger.sweep.make_ready(held.run.id) is not None
        kit.claim(root)
    assert kit.crash(root) == "queued"
    assert ledger.sweep.make_ready(held.run.id) is not None
    later(ledger, ledger.limits.redispatch_ms + 1)
    assert ledger.sweep.undispatched(0) == [held.run.id]


def test_a_broker_that_is_away_ends_no_sweep(services: Services, kit: Kit, ledger: Ledger) -> None:
    kit.start(kit.given())
    tries = []

    def refuse(agents: Sequence[str]) -> None:
        tries.append(agents)
        raise ServerUnavailable("the broker", "away")

    later(ledger, 1_001)
    assert reaper_of(services, wake=refuse, agents=lambda: ["lead"]).run_once().woken == 0
    assert tries == [["lead"]]


def test_a_server_clock_that_is_set_back_holds_up_no_run(kit: Kit, ledger: Ledger) -> None:
    """No run waits longer than the longest back-off, whatever its due time says."""
    ledger.set_time(2_000_000_000_000)
    dispatch = kit.start(kit.given())
    ledger.set_time(1_900_000_000_000)
    assert ledger.sweep.undispatched(0) == [dispatch.run]


def test_a_run_that_is_gone_is_taken_off_the_list(services: Services, redis: redis_py.Redis) -> None:
    """Left there, it would be due for ever, before all others."""
    redis.zadd(ledger_keys.queued(0), {"run_00ffffffffffffffffffffffff": 1})
    services.reaper.run_once()
    assert redis.zcard(ledger_keys.queued(0)) == 0


def test_a_tree_stays_while_a_worker_is_at_work_in_it(services: Services, kit: Kit, ledger: Ledger) -> None:
    """A user has resumed a child of it just before it was to be removed."""
    _, child = finished_tree(kit)
    services.reaper.run_once()
    later(ledger, ledger.limits.tree_ttl_ms - 1000)
    ledger.enqueue(child, "once more", item_id="itm_00x")
    again = kit.resume(child)
    later(ledger, ledger.limits.tree_ttl_ms + 1)
    assert services.reaper.run_once().pruned == 0
    kit.commit(again.claim, "done once more")
    later(ledger, ledger.limits.tree_ttl_ms + 1)
    assert services.reaper.run_once().pruned == 2


@pytest.mark.parametrize("who", ["root", "child"])
@pytest.mark.parametrize("how", ["said", "queued", "done"])
def test_a_user_who_resumes_a_session_in_the_moment_of_its_trees_removal_is_heard(
    services: Services, kit: Kit, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, who: str, how: str
) -> None:
    """The reaper has looked, and found nobody: what it found does not count any more."""
    root, child = finished_tree(kit)
    session = root if who == "root" else child
    services.reaper.run_once()
    later(ledger, ledger.limits.tree_ttl_ms + 1)
    look = ledger.tree

    def looked(name: str) -> list[Session]:
        found = look(name)
        monkeypatch.undo()
        ledger.enqueue(session, "once more", item_id="itm_00x")
        if how != "said":
            services.delivery.flush([session])
        if how == "done":
            kit.commit(kit.claim(services.sent[-1]).claim, "done once more")
        return found

    monkeypatch.setattr(ledger, "tree", looked)
    assert services.reaper.run_once().pruned == 0
    if how != "done":
        services.reaper.run_once()
        kit.commit(kit.claim(services.sent[-1]).claim, "done once more")
    assert ledger.result(session)[1] == "done once more"
    services.reaper.run_once()
    later(ledger, ledger.limits.tree_ttl_ms + 1)
    assert services.reaper.run_once().pruned == 2


def test_a_tree_stays_while_a_resume_in_it_waits_for_a_worker(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    _, child = finished_tree(kit)
    services.reaper.run_once()
    ledger.enqueue(child, "once more", item_id="itm_00x")
    services.delivery.flush([child])
    later(ledger, ledger.limits.tree_ttl_ms + 1)
    assert services.reaper.run_once().pruned == 0
    kit.commit(kit.claim(services.sent[-1]).claim)
    assert ledger.session(child).state == "finished"


def test_who_comes_while_a_tree_is_being_removed_is_told_so(
    services: Services, kit: Kit, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reaper died after the first session; another one removes the rest."""
    root, child = finished_tree(kit)
    services.reaper.run_once()
    later(ledger, ledger.limits.tree_ttl_ms + 1)

    def die(session: str, root: str) -> int:
        raise ValueError(session)

    with monkeypatch.context() as dying:
        dying.setattr(ledger.sweep, "delete_session", die)
        services.reaper.run_once()
    for session in (root, child):
        with pytest.raises(WrongState, match="deleted"):
            ledger.enqueue(session, "once more", item_id="itm_00x")
    assert services.reaper.run_once().pruned == 2
    assert list(ledger.all_roots(0)) == []


def test_a_tree_of_more_sessions_than_a_server_takes_arguments_is_removed_all_the_same(
    services: Services, kit: Kit, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is closed in parts, of one session each here, before anything of it goes."""
    monkeypatch.setattr("orchestrator.ledger.sweep._RETIRED_AT_ONCE", 1)
    finished_tree(kit)
    services.reaper.run_once()
    later(ledger, ledger.limits.tree_ttl_ms + 1)
    closed, run = [], ledger.scripts.run

    def noted(name: str, names: Sequence[str], args: Sequence[str]) -> object:
        if name == "close_tree":
            closed.append(len(names) // 2)
        return run(name, names, args)

    monkeypatch.setattr(ledger.scripts, "run", noted)
    assert services.reaper.run_once().pruned == 2
    assert closed == [1, 1]


def finished_tree(kit: Kit) -> tuple[str, str]:
    """A root and its child, both finished and neither owed anything."""
    root, child = kit.parent_of("a")
    kit.finish(child)
    kit.commit(kit.resume(root).claim)
    return root, child


def test_a_tree_stays_while_an_heir_in_another_one_waits_for_its_end(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """Its root has long failed; a child that was handed on while it ran knows of no other parent. The heir's own tree
    stays, too.
    """
    heir = kit.given("heir")
    kit.finish(heir)
    _, parent = kit.given_run()
    ledger.effect(parent.claim, effect="policy", facts={"close_policy": f"heir:{heir}"})
    child = kit.run(kit.delegate(parent, "a"))
    kit.commit(parent.claim, "boom", status="failed")
    services.drain()
    assert kit.balance(heir) == (1, 0, 1, 0)
    services.reaper.run_once()
    later(ledger, ledger.limits.tree_ttl_ms + 1)
    services.reaper.run_once()
    kit.commit(child.claim, "for the heir")
    held = services.resumed()
    assert (held.session.id, list(held.texts.values())) == (heir, ["for the heir"])
    kit.commit(held.claim)
    assert kit.balance(heir) == (1, 1, 0, 0)
    later(ledger, ledger.limits.tree_ttl_ms + 1)
    assert services.reaper.run_once().pruned == 2
    assert list(ledger.all_roots(0)) == [heir]


# --- leases ----------------------------------------------------------------------------------------------------------


def lease(beat: int) -> Lease:
    return Lease(run="run_00a", session="ses_00a", claim="c", lease_version=str(beat), worker="w")


def test_an_observer_that_stood_still_itself_blames_nobody_for_it() -> None:
    """Frozen and thawed together with the workers, it gives them the time to move that it did not watch them."""
    clock = ManualClock()
    watch = LeaseWatch(clock, lease_s=15)
    assert watch.dead([lease(1)]) == []
    clock.advance(3600)
    assert watch.dead([lease(1)]) == []
    clock.advance(2)
    assert watch.dead([lease(2)]) == []


def test_a_lease_that_stands_still_while_it_is_watched_is_dead() -> None:
    clock = ManualClock()
    watch = LeaseWatch(clock, lease_s=15)
    watched_s = 0
    while not watch.dead([lease(1)]):
        clock.advance(2)
        watched_s += 2
    assert 15 <= watched_s <= 17


def held_by(mark: str, beat: int = 1) -> Lease:
    return Lease(run="run_00a", session="ses_00a", claim=f"c@{mark}", lease_version=str(beat), worker="w")


def looks(*seen: tuple[str, int, float]) -> list[bool]:
    """Whether the lease of the process ``a`` was dead at each look, two seconds apart: who was connected beside the
    observer, its counter, the age of the oldest connection."""
    clock = ManualClock()
    watch = LeaseWatch(clock, lease_s=20)
    verdicts = []
    for name, beat, oldest_s in seen:
        clock.advance(2)
        connected = Connected(frozenset({name, machine.own_mark()}), oldest_s)
        verdicts.append(watch.dead([held_by("a", beat)], connected) != [])
    return verdicts


@pytest.mark.parametrize(
    ("seen", "dead_at"),
    [
        pytest.param([("a", 1, 90), ("", 1, 92), ("", 1, 94)], 3, id="gone"),
        pytest.param([("a", 1, 90), ("", 1, 92), ("a", 1, 94), ("", 1, 96)], None, id="back in between"),
        pytest.param([("a", 1, 90), ("", 1, 92), ("", 2, 94)], None, id="it renewed its lease"),
        pytest.param([("a", 1, 90), ("", 2, 92), ("", 2, 94)], 3, id="its last renewal was seen late"),
        pytest.param([("a", 1, 90), ("", 1, 0), ("", 1, 2), ("", 1, 4)], None, id="the server was restarted"),
        pytest.param(
            [("a", 1, 90), ("a", 1, 2), ("a", 1, 6), ("", 1, 8), ("", 1, 10)], 5, id="restarted, then gone"
        ),
        # Not every holder is back when the others are: it is given the half of a lease in which a living one renews.
        pytest.param(
            [("a", 1, 90), ("", 1, 0), ("", 1, 2), ("", 1, 5), ("", 1, 7), ("", 2, 9)],
            None,
            id="restarted, and it renews although it is not back",
        ),
        # It died together with the reaper before, or the server does not show its connection: then it renews.
        pytest.param([("b", 1, 90)] * 6, 6, id="never seen"),
        pytest.param([("b", beat // 3, 90) for beat in range(12)], None, id="never seen, and renews"),
    ],
)
def test_a_holder_whose_connection_is_missed_twice_is_dead(
    seen: list[tuple[str, int, float]], dead_at: int | None
) -> None:
    verdicts = looks(*seen)
    assert (verdicts.index(True) + 1 if True in verdicts else None) == dead_at


def test_a_server_that_does_not_show_the_observer_either_leaves_it_to_the_leases() -> None:
    clock = ManualClock()
    watch = LeaseWatch(clock, lease_s=20)
    others = Connected(frozenset({"a"}), 90)
    for _ in range(5):
        clock.advance(2)
        assert watch.dead([held_by("a")], others) == []
        others = Connected(frozenset({"b"}), 90)


def test_a_holder_is_connected_until_its_process_ends(redis: redis_py.Redis, redis_url: str) -> None:
    holder = connect_holder(redis_url, "a.1", timeout_s=2)
    assert "a.1" not in connected_holders(redis).holders
    holder.ping()
    assert "a.1" in connected_holders(redis).holders
    holder.close()
    # The server reads that a connection was closed when it comes to it.
    wait_until(lambda: "a.1" not in connected_holders(redis).holders)


def test_a_server_that_does_not_tell_who_is_connected_leaves_it_to_the_leases(
    redis: redis_py.Redis, redis_url: str
) -> None:
    redis.acl_setuser("quiet", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-client"])
    quiet = connect(redis_url.replace("unix://", "unix://quiet:x@"), check=False)
    try:
        assert connected_holders(quiet) == Connected()
    finally:
        quiet.close()
        redis.acl_deluser("quiet")


# --- one broken thing must not hold up the others ------------------------------------------------------------------


def test_a_result_that_cannot_be_stored_holds_up_nothing_else(
    services: Services, kit: Kit, ledger: Ledger
) -> None:
    """Every other root is settled, and trees that are due expire."""
    roots = [kit.given(str(n)) for n in range(3)]
    for root in roots:
        kit.finish(root)

    def settle(root: str) -> None:
        if root == roots[1]:
            raise RuntimeError("the result backend does not want it")
        ledger.sweep.mark_result_published(root)

    swept = reaper_of(services, settle=settle).run_once()
    assert swept.settled == 2
    assert ledger.sweep.unpublished_results(0) == [roots[1]]


def test_a_session_that_cannot_be_flushed_holds_up_no_other(
    services: Services, kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """Its records are damaged, and it fails by that name; who waits beside it is resumed by the same service."""
    parents = []
    for number in range(3):
        parent, child = kit.parent_of("a", seed=str(number))
        kit.finish(child)
        parents.append(parent)
    redis.hset(ledger_keys.session(parents[1]), "waiting", "{no json")
    services.drain()
    assert {d.session for d in services.sent} == {parents[0], parents[2]}
    damaged = ledger.session(parents[1])
    assert damaged.state is SessionState.FAILED
    assert "its field 'waiting' cannot be read" in damaged.reason


@pytest.mark.parametrize(
    ("book", "field", "value"),
    [
        ("items", "cb_00x", "{no json"),
        ("items", "cb_00x", "[]"),
        ("session", "owed", "many"),
        ("session", "runs", "many"),
        ("session", "waiting", "{no json"),
    ],
)
@pytest.mark.parametrize("end", ["stopped", "deleted"])
def test_a_closed_session_with_damaged_books_ends_no_service(
    services: Services,
    kit: Kit,
    ledger: Ledger,
    redis: redis_py.Redis,
    end: Literal["stopped", "deleted"],
    book: str,
    field: str,
    value: str,
) -> None:
    """Its event would be handed to the next copy, and to the next; the sweep sees to it once it can be read."""
    parents, children = zip(*(kit.parent_of("a", seed=str(number)) for number in range(2)), strict=True)
    key = ledger_keys.items(parents[0]) if book == "items" else ledger_keys.session(parents[0])
    whole = redis.hget(key, field)
    ledger.stop(parents[0], "enough", state=end)
    redis.hset(key, field, value)
    kit.finish(children[1])
    services.drain()
    assert [d.session for d in services.sent] == [parents[1]]
    assert redis.xlen(keys.session_events(0)) == 0
    redis.hset(key, field, whole) if whole else redis.hdel(key, field)
    services.reaper.run_once()
    assert ledger.session(children[0]).state == end
    assert ledger.sweep.closing(0) in ([], [children[0]])


def test_a_session_that_does_not_say_how_many_runs_it_had_is_given_none(
    services: Services, kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """Its next run would get the id of an earlier one: it fails by that name."""
    root, child = kit.parent_of("a")
    kit.finish(child)
    redis.hset(ledger_keys.session(root), "runs", "many")
    services.drain()
    assert services.sent == []
    assert ledger.session(root).state is SessionState.FAILED
    assert "its field 'runs' is not a number" in ledger.session(root).reason


@pytest.mark.parametrize(
    "event",
    [
        {"event": "session_stop"},
        {"event": "session_stop", "session": "no session", "parent": "ses_zz"},
        {"event": "stop", "session": "ses_00", "reason": "?"},
        {"nonsense": "x"},
    ],
)
def test_an_event_that_names_no_session_ends_no_service(
    services: Services, redis: redis_py.Redis, event: dict[str, str]
) -> None:
    redis.xadd(keys.session_events(0), event)  # type: ignore[arg-type]
    assert services.service.run_once() == 1
    assert redis.xlen(keys.session_events(0)) == 0


def test_all_that_a_dead_copy_was_handed_is_taken_over_at_once(
    services: Services, redis: redis_py.Redis
) -> None:
    """However much it was."""
    for _ in range(500):
        redis.xadd(keys.session_events(0), {"event": "put", "session": SOME_SESSION})
    redis.xreadgroup("callbacks", "dead", {keys.session_events(0): ">"}, count=500)
    service = CallbackService(redis, services.delivery, consumer="heir", take_over_ms=0)
    assert service.run_once() == 500
    assert redis.xlen(keys.session_events(0)) == 0

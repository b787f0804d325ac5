"""When a consumer counts as silent, and what is done about it then."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state

from orchestrator import machine
from orchestrator.ledger import Claim
from orchestrator.redisdb.holders import Connected
from orchestrator.streams import consumer_name
from orchestrator.streams.consumer import LostConnections, mark_in
from orchestrator.worker.execution.ending import Silence, Watchdog
from orchestrator.worker.execution.heartbeat import ClaimStatus, Heartbeat, ticker
from tests.waiting import wait_until

#: One look: seconds, a free slot, messages that wait, when the consumer last moved; and whether it is silent.
Look = tuple[float, bool, bool, float, bool]


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([(0, True, True, 0, False), (9, True, True, 0, False), (10, True, True, 0, True)], id="silent"),
        pytest.param([(0, False, True, 0, False), (99, False, True, 0, False)], id="every slot is taken"),
        pytest.param([(0, True, False, 0, False), (99, True, False, 0, False)], id="nothing waits"),
        pytest.param([(0, True, True, 0, False), (10, True, True, 5, False), (19, True, True, 5, False)], id="moves"),
        pytest.param(
            [(0, True, True, 0, False), (5, False, True, 0, False), (11, True, True, 0, False), (20, True, True, 0, False)],
            id="a slot was taken meanwhile",
        ),
        pytest.param(
            [(0, True, True, 0, False), (5, True, False, 0, False), (11, True, True, 0, False), (21, True, True, 0, True)],
            id="nothing waited meanwhile",
        ),
        pytest.param(
            [(0, True, True, 0, False), (10, True, True, 0, True), (11, True, True, 0, False), (21, True, True, 0, True)],
            id="counts anew once it was told",
        ),
    ],
)  # fmt: skip
def test_silence_is_messages_that_wait_at_every_look_before_a_free_slot(looks: list[Look]) -> None:
    silence = Silence(silent_for_s=10)
    for now, free_slot, waits, moved_at, silent in looks:
        found = silence.lasts(
            now=now, free_slot=free_slot, moved_at=moved_at, waiting=lambda waits=waits: waits
        )
        assert found is silent, now


class Kennel:
    """A watchdog with no patience at all: every look finds silence while a slot is free and runs are ready."""

    def __init__(self) -> None:
        self.consumer = SimpleNamespace(pool=SimpleNamespace(num_processes=1))
        self.ready = ["helper"]
        self.woken: list[str] = []
        self.ended = 0
        self.dog = Watchdog(
            self.consumer, lambda: self.ready, self.woken.append, silent_for_s=0, end=self._end
        )

    def _end(self) -> None:
        self.ended += 1


@pytest.fixture
def kennel() -> Kennel:
    return Kennel()


def test_a_worker_that_hears_not_even_its_own_wake_is_ended(kennel: Kennel) -> None:
    kennel.dog.look()
    assert (kennel.woken, kennel.ended) == (["helper"], 1)


def test_a_worker_without_ready_runs_may_sleep(kennel: Kennel) -> None:
    kennel.ready = []
    kennel.dog.look()
    assert (kennel.woken, kennel.ended) == ([], 0)


def test_a_message_at_work_takes_a_slot(kennel: Kennel) -> None:
    class Request:
        pass

    at_work = Request()
    state.reserved_requests.add(at_work)
    try:
        kennel.dog.look()
        assert (kennel.woken, kennel.ended) == ([], 0)
        kennel.consumer.pool.num_processes = 2
        kennel.dog.look()
        assert kennel.ended == 1
    finally:
        state.reserved_requests.discard(at_work)


# --- One thread renews the leases of all runs of a process.


class Leases:
    """Counts renewals; of nothing else is a ledger asked here."""

    def __init__(self) -> None:
        self.renewed: list[str] = []

    def renew(self, claim: Claim) -> Any:
        self.renewed.append(claim.run)
        return type("Renewal", (), {"held": True, "stop": ""})()


def heartbeat(leases: Leases, run: str, *, time_limit_s: float, end: Any) -> Heartbeat:
    return Heartbeat(
        leases,  # type: ignore[arg-type]
        ClaimStatus(Claim(run=run, claim="c", session="ses_0", parent="", root="ses_0")),
        interval_s=0.02,
        time_limit_s=time_limit_s,
        grace_s=0,
        end=end,
        beats=ticker,
    )


def test_an_end_by_force_that_waits_for_the_ledger_holds_up_no_other_lease() -> None:
    leases, begun, answered = Leases(), threading.Event(), threading.Event()

    def end(reason: str) -> None:
        begun.set()
        answered.wait(30)

    with (
        heartbeat(leases, "other", time_limit_s=600, end=end),
        heartbeat(leases, "blocked", time_limit_s=0.05, end=end),
    ):
        assert begun.wait(30)
        before = len(leases.renewed)
        wait_until(lambda: len(leases.renewed) > before + 3, "renewals go on")
        answered.set()


# --- Who is taken for dead because the connection of its process is gone.


MARK = "feedfeedfeed.7"
ME = machine.own_mark()


class Ticking:
    """A clock that a test sets."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return round(self.now * 1000)


def looks(*seen: tuple[set[str], float], every_s: float = 1.0) -> list[bool]:
    """Whether the other one is dead at each look, each given as who is connected and the age of the oldest connection."""
    clock = Ticking()
    watch = LostConnections(clock)
    verdicts = []
    for marks, oldest_s in seen:
        verdicts.append(bool(watch.lost([MARK], Connected(frozenset(marks), oldest_s))))
        clock.now += every_s
    return verdicts


@pytest.mark.parametrize(
    ("seen", "dead"),
    [
        pytest.param([({ME}, 90), ({ME}, 91)], [False, True], id="missed twice"),
        pytest.param([({ME}, 90), ({ME, MARK}, 91), ({ME}, 92)], [False, False, False], id="back in between"),
        pytest.param([(set(), 90), (set(), 91), (set(), 92)], [False] * 3, id="a server that does not tell"),
        pytest.param([({ME}, 1), ({ME}, 2), ({ME}, 3)], [False] * 3, id="a server that was just started"),
        pytest.param(
            [({ME}, 90), ({ME}, 1), ({ME}, 6), ({ME}, 7)], [False, False, False, True], id="restarted"
        ),
    ],
)
def test_a_consumer_is_dead_when_its_process_is_missed_at_two_looks(
    seen: list[tuple[set[str], float]], dead: list[bool]
) -> None:
    assert looks(*seen) == dead


def test_two_looks_in_one_moment_are_one() -> None:
    assert looks(({ME}, 90), ({ME}, 90), ({ME}, 90), every_s=0.2) == [False] * 3


def test_a_name_without_a_mark_is_left_to_its_lease() -> None:
    """Those of an older version, and of programs that consume under a name of their own."""
    clock = Ticking()
    watch = LostConnections(clock)
    for _ in range(3):
        assert watch.lost([mark_in("router-host-7-abcdef")], Connected(frozenset({ME}), 90)) == set()
        clock.now += 1


def test_a_consumer_is_named_after_its_process() -> None:
    assert mark_in(consumer_name("router")) == ME

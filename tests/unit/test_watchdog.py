"""When a consumer counts as silent, and what is done about it then."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery.worker import state

from orchestrator.worker.execution.ending import Silence, Watchdog

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

"""Who is taken for dead because the connection of its process is gone."""

from __future__ import annotations

import pytest

from orchestrator import machine
from orchestrator.redisdb.holders import Connected
from orchestrator.streams import consumer_name
from orchestrator.streams.consumer import LostConnections, mark_in

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

"""How long the length of a stream is taken from memory: for as long as it cannot have come near its limit."""

from __future__ import annotations

import pytest

from orchestrator.streams import StreamId
from orchestrator.streams.pressure import GROWTH, MEMORY_S, SOFT, Backpressure
from tests.clock import SteppedMachine

STREAM = StreamId(0, "task-delegation", "high")
LIMIT = 100_000


class Server:
    """Knows one length, and counts who asks for it."""

    def __init__(self) -> None:
        self.length = 0
        self.asked = 0

    def xlen(self, _: str) -> int:
        self.asked += 1
        return self.length


@pytest.mark.parametrize(
    ("length", "known_for_s"),
    [(0, MEMORY_S), (int(LIMIT * SOFT) - GROWTH // 2, 0.5), (int(LIMIT * SOFT), 0.0)],
)
def test_a_length_is_asked_for_again_when_it_may_have_come_near(
    length: int, known_for_s: float, stepped: SteppedMachine
) -> None:
    """A stream far from its limit is asked once a second, one that is close to it every time."""
    server = Server()
    server.length = length
    pressure = Backpressure(server, limit=LIMIT)  # type: ignore[arg-type]
    pressure.admit(STREAM)
    if known_for_s:
        stepped.now += known_for_s * 0.9
        pressure.admit(STREAM)
        assert server.asked == 1
    stepped.now += 0.11 * known_for_s
    pressure.admit(STREAM)
    assert server.asked == 2

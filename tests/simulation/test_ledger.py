"""The ledger's transitions by random callers, late, twice and by the dead. `make simulate ARGS=--ledger` plays more."""

from __future__ import annotations

import pytest

from tests.simulation.ledger import LedgerMachine


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_every_index_is_what_the_records_say(first: int) -> None:
    machine = LedgerMachine()
    for seed in range(first, first + 50):
        assert machine.play(seed) is None


def test_a_seed_is_the_same_play_after_any_others() -> None:
    machine = LedgerMachine()
    traces = [machine.trace for seed in (7, 8, 7) if machine.play(seed) is None]
    assert traces[0] == traces[2] != traces[1]

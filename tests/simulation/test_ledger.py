"""The ledger's transitions by random callers, late, twice and by the dead. `make simulate ARGS=--ledger` plays more."""

from __future__ import annotations

import pytest

from tests.simulation.ledger import LedgerMachine

PLAYS, AT_ONCE = 200, 50


@pytest.fixture(scope="module")
def machine() -> LedgerMachine:
    return LedgerMachine()


@pytest.mark.parametrize("first", range(0, PLAYS, AT_ONCE))
def test_every_index_is_what_the_records_say(machine: LedgerMachine, first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        assert machine.play(seed) == ""

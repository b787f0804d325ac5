"""The ledger's transitions by random callers, late, twice and by the dead. `make simulate ARGS=--ledger` plays more."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from orchestrator.testing.simulation.link import Link, SimulatedPool, SimulatedRedis
from tests.properties.ledger_facts import Facts
from tests.simulation.ledger import LedgerMachine
from tests.simulation.ledger_rules import RULES

#: Of the first 200 seeds those that reach each answer of a script five times, or as often as all of them do; and 139, which
#: alone notices that a run in any state is claimed.
SEEDS = (
    [1, 5, 6, 8, 17, 20, 22, 24, 26, 34, 35, 37, 42, 52, 53, 58, 65, 66, 68, 70, 81, 83, 84, 108, 112],
    [116, 118, 122, 126, 130, 132, 136, 138, 139, 144, 145, 148, 151],
    [153, 156, 157, 161, 163, 166, 168, 171, 181, 182, 185, 196],
)


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"from-{seeds[0]}")
def test_every_index_is_what_the_records_say(seeds: list[int]) -> None:
    machine = LedgerMachine()
    for seed in seeds:
        assert machine.play(seed) is None


def test_a_seed_is_the_same_play_after_any_others() -> None:
    machine = LedgerMachine()
    traces = [machine.trace for seed in (7, 8, 7) if machine.play(seed) is None]
    assert traces[0] == traces[2] != traces[1]


def test_a_play_that_fails_is_shortened_to_what_it_fails_by(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = LedgerMachine()
    monkeypatch.setitem(RULES, "renew", lambda call: iter([f"{call.key} was renewed"]))
    seed, failure = next((seed, failed) for seed in range(100) if (failed := machine.play(seed)))
    text = machine.as_test(seed, failure)
    assert len(failure.task) >= 10
    assert re.search(rf"    assert LedgerMachine\(\).play\({seed}, \[\d+\]\) is None\n$", text)
    assert "was renewed" in text


def test_the_keys_that_changed_make_up_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    machine, after, looks = LedgerMachine(), Facts.after, itertools.count(1)

    def compared(before: Facts, *changed: Any) -> Facts:
        found = after(before, *changed)
        if next(looks) % 4 == 0:  # whoever reads everything asks for each key
            link = Link(machine.server)
            everything = Facts.read(SimulatedRedis(connection_pool=SimulatedPool(link)))
            assert not everything.same_as(found)
            assert everything.expiring == found.expiring
        return found

    monkeypatch.setattr(Facts, "after", compared)
    for seed in range(10):
        assert machine.play(seed) is None

"""The simulated server answers as a real one does; `make fuzz` compares them for longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.redisdb.client import connect
from orchestrator.redisdb.raw_pipeline import exchange

from .mirrored import Mirrored, random_commands, whole_play
from .script_probes import probes


@pytest.fixture
def mirrored(start_valkey: Callable[..., ValkeyProcess]) -> Iterator[Mirrored]:
    client = connect(start_valkey(durable=False).url, check=False)
    yield Mirrored(client)
    client.close()


def test_random_commands_are_answered_as_by_a_real_server(mirrored: Mirrored) -> None:
    for seed in range(40):
        random_commands(mirrored, seed)
    assert mirrored.answers > 1000


def test_whole_plays_of_the_ledger_are_answered_as_by_a_real_server(mirrored: Mirrored) -> None:
    """Every script with whatever it refuses, repeated and late calls among them."""
    for seed in range(2):
        whole_play(mirrored, seed, steps=40)
    assert mirrored.answers > 1000


def test_scripts_that_fail_say_what_they_say_on_a_real_server(mirrored: Mirrored) -> None:
    """JSON that is none, numbers as texts, errors of each kind with their places."""
    with mirrored.client() as client:
        for probe in probes():
            exchange(client, [probe])
    assert mirrored.answers > 150

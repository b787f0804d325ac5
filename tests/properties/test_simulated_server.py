"""The simulated server answers as a real one does, to random commands and to whole plays of the ledger."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.redisdb.client import connect
from orchestrator.redisdb.raw_pipeline import exchange

from .ledger_plays import play
from .mirrored import Mirrored, times
from .redis_commands import Commands

#: A script that calls what it is given. The call is not the last thing that it does, which would leave no trace in Lua.
CALL = "local answer = redis.call(unpack(ARGV)) return answer"
GUARDED = "local answer = redis.pcall(unpack(ARGV)) return answer"
CAUGHT = "local done, answer = pcall(redis.call, unpack(ARGV)) return { tostring(done), answer }"

#: Whose answers are put in order before they are compared.
UNORDERED = ("KEYS", "SCAN")


@pytest.fixture
def mirrored(start_valkey: Callable[..., ValkeyProcess]) -> Iterator[Mirrored]:
    client = connect(start_valkey(durable=False).url, check=False)
    yield Mirrored(client)
    client.close()


def test_random_commands_are_answered_as_by_a_real_server(mirrored: Mirrored) -> None:
    """Half of them are called by a script; MIRRORED_PLAYS says how many sequences, if not 40."""
    client = mirrored.client()
    for seed in range(times(40)):
        client.flushall()
        chance, commands = random.Random(seed), Commands(seed)
        told = []
        try:
            for _ in range(chance.choice([20, 60, 150])):
                command = commands.next()
                if command[0].upper() not in UNORDERED and chance.random() < 0.5:
                    script = chance.choice([CALL, CALL, GUARDED, CAUGHT])
                    command = ["EVAL", script, "0", *command]
                told.append(command)
                exchange(client, [tuple(command)])
            mirrored.same_keys()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, after {told[-12:]}\n{error}") from error
    assert mirrored.answers


def test_whole_plays_of_the_ledger_are_answered_as_by_a_real_server(mirrored: Mirrored) -> None:
    """Every script with whatever it refuses, repeated and late calls among them; MIRRORED_PLAYS says how many."""
    client = mirrored.client()
    for seed in range(times(2)):
        play(client, seed, steps=40)
        mirrored.same_keys()
    assert mirrored.answers > 1000

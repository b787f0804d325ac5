"""Trees of agents on a whole stack in one thread: any order, deaths, lost answers, clocks that jump. `make simulate` plays more."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.stacks import Machine
from tests.simulation.trees import Task

PLAYS, AT_ONCE = 300, 50


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    log = logging.getLogger("orchestra")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    yield Machine(tmp_path_factory.mktemp("simulation"))
    log.setLevel(before)


@pytest.mark.parametrize("first", range(0, PLAYS, AT_ONCE))
def test_nothing_is_lost_or_doubled(first: int) -> None:
    """In a process of their own, so that these plays are the same whatever was played or tested before."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation.run", "--seeds", f"{first}:{first + AT_ONCE}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_played_the_same_in_each_process(tmp_path: Path) -> None:
    """The digest is of every command, its arguments and its signature, in their order."""

    def digest(hash_seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "tests.simulation.run", "--seeds", "0:12", "--keys", str(tmp_path)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        return done.stdout.rpartition("digest ")[2]

    digest("1")  # makes the keys
    assert digest("1") == digest("2")


def test_a_reply_that_a_server_lost_when_it_restarted_is_given_again(machine: Machine) -> None:
    """Found by seed 204: the run that had replied was committed on a server that knew of no reply, and its asker waited on."""
    asker = Task("r0", fails=1, asks=True)
    schedule = {("router-1", 14): "late", ("worker-1", 70): "server restarts"}
    failure = machine.play(204, Task("r", (asker,), works_s=1.5, pays=True), schedule)
    assert failure is None, failure.wrong

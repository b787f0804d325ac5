"""Trees of agents on a whole stack in one thread: any order, deaths, lost answers, clocks that jump. `make simulate` plays more."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.simulation.reached import Reached, table
from tests.simulation.stacks import Machine, Scene, scene_of
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
def test_nothing_is_lost_or_doubled(machine: Machine, first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        if failure := machine.play(seed):
            pytest.fail(machine.as_test(seed, failure))


@pytest.mark.parametrize("what", ["audit", "told", "deploys", "approved"])
def test_a_seed_is_played_the_same_in_each_process_and_after_any_others(tmp_path: Path, what: str) -> None:
    """The digest is of every command of the last play, its arguments and its signatures, in their order."""
    scenes = ((seed, scene_of(seed)[0]) for seed in itertools.count(20))
    seed = next(n for n, scene in scenes if getattr(scene, what, False) or scene.task.any(what))

    def digest(first: int, hash_seed: str) -> str:
        words = ["-m", "tests.simulation.run", "--seeds", f"{first}:{seed + 1}", "--keys", str(tmp_path)]
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=True)
        return done.stdout.rpartition("digest ")[2]

    assert digest(seed - 10, "1") == digest(seed, "2")


def test_it_is_counted_how_far_plays_get(machine: Machine) -> None:
    reached, seen = Reached(*machine.servers), Counter[str]()
    for seed in range(20):
        assert machine.play(seed) is None
        seen.update(reached.play(scene_of(seed)[0], machine.schedule))
    # The user of seed 11 deletes its tree before that begins.
    assert seen["script start"] == 20
    assert seen["script start: started"] == seen["script commit: done"] == 19
    assert all(
        0 < seen[what] < 20 for what in ("task pays", "scene audit", "event dies before", "task wait all")
    )
    assert "     19 script claim_next: held" in table(seen, 20)


def test_an_operator_sees_that_a_server_has_lost_what_it_was_asked(machine: Machine) -> None:
    """Found by seed 197: the end of a pause was lost with the server's last second, and nobody asked for it again."""
    scene = Scene(Task("r", then="prompt"), copies=2, operator=True)
    for moment in range(20, 28):
        assert machine.play(197, scene, {("callbacks-1", moment): "server restarts"}) is None


def test_a_router_whose_answer_was_lost_tells_workers_all_the_same(machine: Machine) -> None:
    """Found by seed 199: it sent again what makes a run ready, was told that workers knew already, and told nobody."""
    scene = Scene(Task("r"), reaper=False)
    for moment in range(8, 20):
        assert machine.play(199, scene, {("router-1", moment): "answer lost"}) is None


def test_a_callback_service_whose_answer_was_lost_tells_workers_all_the_same(machine: Machine) -> None:
    """Found by seed 111: it sent a flush again, was told that the session is busy, and told nobody of the run it had made."""
    scene = Scene(Task("r", (Task("r0"), Task("r1", asks=True)), wait="quorum", window_s=0.05), reaper=False)
    for moment in range(10, 100, 2):
        assert machine.play(111, scene, {("callbacks-1", moment): "answer lost"}) is None


def test_a_run_waits_for_no_child_that_the_server_has_lost(machine: Machine) -> None:
    """Found by seed 322: the server had lost the launch of the child, and the run that called it waited for good."""
    scene = Scene(Task("r", (Task("r3", fails=9),), stands="call", works_s=1.5))
    for moment in range(18, 34, 2):
        assert machine.play(322, scene, {("worker-1", moment): "server restarts"}) is None


def test_what_a_call_took_comes_once_where_the_server_has_lost_that(machine: Machine) -> None:
    """Found by seed 7856: the run was committed, and its session was given the end of its child once more."""
    scene = Scene(Task("r", (Task("r0"), Task("r1", works_s=0.05)), stands="call", works_s=1.5))
    for moment in range(136, 154, 3):
        for cut in (21, 23):
            schedule = {("worker-2", cut): "cut off 6", ("worker-1", moment): "server restarts"}
            assert machine.play(7856, scene, schedule) is None


def test_a_reply_that_a_server_lost_when_it_restarted_is_given_again(machine: Machine) -> None:
    """Found by seed 204: the run that had replied was committed on a server that knew of no reply, and its asker waited on."""
    scene = Scene(Task("r", (Task("r0", fails=1, asks=True),), works_s=1.5, pays=True))
    for moment in range(46, 64, 2):
        assert machine.play(204, scene, {("worker-1", moment): "server restarts"}) is None

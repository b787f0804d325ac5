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

#: Of the first 300 seeds those that reach five times each what all of them reach that often, and what they reach less often as
#: often as they do: answers of scripts, events and kinds of trees (`--reached` of `make simulate`).
SEEDS = (
    [1, 2, 5, 6, 7, 9, 11, 19, 21, 22, 23, 32, 33, 36, 38, 42, 43, 54, 55],
    [57, 63, 66, 72, 76, 79, 81, 92, 94, 95, 98, 99, 107, 110, 115, 116, 119, 123, 128],
    [133, 145, 154, 157, 168, 169, 170, 174, 179, 186, 188, 189, 195, 196, 198, 203, 209, 210, 214],
    [219, 220, 232, 233, 238, 241, 244, 253, 254, 255, 262, 268, 269, 275, 276, 282, 287, 290],
)
ROOT = Path(__file__).resolve().parents[2]
#: Plays seeds with the keys of another process, and prints the digest of each.
OTHER_PROCESS = """
import logging, sys
from pathlib import Path
from tests.simulation.stacks import Machine

logging.getLogger("orchestra").setLevel(logging.CRITICAL + 1)  # what is logged is part of a play
machine = Machine(Path(sys.argv[1]))
print(*(machine.play(int(seed)) or machine.trace for seed in sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    log = logging.getLogger("orchestra")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    yield Machine(tmp_path_factory.mktemp("simulation"))
    log.setLevel(before)


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"from-{seeds[0]}")
def test_nothing_is_lost_or_doubled(machine: Machine, seeds: list[int]) -> None:
    for seed in seeds:
        if failure := machine.play(seed):
            pytest.fail(machine.as_test(seed, failure))


def test_a_seed_is_played_the_same_in_each_process_and_after_any_others(machine: Machine) -> None:
    """The digest is of every command of a play, its arguments and its signatures, in their order."""

    def has(scene: Scene, what: str) -> bool:
        return getattr(scene, what, False) or scene.task.any(what)

    kinds = ("audit", "told", "deploys", "approved")
    seeds = sorted({next(n for n in itertools.count(20) if has(scene_of(n)[0], what)) for what in kinds})
    words = [sys.executable, "-c", OTHER_PROCESS, machine.settings.data, *map(str, reversed(seeds))]
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    other = subprocess.run(words, env=env, cwd=ROOT, capture_output=True, text=True, check=True)

    digests = [machine.trace for seed in seeds if machine.play(seed) is None]

    assert other.stdout.split() == digests[::-1]
    assert len(set(digests)) == len(seeds)


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

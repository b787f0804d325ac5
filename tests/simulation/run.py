"""Plays many seeds: `make simulate ARGS="--seeds 0:10000 --jobs 8"`, or `--seed 7` to look at one.

What fails is shrunk and printed as a test.
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.simulation.ledger import LedgerMachine
from tests.simulation.reached import Reached, table
from tests.simulation.stacks import Machine, scene_of

#: Seeds that a process plays before it takes others.
_PORTION: Final = 25


@dataclass(frozen=True)
class _Played:
    """What some seeds came to."""

    plays: int
    took_s: float  #: of a core
    moments: int
    trace: str  #: a digest of the last play
    wrong: dict[int, str]  #: by seed, what failed
    reached: Counter[str] = field(default_factory=Counter)  #: in how many plays


#: Plays some seeds; each process makes its own.
_play: Callable[[Sequence[int]], _Played]


def _prepare(given: argparse.Namespace, keys: str) -> None:
    """Make what all plays of this process have in common."""
    logging.getLogger("orchestra").setLevel(logging.WARNING if given.log else logging.CRITICAL + 1)
    own = Path(keys) if given.jobs == 1 else Path(keys) / multiprocessing.current_process().name
    machine = LedgerMachine() if given.ledger else Machine(own)
    servers = [machine.server] if isinstance(machine, LedgerMachine) else machine.servers
    reached = Reached(*servers) if given.reached else None

    def play(seeds: Sequence[int]) -> _Played:
        began, wrong, counts = time.process_time(), {}, Counter[str]()
        moments = 0 if isinstance(machine, LedgerMachine) else machine.moments
        for seed in seeds:
            failure = machine.play(seed)
            if reached is not None:
                of_stacks = isinstance(machine, Machine)
                counts.update(
                    reached.play(scene_of(seed)[0], machine.schedule) if of_stacks else reached.play()
                )
            if failure is None:
                continue
            if given.first:
                wrong[seed] = failure.wrong
                break
            wrong[seed] = "\n\n" + machine.as_test(seed, failure)
            if reached is not None:
                reached.play()
        plays = seed - seeds[0] + 1
        made = 0 if isinstance(machine, LedgerMachine) else machine.moments - moments
        return _Played(plays, time.process_time() - began, made, machine.trace, wrong, counts)

    global _play  # noqa: PLW0603
    _play = play


def _played(seeds: Sequence[int]) -> _Played:
    return _play(seeds)


def _all_played(given: argparse.Namespace, keys: str) -> Iterator[_Played]:
    first, end = (given.seed, given.seed + 1) if given.seed is not None else map(int, given.seeds.split(":"))
    portions = [range(n, min(n + _PORTION, end)) for n in range(first, end, _PORTION)]
    if given.jobs == 1:
        _prepare(given, keys)
        yield from map(_play, portions)
        return
    with multiprocessing.get_context("spawn").Pool(given.jobs, _prepare, (given, keys)) as pool:
        yield from pool.imap(_played, portions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="the first, and the one after the last")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no more after so long")
    parser.add_argument(
        "--keys", type=Path, help="a folder of keys: with the same ones digests can be compared"
    )
    parser.add_argument("--failures", type=int, default=1, help="end after so many")
    parser.add_argument("--first", action="store_true", help="end with the first that fails, as it is")
    parser.add_argument("--ledger", action="store_true", help="play the ledger alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes that play beside each other")
    parser.add_argument("--reached", action="store_true", help="say in how many plays what happened")
    parser.add_argument("--log", action="store_true", help="show what the product logs")
    given = parser.parse_args()
    if given.keys and given.jobs > 1:
        parser.error("--keys compares plays of one process: leave --jobs out")
    plays = moments = failures = 0
    ends_at = time.monotonic() + given.seconds
    took, trace, reached = 0.0, "", Counter[str]()
    with tempfile.TemporaryDirectory(prefix="orchestra-simulation-") as folder:
        for done in _all_played(given, str(given.keys or folder)):
            if (plays + done.plays) // 500 > plays // 500:
                print(f"{plays + done.plays} plays", file=sys.stderr, flush=True)
            plays, moments, trace = plays + done.plays, moments + done.moments, done.trace
            reached.update(done.reached)
            took, failures = took + done.took_s, failures + len(done.wrong)
            for seed, wrong in done.wrong.items():
                print(f"seed {seed} failed: {wrong}", flush=True)
            if done.wrong and (given.first or failures >= given.failures):
                break
            if time.monotonic() > ends_at:
                break
    if given.reached:
        print(table(reached, plays))
    print(f"{plays} plays, {failures} failed; {took:.1f} s of a core, {took / plays * 1000:.1f} ms a play")
    if not given.ledger:
        print(f"{moments / plays:.0f} moments each; the last one has the digest {trace}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

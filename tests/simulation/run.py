"""Plays many seeds: `make simulate ARGS="--seeds 0:10000"`, or `--seed 7` to look at one.

What fails is shrunk and printed as a test.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.simulation.ledger import LedgerMachine
from tests.simulation.stacks import Machine, as_test


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="the first, and the one after the last")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument(
        "--keys",
        type=Path,
        help="a folder for keys: with the same ones the digests of two calls can be compared",
    )
    parser.add_argument("--failures", type=int, default=1, help="end after so many")
    parser.add_argument("--first", action="store_true", help="end with the first that fails, as it is")
    parser.add_argument("--ledger", action="store_true", help="play the ledger alone")
    parser.add_argument("--log", action="store_true", help="show what the product logs")
    given = parser.parse_args()
    logging.getLogger("orchestra").setLevel(logging.WARNING if given.log else logging.CRITICAL + 1)
    first, end = (given.seed, given.seed + 1) if given.seed is not None else map(int, given.seeds.split(":"))
    began = time.process_time()
    if given.ledger:
        plays, failures = _of_ledger(range(first, end), most=given.failures)
        more = ""
    else:
        plays, failures, more = _of_stacks(range(first, end), given)
    took = time.process_time() - began
    print(
        f"{plays} plays, {failures} failed; {took:.1f} s of a core, {took / plays * 1000:.1f} ms a play{more}"
    )
    return 1 if failures else 0


def _of_ledger(seeds: range, *, most: int) -> tuple[int, int]:
    """How many plays of the ledger alone were played, and how many failed."""
    machine, failures = LedgerMachine(), 0
    for plays, seed in enumerate(seeds, 1):
        if wrong := machine.play(seed):
            failures += 1
            print(f"seed {seed} failed\n{wrong}", flush=True)
            if failures >= most:
                return plays, failures
    return len(seeds), failures


def _of_stacks(seeds: range, given: argparse.Namespace) -> tuple[int, int, str]:
    """How many plays of whole stacks were played, how many failed, and what else is to be said of them."""
    failures = plays = 0
    with tempfile.TemporaryDirectory(prefix="orchestra-simulation-") as folder:
        machine = Machine(given.keys or Path(folder))
        for plays, seed in enumerate(seeds, 1):
            failure = machine.play(seed)
            if failure is not None:
                failures += 1
                if given.first:
                    print(f"seed {seed}, play {plays}: {failure.wrong}")
                    break
                print(f"seed {seed} failed\n\n{as_test(seed, machine.shrink(seed, failure))}", flush=True)
                if failures >= given.failures:
                    break
            elif plays % 500 == 0:
                print(f"{plays} plays", file=sys.stderr, flush=True)
    more = f", {machine.moments / plays:.0f} moments each; digest {machine.trace.hexdigest()}"
    return plays, failures, more


if __name__ == "__main__":
    sys.exit(main())

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

from orchestrator.testing.simulation.shrinking import as_test
from tests.simulation.ledger import LedgerMachine
from tests.simulation.stacks import Machine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="the first, and the one after the last")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument(
        "--keys", type=Path, help="a folder of keys: with the same ones digests can be compared"
    )
    parser.add_argument("--failures", type=int, default=1, help="end after so many")
    parser.add_argument("--first", action="store_true", help="end with the first that fails, as it is")
    parser.add_argument("--ledger", action="store_true", help="play the ledger alone")
    parser.add_argument("--log", action="store_true", help="show what the product logs")
    given = parser.parse_args()
    logging.getLogger("orchestra").setLevel(logging.WARNING if given.log else logging.CRITICAL + 1)
    first, end = (given.seed, given.seed + 1) if given.seed is not None else map(int, given.seeds.split(":"))
    began, failures, plays = time.process_time(), 0, 0
    with tempfile.TemporaryDirectory(prefix="orchestra-simulation-") as folder:
        machine = LedgerMachine() if given.ledger else Machine(given.keys or Path(folder))
        for plays, seed in enumerate(range(first, end), 1):
            failure = machine.play(seed)
            if failure is not None:
                failures += 1
                wrong = failure.wrong
                if isinstance(machine, Machine) and not given.first:
                    wrong = "\n\n" + as_test(seed, machine.shrink(seed, failure))
                print(f"seed {seed} failed: {wrong}", flush=True)
                if given.first or failures >= given.failures:
                    break
            elif plays % 500 == 0:
                print(f"{plays} plays", file=sys.stderr, flush=True)
    took = time.process_time() - began
    print(f"{plays} plays, {failures} failed; {took:.1f} s of a core, {took / plays * 1000:.1f} ms a play")
    if isinstance(machine, Machine):
        print(f"{machine.moments / plays:.0f} moments each; the last one has the digest {machine.trace}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

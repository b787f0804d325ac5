"""What a message costs the router of this checkout beside that of another one: processor time, in short turns.

Both route messages of 2.3 KB, signed with Ed25519, on a server of their own; they take turns, because the speed of a shared
machine changes within seconds. Prints one JSON line: for both the median and the least of the turns in microseconds a
message, and the median of the ratios within a turn.

    git worktree add ../before COMMIT      # and a .venv in it, in which it is installed
    python benchmarks/bench_turns.py --beside ../before [--turns N] [--messages N]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


class Turns:
    """A router of one checkout, in a process of its own."""

    def __init__(self, checkout: Path) -> None:
        own = checkout / ".venv" / "bin" / "python"
        python = str(own) if own.exists() else sys.executable
        self.figures: list[float] = []
        self.process = subprocess.Popen(
            [python, str(_HERE / "routing" / "turns.py"), str(checkout)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=checkout,
        )

    def turn(self, messages: int) -> float:
        """Microseconds of processor time for each of so many messages."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{messages}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)


def main() -> None:
    """Let both take turns; the first two are for warming up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--beside", type=Path, help="the other checkout, with its own .venv; none: this one again"
    )
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--messages", type=int, default=1000, help="messages in a turn")
    options = parser.parse_args()
    before, now = Turns((options.beside or _HERE.parent).resolve()), Turns(_HERE.parent)
    try:
        for number in range(options.turns + 2):
            pair = (before, now) if number % 2 else (now, before)
            for one in pair:
                figure = one.turn(options.messages)
                if number >= 2:
                    one.figures.append(figure)
    finally:
        before.end()
        now.end()
    figures = {
        name: {"median_us": round(statistics.median(one.figures), 1), "least_us": round(min(one.figures), 1)}
        for name, one in (("before", before), ("now", now))
    }
    ratio = statistics.median(b / a for a, b in zip(before.figures, now.figures, strict=True))
    sys.stdout.write(
        json.dumps({"turns": options.turns, **figures, "now_against_before": round(ratio, 3)}) + "\n"
    )


if __name__ == "__main__":
    main()

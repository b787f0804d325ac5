"""What a test on a scripted session takes: made, run, its child ended, resumed to its end.

Prints one JSON line: the milliseconds of the first session of a process, which imports and makes keys, then the median, p95 and
longest of the others, and the processor time of one at the median, which other work on the machine hardly changes: that is
to be below 50 ms.

    python benchmarks/bench_testing.py [--sessions N]
"""

from __future__ import annotations

import argparse
import json
import logging
import statistics
import sys
import time

from orchestrator import Context, agent
from orchestrator.testing import ScriptedSession

LIMIT_MS = 50


@agent("lead", role="coordinator")
def lead(ctx: Context) -> str:
    """Delegate once, wait, answer."""
    if ctx.cause == "start":
        ctx.delegate("finder", ctx.prompt)
        return "waiting"
    return ctx.callbacks[0].text


def one() -> tuple[float, float]:
    """One test; its milliseconds on the wall and on the processor."""
    began, cpu = time.perf_counter(), time.process_time()
    with ScriptedSession(lead, "What is a lease?") as session:
        session.end(session.run().delegated[0], "a promise")
        assert session.run().answer == "a promise"
    return (time.perf_counter() - began) * 1000, (time.process_time() - cpu) * 1000


def main() -> int:
    """Measure, print, and say whether the limit holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=50)
    count = parser.parse_args().sessions
    logging.disable(logging.CRITICAL)
    first, *others = [one() for _ in range(count + 1)]
    found = sorted(wall for wall, _ in others)
    p50, cpu_p50 = statistics.median(found), statistics.median(cpu for _, cpu in others)
    figures = {
        "sessions": count,
        "first_ms": round(first[0], 1),
        "p50_ms": round(p50, 1),
        "p95_ms": round(found[int(len(found) * 0.95)], 1),
        "max_ms": round(found[-1], 1),
        "cpu_p50_ms": round(cpu_p50, 1),
        "limit_ms": LIMIT_MS,
    }
    print(json.dumps(figures))
    return 0 if cpu_p50 < LIMIT_MS else 1


if __name__ == "__main__":
    sys.exit(main())

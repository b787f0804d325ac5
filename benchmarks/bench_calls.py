"""What the bounds of a model call cost: a reservation in its budgets, and a place within its provider's limits.

An agent with a budget of its tree and one of its own reserves and settles, and acquires and
releases a call under a limit, one after the other; on the embedded server, `appendfsync always`. Beside each: the
server's bare write. A model call makes all four, beside the provider's seconds.

Prints one JSON line for each part, as `bench_step.py` does. The last line has `reserve_p99_ms`, `acquire_p99_ms` and the
ratio of each part's median to that of the bare write, which it cannot undercut by more than its number of writes, two.

    python benchmarks/bench_calls.py [--calls N] [--quick]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from bench_step import Bench, Took, show, took

from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.policy.budget import Budget
from orchestrator.worker.context.context import Context


def reserve_and_settle(ctx: Context) -> None:
    """Reserve the most that a call can cost, and settle what it did cost."""
    with ctx.spending.reserve(requests=1, input_tokens=2000, output_tokens=500, usd=0.01) as reservation:
        reservation.settle(requests=1, input_tokens=1000, output_tokens=100, usd=0.002)


def acquire_and_release(ctx: Context) -> None:
    """Get a place for a call, and give it back."""
    with ctx.limits.acquire("bench", "model", tokens=2500) as permit:
        permit.release(tokens=1100)


def measure(bench: Bench, count: int) -> dict[str, float]:
    """Every part; what the last line says."""
    found: dict[str, list[Took]] = {"a bare write": [], "reserve and settle": [], "acquire and release": []}

    def caller(ctx: Context) -> None:
        for number in range(count + 50):
            bare = took(lambda: bench.redis.set("bench", "x" * 200))
            reserved = took(lambda: reserve_and_settle(ctx))
            acquired = took(lambda: acquire_and_release(ctx))
            if number >= 50:
                for part, one in zip(found.values(), (bare, reserved, acquired), strict=True):
                    part.append(one)

    bench.run("caller", caller, budget=Budget(usd=1e6, requests=10**9, tokens=10**12))
    shown = {part: show(part, times) for part, times in found.items()}
    bare, reserve, acquire = shown.values()
    return {
        "reserve_p99_ms": round(reserve[1], 3),
        "acquire_p99_ms": round(acquire[1], 3),
        "bare_p99_ms": round(bare[1], 3),
        "reserve_ratio_p50": round(reserve[0] / bare[0], 2),
        "acquire_ratio_p50": round(acquire[0] / bare[0], 2),
    }


def main() -> None:
    """Measure on a server of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, to see that it runs")
    options = parser.parse_args()
    count = options.calls // 10 if options.quick else options.calls
    limits = {"bench/*": {"requests_per_minute": 10**6, "tokens_per_minute": 10**9, "calls": 1000}}
    with tempfile.TemporaryDirectory() as folder:
        sockets = make_socket_dir()
        try:
            with ValkeyProcess(Path(folder) / "valkey", sockets) as server:
                last = measure(Bench(server.url, Path(folder) / "data", provider_limits=limits), count)
        finally:
            remove_socket_dir(sockets)
    sys.stdout.write(json.dumps(last) + "\n")


if __name__ == "__main__":
    main()

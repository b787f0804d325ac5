"""How long a tree of ten takes beside one of ten thousand whose runs are all ready, and alone: a whole stack, two slots.

The agent of both is paused until the large tree has launched everything; then the small tree is submitted, again and
again, beside it. Prints one JSON line with the medians in seconds and their ratio, `fair_ratio`.

    python benchmarks/bench_fair.py [--large N] [--small N] [--rounds N] [--work-ms MS]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.bootstrap import build_container
from orchestrator.client.client import Client
from orchestrator.config.settings import load_settings
from orchestrator.deployment.local_stack import LocalStack
from orchestrator.redisdb.client import connect

AGENTS = """
import os
import time

from orchestrator import agent


@agent("lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        ctx.delegate_all("worker", (str(number) for number in range(int(ctx.prompt))))
        ctx.wait_for("all")
        return "waiting"
    return "done"


@agent("worker")
def worker(ctx):
    time.sleep(float(os.environ["FAIR_WORK_MS"]) / 1000)
    return ctx.prompt
"""


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--large", type=int, default=10_000)
    parser.add_argument("--small", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--work-ms", type=float, default=100)
    options = parser.parse_args()
    os.environ["FAIR_WORK_MS"] = str(options.work_ms)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        (folder / "fair.py").write_text(AGENTS, encoding="utf-8")
        settings = load_settings(data=folder / "data", agents=(str(folder / "fair.py"),), concurrency=2)
        with LocalStack(settings) as stack:
            stack.wait_ready()
            with Client(stack.settings) as client:
                _measure(stack, client, options)


def _measure(stack: LocalStack, client: Client, options: argparse.Namespace) -> None:
    parts = build_container(connect(stack.url), stack.settings)

    def small_s() -> float:
        began = time.monotonic()
        client.submit("lead", str(options.small)).result(timeout_s=600)
        return time.monotonic() - began

    small_s()
    alone = [small_s() for _ in range(options.rounds)]
    parts.concurrency.pause("agent", "worker")
    large = client.submit("lead", str(options.large))
    while parts.ledger.sweep.ready(0, ["worker"]).get("worker", 0) < options.large:
        time.sleep(0.2)
    parts.concurrency.unpause("agent", "worker", agents=["worker"])
    parts.wake(["worker"])
    small_s()
    beside = [small_s() for _ in range(options.rounds)]
    left = parts.ledger.sweep.ready(0, ["worker"]).get("worker", 0)
    client.stop(large.id)
    figures = {
        "large": options.large,
        "small": options.small,
        "work_ms": options.work_ms,
        "alone_s": round(statistics.median(alone), 3),
        "beside_s": round(statistics.median(beside), 3),
        "left_ready": left,
        "fair_ratio": round(statistics.median(beside) / statistics.median(alone), 2),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()

"""What a durable step costs beside the function that it calls: on the embedded server, `appendfsync always`.

A worker in this process executes one agent with many steps, one after the other, then in eight threads, then as
tasks; then a run that is tried again, which finds them all. The functions do nothing. After each step of the first
part: the server's bare write of as many bytes, which no design can undercut. So both meet the same disk and the same
other work on the machine.

Prints one JSON line for each part: steps, milliseconds of one step at the median, p95, p99 and at most, and the
processor time that the worker spends on one at the median. The last line has `step_p99_ms`, `bare_p99_ms`, and `ratio_p50`
and `ratio_p99`, the step over the bare write.

    python benchmarks/bench_step.py [--steps N] [--quick]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from orchestrator.agents.definition import define_agent
from orchestrator.bootstrap import build_container
from orchestrator.client.client import Client
from orchestrator.config.settings import Settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.dispatch import RootResults, build_celery
from orchestrator.ledger import Start
from orchestrator.policy.budget import Budget
from orchestrator.redisdb import keys
from orchestrator.redisdb.client import connect
from orchestrator.worker.container import Runtime
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.runner import execute_run

VALUE = "x" * 1000


#: Seconds of one step on the wall and on the processor.
Took = tuple[float, float]


def show(part: str, times_s: list[Took]) -> tuple[float, float]:
    """Print the figures of one part; its median and its p99 in milliseconds."""
    found = sorted(wall * 1000 for wall, _ in times_s)
    p50, p99 = statistics.median(found), found[int(len(found) * 0.99)]
    figures = {
        "part": part,
        "steps": len(found),
        "p50_ms": round(p50, 3),
        "p95_ms": round(found[int(len(found) * 0.95)], 3),
        "p99_ms": round(p99, 3),
        "max_ms": round(found[-1], 3),
        "cpu_p50_ms": round(statistics.median(cpu for _, cpu in times_s) * 1000, 3),
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()
    return p50, p99


def took(call: Callable[[], object]) -> Took:
    """What a call takes in this thread."""
    wall, cpu = time.perf_counter(), time.thread_time()
    call()
    return time.perf_counter() - wall, time.thread_time() - cpu


class Bench:
    """A worker without Celery around it, on one server."""

    def __init__(self, url: str, data: Path, **more: Any) -> None:
        settings = Settings(redis_url=url, data=data, **more)
        self.redis = connect(url, check=False)
        self.parts = build_container(self.redis, settings)
        self.catalogue: dict[str, Any] = {}
        results = RootResults(build_celery(settings), self.redis)
        self.runtime = Runtime(parts=self.parts, results=results, catalogue=self.catalogue)

    def run(self, name: str, function: Any, *, tries: int = 1, budget: Budget | None = None) -> None:
        """Execute an agent once, or as often as it is to be tried. ``budget``: of its tree, and of the agent itself."""
        definition = define_agent(
            name, function=function, source="here", attempts=tries, backoff_s=0.001, budget=budget
        )
        self.catalogue[name] = definition
        self.parts.agents.announce([definition.record])
        session = Client(parts=self.parts).submit(name, "go", budget=budget).id
        about = self.parts.ledger.session(session)
        start = Start(
            session=session,
            message=about.message,
            sender="operator",
            digest="d",
            recipient=name,
            conversation=about.correlation,
            stream=keys.messages(0, "task-delegation", "high"),
            entry="1-1",
            mark_ms=60_000,
        )
        ledger = self.parts.ledger
        reply = ledger.scripts.run("start", *ledger.start_call(0, [start], group="router", keep_ms=60_000))
        dispatch = ledger.started(session, reply[0])
        assert dispatch is not None
        for attempt in range(1, tries + 1):
            verdict = "refused"
            while verdict == "refused":
                verdict = execute_run(self.runtime, agent=name, session=session, run=dispatch.run, worker="w")
            assert verdict == ("retry" if attempt < tries else "finished"), verdict


def timed(ctx: Context, name: str) -> Took:
    """What one step takes."""
    return took(lambda: ctx.step(name, lambda: VALUE))


async def atimed(ctx: Context, name: str) -> Took:
    """What one step of an async agent takes; its threads' processor time is not in it."""
    wall, cpu = time.perf_counter(), time.thread_time()
    await ctx.astep(name, lambda: VALUE)
    return time.perf_counter() - wall, time.thread_time() - cpu


def measure(bench: Bench, count: int) -> dict[str, float]:
    """Every part; what the last line says."""
    found: dict[str, list[Took]] = {}

    def alone(ctx: Context) -> None:
        for _ in range(50):
            timed(ctx, "warm")
        steps, bare = [], []
        for _ in range(count):
            steps.append(timed(ctx, "step"))
            bare.append(took(lambda: bench.redis.set("bench", VALUE)))
        found["a bare write"] = bare
        found["one after the other"] = steps

    def threads(ctx: Context) -> None:
        with ThreadPoolExecutor(8) as pool:
            found["in eight threads"] = list(pool.map(lambda n: timed(ctx, f"step {n}"), range(count)))

    async def tasks(ctx: Context) -> None:
        one = [await atimed(ctx, "step") for _ in range(count)]
        found["of an async agent"] = one

    def again(ctx: Context) -> None:
        times = [timed(ctx, "step") for _ in range(count)]
        if ctx.attempt == 1:
            raise ValueError("once more")
        found["found by the second try"] = times

    bench.run("alone", alone)
    bench.run("threads", threads)
    bench.run("tasks", tasks)
    bench.run("again", again, tries=2)
    shown = {part: show(part, times) for part, times in found.items()}
    step, bare = shown["one after the other"], shown["a bare write"]
    return {
        "step_p99_ms": round(step[1], 3),
        "bare_p99_ms": round(bare[1], 3),
        "ratio_p50": round(step[0] / bare[0], 2),
        "ratio_p99": round(step[1] / bare[1], 2),
    }


def main() -> None:
    """Measure on a server of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, to see that it runs")
    options = parser.parse_args()
    count = options.steps // 10 if options.quick else options.steps
    with tempfile.TemporaryDirectory() as folder:
        sockets = make_socket_dir()
        try:
            with ValkeyProcess(Path(folder) / "valkey", sockets) as server:
                last = measure(Bench(server.url, Path(folder) / "data"), count)
        finally:
            remove_socket_dir(sockets)
    sys.stdout.write(json.dumps(last) + "\n")


if __name__ == "__main__":
    main()

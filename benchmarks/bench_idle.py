"""What a stack costs that has nothing to do: commands of Redis a second, processor time, and memory.

The stack as `orchestra up` runs it, with its default settings, a server of its own and four slots; beside it the same figures
of a plain Celery worker with as many slots on the same server. Commands count those inside of scripts. Memory is each
process's share of what it shares (PSS), so that it adds up.

    python benchmarks/bench_idle.py [--seconds N] [--json]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import redis

from orchestrator.config.settings import Settings
from orchestrator.deployment.embedded.server_manager import read_record
from orchestrator.deployment.local_stack import LocalStack
from orchestrator.redisdb.client import connect

#: Seconds after the start for which the services look for what was left over.
_QUIET_AFTER_S: Final = 25.0
_SLOTS: Final = 4
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += family(int(child))
    return found


def spent_s(pids: list[int]) -> float:
    """Return the processor time of processes so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / _TICKS


def memory_mib(pids: list[int]) -> float:
    """Return the memory of processes."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def calls(client: redis.Redis) -> int:
    """Return the commands that the server has carried out."""
    stats: Any = client.info("commandstats")
    return sum(command["calls"] for command in stats.values())


def url_of(data: Path) -> str:
    """Wait for the server of a data folder; return its URL."""
    while (record := read_record(data)) is None:
        time.sleep(0.1)
    return record.url


def watch(client: redis.Redis, family_of: Callable[[], list[int]], seconds: float) -> dict[str, float]:
    """Return the figures of some processes at rest."""
    time.sleep(_QUIET_AFTER_S)
    pids = family_of()
    before, spent, began = calls(client), spent_s(pids), time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return {
        "commands_a_second": round((calls(client) - before) / took, 1),
        "core_percent": round(100 * (spent_s(pids) - spent) / took, 2),
        "processes": len(pids),
        "memory_mib": round(memory_mib(pids)),
    }


def main() -> None:
    """Start both, one after the other, and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--json", action="store_true", help="one JSON line")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as made:
        agents = Path(__file__).with_name("fanin") / "agents.py"
        command = ["up", "--agents", str(agents), "--data", f"{made}/data", "--concurrency", str(_SLOTS)]
        figures = {}
        with subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *command],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as stack:
            try:
                client = connect(url_of(Path(made) / "data"))
                figures["stack"] = watch(client, lambda: family(stack.pid), asked.seconds)
            finally:
                stack.terminate()
        settings = Settings(data=Path(made) / "plain", agents=(str(agents),))
        with LocalStack(settings, specs=[]) as alone:
            client = connect(alone.url)
            celery = [
                sys.executable,
                "-m",
                "celery",
                "-b",
                alone.url.replace("unix://", "redis+socket://"),
                "worker",
            ]
            with subprocess.Popen(
                [*celery, "-c", str(_SLOTS), "-l", "error"], stderr=subprocess.DEVNULL
            ) as plain:
                try:
                    figures["celery"] = watch(client, lambda: family(plain.pid), asked.seconds)
                finally:
                    plain.terminate()
    for name, found in figures.items():
        line = (
            json.dumps({"idle": name, **found})
            if asked.json
            else f"{name:<7} " + "  ".join(f"{value:g} {what}" for what, value in found.items())
        )
        sys.stdout.write(line.replace("_", " ") + "\n" if not asked.json else line + "\n")


if __name__ == "__main__":
    main()

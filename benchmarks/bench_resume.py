"""From a child's stop to its parent's resume: alone, beside parked parents, and while other wake-ups go on.

The stack as `orchestra up` runs it, on a server of its own. Parents are parked as they wait for children of an agent that
is paused. What the machine carries is found first: so many wake-ups a second when many sessions are submitted at once;
the load is a part of that, at a steady pace, or what `--rate` says. The ratios say more than the times.

Prints one JSON line for each part.

    python benchmarks/bench_resume.py [--parked N] [--rounds N] [--rate WAKE_UPS_A_SECOND]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

from fanin.ours import Ours

from orchestrator.bootstrap import Container
from orchestrator.client.client import Client, SessionHandle
from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.redisdb.client import connect

_TIMEOUT_S = 600.0
#: The part of what the machine carries that goes on as load.
_PART = 0.5


def say(**figures: Any) -> None:
    """Print one JSON line."""
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


class Load:
    """Sessions with one child each, submitted at a steady pace from a thread: each is one wake-up of a parent."""

    def __init__(self, client: Client, per_s: float) -> None:
        self._client = client
        self._per_s = per_s
        self._stop = threading.Event()
        self._sessions: list[SessionHandle] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._submitted_s = time.monotonic() - self._began
        for session in self._sessions:
            session.result(_TIMEOUT_S)
        self._ended_s = time.monotonic() - self._began

    @property
    def per_s(self) -> float:
        """Wake-ups a second from the first submission to the last end."""
        return len(self._sessions) / self._ended_s

    @property
    def late_s(self) -> float:
        """Seconds from the last submission to the last end: much of it shows more load than the machine carries."""
        return self._ended_s - self._submitted_s

    def _run(self) -> None:
        while not self._stop.is_set():
            self._sessions.append(self._client.submit("fan", "1"))
            next_at = self._began + len(self._sessions) / self._per_s
            self._stop.wait(max(0.0, next_at - time.monotonic()))


def latency(running: Ours, rounds: int) -> dict[str, float]:
    """Percentiles of a row of resumes, one after the other, in milliseconds."""
    times = sorted(running.latencies(rounds))
    return {
        "p50_ms": round(statistics.median(times), 1),
        "p99_ms": round(times[min(len(times) - 1, round(len(times) * 0.99))], 1),
        "max_ms": round(times[-1], 1),
    }


def park(running: Ours, parts: Container, count: int) -> None:
    """Launch parents that wait for children which do not run."""
    parts.concurrency.pause("agent", "late")
    running.client.submit("host", str(count))
    while parts.ledger.sweep.ready(0, ["late"]).get("late", 0) < count:
        time.sleep(0.1)


def main() -> None:
    """Measure alone, beside parked parents, and under load."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--parked", type=int, default=10_000, help="parents that are parked")
    parser.add_argument("--rounds", type=int, default=200, help="resumes in a row")
    parser.add_argument("--slots", type=int, default=4, help="worker processes")
    parser.add_argument("--rate", type=float, help="wake-ups a second; else half of what the machine carries")
    given = parser.parse_args()
    socket_dir = make_socket_dir()
    with tempfile.TemporaryDirectory(prefix="resume-") as name:
        folder = Path(name)
        try:
            with (
                ValkeyProcess(folder / "valkey", socket_dir) as server,
                Ours(server, folder, slots=given.slots) as running,
                connect(server.url) as redis,
            ):
                measure(running, Container(redis, running.client.settings), given)
        finally:
            remove_socket_dir(socket_dir)


def measure(running: Ours, parts: Container, given: argparse.Namespace) -> None:
    """All parts on one stack."""
    running.latencies(20)
    alone = latency(running, given.rounds)
    say(part="alone", resumes=given.rounds, **alone)
    began = time.monotonic()
    park(running, parts, given.parked)
    running.settle()
    say(part="parked", parents=given.parked, seconds=round(time.monotonic() - began, 1))
    beside = latency(running, given.rounds)
    say(
        part="beside parked parents",
        **beside,
        p50_ratio=_ratio(beside, alone, "p50"),
        p99_ratio=_ratio(beside, alone, "p99"),
    )
    sessions = 200
    carried = sessions / (running.forest(sessions, 1) / 1000)
    rate = given.rate or carried * _PART
    with Client(running.client.settings) as client, Load(client, rate) as load:
        under = latency(running, given.rounds)
    say(
        part="under load beside parked parents",
        carried_per_s=round(carried),
        wanted_per_s=round(rate),
        wake_ups_per_s=round(load.per_s, 1),
        late_s=round(load.late_s, 2),
        **under,
        p50_ratio=_ratio(under, alone, "p50"),
        p99_ratio=_ratio(under, alone, "p99"),
    )


def _ratio(figures: dict[str, float], alone: dict[str, float], name: str) -> float:
    return round(figures[f"{name}_ms"] / alone[f"{name}_ms"], 2)


if __name__ == "__main__":
    main()

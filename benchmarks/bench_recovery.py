"""How soon work goes on after a process of the stack was killed, from SIGKILL to the next progress that needs it.

The stack as `orchestra up` runs it, with its default settings and a server of its own. Kind after kind is killed again
and again, each time with work for it:

- router, callbacks: until a session with one child, submitted right after the kill, has its answer;
- audit: until the audit trail has the message that such a session begins with;
- reaper: until the next sweep begins;
- pool: the process that executes a run, until the run is at work again; worker: the same for the worker's main process, whose pool
  goes with it;
- server, keeper: the embedded server, or the process that keeps it, until a session submitted after the kill has its answer.

    python benchmarks/bench_recovery.py [--kills N] [--kinds KIND …] [--json]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from orchestrator.audit.reader import AuditReader
from orchestrator.audit.store import AuditStore
from orchestrator.bootstrap import Container
from orchestrator.client.client import Client
from orchestrator.config.settings import Settings
from orchestrator.deployment.embedded.server_manager import read_record
from orchestrator.deployment.local_stack import LocalStack
from orchestrator.errors import OrchestraError
from orchestrator.ledger import Lease
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.client import connect

T = TypeVar("T")

KINDS: Final = ("router", "callbacks", "reaper", "audit", "pool", "worker", "server", "keeper")
#: Seconds after which nothing comes any more.
_TIMEOUT_S: Final = 300.0
#: Seconds for which a process lives before it is killed: one that nobody has seen connected is missed later.
_SETTLED_S: Final = 3.0
#: A stack whose server dies more often than so, each time within so many seconds of its start, ends.
_SERIES, _SERIES_S = 5, 31.0
#: Seconds between two looks.
_LOOK_S: Final = 0.01


class Recovery:
    """One stack whose processes are killed."""

    def __init__(self, stack: LocalStack, folder: Path) -> None:
        self._stack = stack
        self._folder = folder
        self._kills: Counter[str] = Counter()
        self.client = Client(stack.settings)
        self.parts = Container(connect(stack.url), stack.settings)

    def measure(self, kind: str) -> float:
        """Seconds from one kill to the next progress."""
        wait(lambda: self._stack.ready)
        self._kills[kind] += 1
        ends_series = kind == "server" and self._kills[kind] % _SERIES == 0
        time.sleep(_SERIES_S if ends_series else _SETTLED_S)
        match kind:
            case "pool" | "worker":
                return self._run_again(kind)
            case "reaper":
                return self._sweep_again()
            case "audit":
                return self._written_again()
        return self._answer_again(self._pid_of(kind))

    def _pid_of(self, kind: str) -> int:
        if kind == "server":
            return int(self.parts.redis.info("server")["process_id"])  # type: ignore[index]
        if kind == "keeper":
            record = read_record(self._stack.settings.data)
            assert record is not None
            return record.pid
        return self._stack.pids[kind]

    def _answer_again(self, pid: int) -> float:
        began = kill(pid)
        session = wait(self._submit)
        wait(lambda: outlast(lambda: self.client.result(session, timeout_s=_TIMEOUT_S)))
        return time.monotonic() - began

    def _submit(self) -> str:
        return outlast(lambda: self.client.submit("relay", "1").id)

    def _sweep_again(self) -> float:
        key = ledger_keys.sweep(0)
        began = kill(self._stack.pids["reaper"])
        before = self.parts.redis.get(key)
        wait(lambda: self.parts.redis.get(key) != before)
        return time.monotonic() - began

    def _written_again(self) -> float:
        reader = AuditReader(AuditStore(self._stack.settings.audit_database, read_only=True))
        began = kill(self._stack.pids["audit"])
        session = self.client.submit("relay", "1").id
        wait(lambda: str(bool(reader.find(session)) or ""))
        took = time.monotonic() - began
        self.client.result(session, timeout_s=_TIMEOUT_S)
        return took

    def _run_again(self, kind: str) -> float:
        go = self._folder / "go"
        go.unlink(missing_ok=True)
        session = self.client.submit("sleeper", str(go)).id
        before = wait(lambda: self._lease(session))
        time.sleep(_SETTLED_S)
        pid = int(before.claim.rpartition(".")[2])
        began = kill(pid if kind == "pool" else self._stack.pids["worker"])
        wait(lambda: (now := self._lease(session)) is not None and now.claim != before.claim)
        took = time.monotonic() - began
        go.touch()
        self.client.result(session, timeout_s=_TIMEOUT_S)
        return took

    def _lease(self, session: str) -> Lease | None:
        return next((one for one in self.parts.ledger.sweep.leases(0) if one.session == session), None)


def kill(pid: int) -> float:
    """End a process at once; when that was."""
    os.kill(pid, signal.SIGKILL)
    return time.monotonic()


def wait(look: Callable[[], T | None]) -> T:
    """Look until there is something."""
    until = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < until:
        if found := look():
            return found
        time.sleep(_LOOK_S)
    raise SystemExit("nothing came")


def outlast(call: Callable[[], str]) -> str:
    """What a call gives; nothing while the server is away."""
    try:
        return call()
    except (OrchestraError, OSError):
        return ""


def main() -> None:
    """Kill and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=30, help="of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--quick", action="store_true", help="two kills of each kind")
    parser.add_argument("--json", action="store_true", help="one JSON line for each kind")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        agents = Path(__file__).with_name("fanin") / "agents.py"
        with LocalStack(Settings(data=folder / "data", agents=(str(agents),), concurrency=2)) as stack:
            stack.wait_ready()
            recovery = Recovery(stack, folder)
            for kind in asked.kinds:
                report(
                    kind,
                    [recovery.measure(kind) for _ in range(2 if asked.quick else asked.kills)],
                    asked.json,
                )


def report(kind: str, took: list[float], as_json: bool) -> None:
    """Print what one kind took."""
    p99 = statistics.quantiles(2 * took, n=100, method="inclusive")[98]
    figures = {"p50_s": statistics.median(took), "p99_s": p99, "max_s": max(took)}
    if as_json:
        line = json.dumps(
            {"killed": kind, "kills": len(took), **{n: round(v, 3) for n, v in figures.items()}}
        )
    else:
        line = f"{kind:<10} {len(took):>3} kills" + "".join(
            f"  {n[:-2]} {v:6.2f} s" for n, v in figures.items()
        )
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

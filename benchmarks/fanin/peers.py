"""The other systems: their workers and driver as processes, on the same server over the same socket."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.redisdb.client import connect
from orchestrator.runtime.process import ending_with_parent

_HERE = Path(__file__).resolve().parent
#: Where `make bench-peers` installs them.
_PEERS_PYTHON = _HERE.parent.parent / ".venv-bench" / "bin" / "python"
#: What a flow needs from the registry of node packages; installed into a temporary folder for the run.
_NODE_PACKAGES = ("bullmq@6.7.0", "ioredis@5")
#: They are up side by side on one server; ours has the first database.
_DATABASES = {"chord": "1", "dramatiq": "2", "bullmq": "3"}


def flush(url: str) -> None:
    """Empty the server, so that nobody pays for the keys of a measurement before."""
    client = connect(url)
    client.flushall()
    client.close()


@cache
def _node_modules() -> Path | None:
    """A folder with BullMQ in it, or None where node or npm is missing or cannot install it."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        print("bullmq: node or npm is missing", file=sys.stderr)
        return None
    folder = tempfile.TemporaryDirectory(prefix="fanin-node-")
    _node_modules.__dict__["folder"] = folder  # it lives as long as this process
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *_NODE_PACKAGES]
    done = subprocess.run(command, check=False, cwd=folder.name, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"bullmq: cannot be installed: {done.stderr.strip() or done.stdout.strip()}", file=sys.stderr)
        return None
    return Path(folder.name) / "node_modules"


class Peer:
    """One of `chord`, `dramatiq`, `bullmq`; entering gives None where it cannot run."""

    def __init__(self, name: str, server: ValkeyProcess, folder: Path, *, slots: int) -> None:
        self._name = name
        self._server = server
        self._folder = folder
        self._slots = slots
        self._processes: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> Self | None:
        commands = self._commands()
        if commands is None:
            return None
        workers, driver = commands
        for label, command in workers.items():
            self._start(label, command)
        self._start("driver", driver)
        return self

    def _commands(self) -> tuple[dict[str, list[str]], list[str]] | None:
        """The workers by name, and the driver."""
        slots = str(self._slots)
        if self._name == "chord":
            worker = [sys.executable, "-m", "celery", "-A", "chord", "worker", "--concurrency", slots]
            quick = ["--without-gossip", "--without-mingle", "--loglevel", "WARNING"]
            return {"worker": [*worker, *quick]}, [sys.executable, "chord.py"]
        if self._name == "dramatiq":
            python = str(_PEERS_PYTHON) if _PEERS_PYTHON.exists() else sys.executable
            if subprocess.run([python, "-c", "import dramatiq"], check=False, capture_output=True).returncode:
                print("dramatiq: not installed; run `make bench-fanin`", file=sys.stderr)
                return None
            worker = [python, "-m", "dramatiq", "group", "--processes", slots, "--threads", "1"]
            return {"worker": worker}, [python, "group.py"]
        modules = _node_modules()
        if modules is None:
            return None
        os.environ["BENCH_MODULES"] = str(modules)
        workers = {f"worker {n}": ["node", "flow.mjs", "worker"] for n in range(self._slots)}
        return workers, ["node", "flow.mjs"]

    def _start(self, label: str, command: list[str]) -> None:
        log = (self._folder / f"{label}.log").open("w")
        piped = subprocess.PIPE if label == "driver" else None
        self._processes[label] = subprocess.Popen(
            ending_with_parent(command),
            cwd=_HERE,
            env={
                **os.environ,
                "BENCH_SOCKET": str(self._server.socket),
                "BENCH_DATABASE": _DATABASES[self._name],
                "PYTHONPATH": str(_HERE),
            },
            stdin=piped or subprocess.DEVNULL,
            stdout=piped or log,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        log.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes.values():
            if process.stdin is not None:
                process.stdin.close()
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 10
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()

    def labels(self) -> dict[int, str]:
        """The processes whose CPU time counts."""
        processes = {process.pid: label.partition(" ")[0] for label, process in self._processes.items()}
        return {self._server.pid or 0: "server", **processes}

    def settle(self) -> None:
        """Nothing is left to be done when the resume runs."""

    def fan_in(self, size: int) -> float:
        """Milliseconds from the launch to the resume that has all of ``size`` answers."""
        driver = self._processes["driver"]
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(f"{size}\n")
        driver.stdin.flush()
        line = driver.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self._name} does not run:\n{(self._folder / 'driver.log').read_text()[-2000:]}"
            )
        found: float = json.loads(line)
        return found

"""The product's fork server for stacks of tests: what they start has everything imported."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.deployment.forks import Forked, ForkServer

ROOT = Path(__file__).parents[1]


def start_forks(*modules: str, **variables: str) -> ForkServer:
    """A fork server that also has these modules imported, and finds these variables in its environment meanwhile."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("ORCHESTRA_", "COV"))}
    forks = ForkServer(env={**env, **variables, "PYTHONPATH": str(ROOT)}, modules=("tests.stands", *modules))
    forks.start()
    forks.wait_ready()
    assert forks.ready
    return forks


@dataclass(frozen=True)
class ForkedProcess:
    """A process that was forked, with what tests use of a `Popen`."""

    forked: Forked
    args: str

    @property
    def pid(self) -> int:
        """The process id; it leads a group of that number."""
        return self.forked.pid

    @property
    def returncode(self) -> int | None:
        """The exit code once it is known to have ended."""
        return self.forked.returncode

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        return self.forked.poll()

    def wait(self, timeout: float | None = None) -> int:
        """The exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not within ``timeout`` seconds.
        """
        deadline = time.monotonic() + (timeout or float("inf"))
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            time.sleep(0.01)
        return code

    def send_signal(self, sig: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self.forked.send_signal(sig)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)

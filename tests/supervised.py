"""A supervisor in the hands of a test: it sees to its children until something holds, and keeps what it tells."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.deployment.forks import ForkServer
from orchestrator.deployment.supervisor import ChildSpec, Notice, Supervisor
from tests.waiting import wait_until


class Supervised(Supervisor):
    """Runs children, by default one whose name is `a`."""

    def __init__(
        self,
        *specs: ChildSpec,
        logs: Path,
        env: Mapping[str, str] = os.environ,
        forks: ForkServer | None = None,
    ) -> None:
        self.notices: list[Notice] = []
        super().__init__(specs, env=env, logs=logs, notify=self.notices.append, forks=forks)

    def until(self, condition: Callable[[], object]) -> None:
        """See to the children until a condition holds."""

        def look() -> object:
            self.tick()
            return condition()

        wait_until(look)

    def until_ready(self) -> None:
        """See to the children until all of them are ready."""
        self.until(lambda: self.ready)

    def until_told(self, kind: str, name: str = "a") -> None:
        """See to the children until a notice of a kind is told of one."""
        self.until(lambda: kind in self.told(name))

    def told(self, name: str = "a") -> list[str]:
        """The kinds of the notices that were told of a child."""
        return [notice.kind for notice in self.notices if notice.name == name]

    def kill(self, name: str = "a") -> int:
        """Kill a child with SIGKILL; the process id that it had."""
        pid = self.pids[name]
        os.kill(pid, signal.SIGKILL)
        return pid

    def stop_at_once(self) -> None:
        """Stop all children without waiting for any."""
        self.stop(at_once=lambda: True)

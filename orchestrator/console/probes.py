"""`/metrics`, `/healthz` and `/readyz` beside the pages: an exporter that begins to read when somebody first asks."""

from __future__ import annotations

import threading
from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import redis

from orchestrator.bootstrap import Container
from orchestrator.console.stack import Stack
from orchestrator.errors import OrchestraError
from orchestrator.telemetry.catalogue import INSTALL

if TYPE_CHECKING:
    from orchestrator.telemetry.server import Answer, Probes

#: Paths that programs ask, and the one of them that says nothing of the stack.
PATHS: Final = ("/metrics", "/healthz", "/readyz")
OPEN: Final = "/healthz"
_TEXT: Final = "text/plain; charset=utf-8"


class StackProbes:
    """Probes of the stack that a console shows. Safe to share between threads."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._lock = threading.Lock()
        self._probes: Probes | None = None
        self._parts: Container | None = None

    def answer(self, path: str, accept: str) -> Answer:
        """Return the answer to one of :data:`PATHS`, or to a path below it."""
        if path == OPEN:
            return HTTPStatus.OK, _TEXT, b"alive\n"
        if find_spec("prometheus_client") is None:
            return HTTPStatus.NOT_FOUND, _TEXT, f"{INSTALL}\n".encode()
        try:
            self._stack.revision()  # whether it is still there: it may have moved
            return self._of_stack().answer(path, accept)
        except (OrchestraError, redis.RedisError, OSError) as error:
            self._stack.forget()
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, f"{' '.join(str(error).split())}\n".encode()

    def close(self) -> None:
        """Read no more, and write down how far the trail was read."""
        with self._lock:
            probes, self._probes, self._parts = self._probes, None, None
        if probes is not None:
            probes.close()

    def _of_stack(self) -> Probes:
        """Return the probes of the stack that is there now: after an outage it may be another one."""
        from orchestrator.telemetry.exporter import Exporter
        from orchestrator.telemetry.server import Probes

        parts = self._stack.parts
        with self._lock:
            if self._probes is not None and self._parts is parts:
                return self._probes
            former, probes = self._probes, Probes(Exporter(parts))
            self._probes, self._parts = probes, parts
        if former is not None:
            former.close()
        probes.begin()
        return probes

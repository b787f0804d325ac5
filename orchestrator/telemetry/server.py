"""`/metrics`, `/healthz` and `/readyz` over HTTP; for the exporter and for who watches a stack."""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import urlsplit

import redis

from orchestrator.errors import OrchestraError
from orchestrator.log import RateLimitedLog, get_logger
from orchestrator.telemetry.exporter import Exporter, exposition, registry_of

#: Services without which nothing moves.
NEEDED: Final = ("router", "callbacks", "reaper", "audit", "worker")
#: Seconds that a client may take to say what it wants.
_CLIENT_S: Final = 10
#: Seconds between two readings while nobody asks: so that the next scrape has little to read.
_READ_EVERY_S: Final = 30.0
_FIRST_S: Final = 0.1
_TEXT: Final = "text/plain; charset=utf-8"

_log = get_logger()
#: Status, content type and body.
Answer = tuple[HTTPStatus, str, bytes]
#: Why there may be no values for the moment.
_AWAY: Final = (OrchestraError, redis.RedisError, OSError)


class Probes:
    """Answers of one exporter to who watches a stack. Safe to share between threads."""

    def __init__(self, exporter: Exporter) -> None:
        self.exporter = exporter
        self._registry = registry_of(exporter)
        self._stop = threading.Event()
        self._seldom = RateLimitedLog()
        self._reader = threading.Thread(target=self._read, name="metrics", daemon=True)

    def begin(self) -> None:
        """Read the whole trail at first, then a little now and then, so that a scrape has little to read."""
        self._reader.start()

    def close(self) -> None:
        """Read no more, and write down how far the trail was read."""
        self._stop.set()
        if self._reader.ident is not None:
            self._reader.join(timeout=5)
            self.exporter.close()

    def _read(self) -> None:
        pause_s = _FIRST_S
        while not self._stop.wait(pause_s):
            pause_s = _FIRST_S if self.complaint() else _READ_EVERY_S

    def complaint(self) -> str:
        """Return why there are no right values now; empty if there are."""
        try:
            self.exporter.reading()
        except _AWAY as error:
            return self._reported(error)
        return ""

    def _reported(self, error: Exception) -> str:
        reason = " ".join(str(error).split())
        if self._seldom.due(type(error).__name__):
            _log.warning("metrics-not-read", error=reason)
        return reason

    def metrics(self, accept: str) -> Answer:
        """Return the exposition; 503 where it would be wrong or old."""
        try:
            content_type, body = exposition(self._registry, accept)
        except _AWAY as error:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, self._reported(error))
        return HTTPStatus.OK, content_type, body

    def ready(self, service: str = "") -> Answer:
        """Say whether a stack, or one of its services, has living copies; each hanging copy is named."""
        try:
            reading = self.exporter.reading()
        except _AWAY as error:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, self._reported(error))
        living = Counter(record.service for record in reading.services)
        wanted = (service,) if service else NEEDED
        document: Mapping[str, Any] = {
            "ready": all(living[name] for name in wanted),
            "services": {name: living[name] for name in sorted({*wanted, *(() if service else living)})},
            "hung": sorted(name for name in reading.hung if not service or name == service),
        }
        status = HTTPStatus.OK if document["ready"] else HTTPStatus.SERVICE_UNAVAILABLE
        return status, "application/json", json.dumps(document).encode() + b"\n"

    def answer(self, path: str, accept: str) -> Answer:
        """Return the answer to a path."""
        match urlsplit(path).path.split("/"):
            case ["", "metrics"]:
                return self.metrics(accept)
            case ["", "healthz"]:
                # It answers, so it lives; whether Redis does is another question.
                return _text(HTTPStatus.OK, "alive")
            case ["", "readyz"]:
                return self.ready()
            case ["", "readyz", service] if service in (*NEEDED, "notifier"):
                return self.ready(service)
        return _text(HTTPStatus.NOT_FOUND, "there are /metrics, /healthz, /readyz and /readyz/SERVICE")


class MetricsServer(ThreadingHTTPServer):
    """Serves one exporter until it is closed."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, exporter: Exporter, *, host: str, port: int) -> None:
        """Listen on an address.

        Raises:
            OSError: nobody can listen there.
        """
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.probes = Probes(exporter)
        super().__init__((host, port), _Handler)
        self.probes.begin()

    def server_bind(self) -> None:
        # The library asks the resolver for the name of the host, which nobody needs and which may take long.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def server_close(self) -> None:
        super().server_close()
        self.probes.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Leave a client that has gone away alone."""


class _Handler(BaseHTTPRequestHandler):
    """Answers one client."""

    timeout = _CLIENT_S
    server_version = "agent-orchestra"
    sys_version = ""
    server: MetricsServer

    def do_GET(self) -> None:
        self._send(body=True)

    def do_HEAD(self) -> None:
        self._send(body=False)

    def _send(self, *, body: bool) -> None:
        status, content_type, octets = self.server.probes.answer(self.path, self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(octets)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if body:
            self.wfile.write(octets)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: a scrape every few seconds is no event."""


def _text(status: HTTPStatus, words: str) -> Answer:
    return status, _TEXT, words.encode() + b"\n"

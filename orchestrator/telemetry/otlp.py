"""Sending of spans to a collector: OTLP over HTTP in JSON, which needs no library."""

from __future__ import annotations

import json
import urllib.request
from collections import deque
from collections.abc import Iterable
from importlib.metadata import version
from typing import Final
from urllib.parse import urlsplit

from orchestrator.errors import InputError
from orchestrator.log import RateLimitedLog, get_logger
from orchestrator.telemetry.spans import SCHEMA_URL, RunSpan, attributes_of

#: Spans of one request, and those that wait for a collector that is away; the oldest are dropped.
_BATCH: Final = 512
_MOST: Final = 50_000
#: Seconds that a request may take.
_TIMEOUT_S: Final = 5.0
_PATH: Final = "/v1/traces"

_log = get_logger()


class TraceSender:
    """Sends spans to one collector, which may be away for a while."""

    def __init__(self, url: str) -> None:
        """Send to this address.

        Raises:
            InputError: it is no HTTP URL.
        """
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise InputError(f"{url!r} is no address of a collector: give one like http://127.0.0.1:4318")
        self._url = url if url.endswith(_PATH) else url.rstrip("/") + _PATH
        self._waiting: deque[RunSpan] = deque()
        self._seldom = RateLimitedLog()
        #: Spans that were dropped.
        self.dropped = 0

    def add(self, spans: Iterable[RunSpan]) -> None:
        """Let these wait until they are sent."""
        self._waiting.extend(spans)
        dropped = max(0, len(self._waiting) - _MOST)
        for _ in range(dropped):
            self._waiting.popleft()
        if dropped:
            self.dropped += dropped
            _log.warning("spans-dropped", spans=dropped)

    def send(self) -> bool:
        """Send what waits; return True if nothing is left."""
        while self._waiting:
            batch = [self._waiting[place] for place in range(min(_BATCH, len(self._waiting)))]
            try:
                self._post(batch)
            except (OSError, ValueError) as error:
                if self._seldom.due("spans-not-sent"):
                    _log.warning(
                        "spans-not-sent",
                        collector=urlsplit(self._url).netloc.rpartition("@")[2],
                        error=str(error),
                    )
                return False
            for _ in batch:
                self._waiting.popleft()
        return True

    def _post(self, spans: list[RunSpan]) -> None:
        release = version("agent-orchestra")
        resource = {"service.name": "agent-orchestra", "service.version": release}
        scope = {"scope": {"name": "orchestrator", "version": release}, "schemaUrl": SCHEMA_URL}
        document = {
            "resourceSpans": [
                {
                    "resource": {"attributes": attributes_of(resource)},
                    "scopeSpans": [{**scope, "spans": [span.to_otlp() for span in spans]}],
                }
            ]
        }
        request = urllib.request.Request(  # noqa: S310  (the scheme was checked)
            self._url, json.dumps(document).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
            answer.read()

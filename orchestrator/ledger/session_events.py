"""Session events, for those who wait for one."""

from __future__ import annotations

from typing import Any

import redis

from orchestrator import machine
from orchestrator.ids import shard_of
from orchestrator.ledger.decode import text
from orchestrator.redisdb import keys


class SessionEvents:
    """The events of one session, and of its children ``with_children``, from the moment at which this is made.

    The callback service removes events that it has handled. An event can therefore be missed: look at the session after
    each wait, whatever it returned.
    """

    def __init__(self, client: redis.Redis, session: str, *, with_children: bool = False) -> None:
        self._redis = client
        self._session = session
        self._fields = (b"session", b"parent") if with_children else (b"session",)
        self._stream = keys.session_events(shard_of(session))
        try:
            self._last: Any = client.xinfo_stream(self._stream)["last-generated-id"]
        except redis.ResponseError:
            self._last = b"0-0"  # there has been no event yet

    def wait(self, for_s: float) -> bool:
        """Return at the next event, or after ``for_s`` seconds; whether there was an event."""
        until = machine.monotonic() + for_s
        while (left_s := until - machine.monotonic()) > 0.001:
            answer: Any = self._redis.xread(
                {self._stream: self._last}, count=500, block=max(1, round(left_s * 1000))
            )
            for _, entries in answer or []:
                self._last = entries[-1][0]
                if any(self._is_ours(fields) for _, fields in entries):
                    return True
        return False

    def _is_ours(self, fields: dict[bytes, bytes]) -> bool:
        return any(text(fields.get(name)) == self._session for name in self._fields)

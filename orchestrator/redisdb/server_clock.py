"""The server's clock as this process reckons it: one time for all routers, whatever their hosts' clocks say."""

from __future__ import annotations

import time

import redis

#: Seconds for which this process reckons by its own monotonic clock before it asks again.
ASK_EVERY_S = 1.0


class ServerClock:
    """Redis `TIME`, asked once a second. Entry ids are the same server's time and can be compared with it.

    A clock of this host that is wrong, or jumps, changes nothing.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._asked_at = 0.0
        self._server_ms: int | None = None

    def now_ms(self) -> int:
        """The server's time in milliseconds since the epoch.

        Raises:
            redis.RedisError: it has to be asked and does not answer.
        """
        now = time.monotonic()
        if self._server_ms is None or now - self._asked_at > ASK_EVERY_S:
            seconds, micros = self._redis.time()
            self._server_ms, self._asked_at = int(seconds) * 1000 + int(micros) // 1000, now
        return self._server_ms + int((now - self._asked_at) * 1000)

    def monotonic(self) -> float:
        """Seconds that only go forward, of this process."""
        return time.monotonic()

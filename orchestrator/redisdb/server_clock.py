"""The time of the Redis server: one time for all processes, no matter what the clocks of their hosts say."""

from __future__ import annotations

import redis

from orchestrator import machine

#: Seconds for which the answer of the server is carried on by the monotonic clock of this process.
ASK_EVERY_S = 1.0


def server_ms(client: redis.Redis) -> int:
    """Redis `TIME` in milliseconds since the epoch."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


class ServerClock:
    """Redis `TIME`, asked once a second. The ids of stream entries are of the same clock and can be compared with it.

    A machine that slept, or whose clock was set, asks at once: the monotonic clock does not know of it.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._asked_at = 0.0
        #: How far the wall clock of this machine was ahead of its monotonic clock when it asked, in seconds.
        self._ahead_s = 0.0
        self._server_ms: int | None = None

    def now_ms(self) -> int:
        """Return the server's time in milliseconds since the epoch.

        Raises:
            redis.RedisError: it has to be asked and does not answer.
        """
        now = machine.monotonic()
        ahead_s = machine.time() - now
        jumped = abs(ahead_s - self._ahead_s) > ASK_EVERY_S
        if self._server_ms is None or jumped or now - self._asked_at > ASK_EVERY_S:
            self._server_ms, self._asked_at, self._ahead_s = server_ms(self._redis), now, ahead_s
        return self._server_ms + int((now - self._asked_at) * 1000)

    def monotonic(self) -> float:
        """Return the seconds that only go forward, of this process."""
        return machine.monotonic()

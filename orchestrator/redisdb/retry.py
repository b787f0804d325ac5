"""Calls that outlast an outage of Redis: how long, and when they are made again.

Every transition is harmless twice, so a call whose answer got lost is made again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import redis

from orchestrator import machine
from orchestrator.errors import ServerUnavailable
from orchestrator.log import get_logger
from orchestrator.redisdb.client import is_outage

T = TypeVar("T")

_log = get_logger()

#: Seconds that workers, and clients that wait, outlast; by then a lost lease has long given the run to another.
RETRY_FOR_S: Final = 120.0
_FIRST_DELAY_S: Final = 0.05


class Outage:
    """The outages that one caller bears, each for ``retry_for_s`` seconds; between two tries it pauses.

    ``notify`` is called at each failed try with the error, whether it is the first, and the seconds until the next.
    """

    def __init__(
        self,
        notify: Callable[[BaseException, bool, float], None],
        *,
        retry_for_s: float = RETRY_FOR_S,
        longest_pause_s: float = 2.0,
        server: str = "the ledger's Redis",
    ) -> None:
        self._notify = notify
        self._retry_for_s = retry_for_s
        self._longest_pause_s = longest_pause_s
        self._server = server
        self._since: float | None = None
        self._pause_s = _FIRST_DELAY_S

    def bear(self, error: Exception) -> None:
        """Pause after a call that failed; then it may be made again.

        Raises:
            ServerUnavailable: the server stayed away for too long, or refused this very call.
        """
        now = machine.monotonic()
        first = self._since is None
        since = self._since = now if self._since is None else self._since
        if not is_outage(error) or now + self._pause_s > since + self._retry_for_s:
            raise ServerUnavailable(self._server, " ".join(str(error).split())) from error
        self._notify(error, first, self._pause_s)
        machine.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, self._longest_pause_s)

    def end(self) -> None:
        """The server answered: the next outage is another one."""
        self._since = None
        self._pause_s = _FIRST_DELAY_S


def retry_outages(call: Callable[[], T], *, what: str, retry_for_s: float = RETRY_FOR_S) -> T:
    """Return what ``call`` returns, tried again for as long as Redis is away or takes no writes.

    Raises:
        ServerUnavailable: Redis stayed away for ``retry_for_s`` seconds, or refused this very call.
    """

    def log(error: BaseException, _first: bool, retry_in_s: float) -> None:  # noqa: FBT001  (called by position)
        _log.warning("redis-away", during=what, error=str(error), retry_in_s=round(retry_in_s, 2))

    outage = Outage(log, retry_for_s=retry_for_s)
    while True:
        try:
            return call()
        except (redis.RedisError, OSError) as error:
            outage.bear(error)


def was_refused(error: ServerUnavailable) -> bool:
    """Return True if Redis refused that very call: another call at once would end in the same way."""
    return isinstance(error.__cause__, redis.RedisError) and not is_outage(error.__cause__)

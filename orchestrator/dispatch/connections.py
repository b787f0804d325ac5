"""Celery's connections to the broker: how soon they are back, and on Redis one client of redis-py for each channel.

Kombu makes a new client for every command. That takes redis-py 0.2 ms, longer than the command, twice for each
message that a worker takes and once for each that a service sends: all of it between a wake-up and its run.
The clients leave out what is no message: kombu itself would end the worker.
"""

from __future__ import annotations

from typing import Any, Final

from celery.app.amqp import AMQP
from kombu.connection import Connection as KombuConnection
from kombu.connection import ConnectionPool, PooledConnection
from kombu.transport import redis

from orchestrator.dispatch.junk import flaw
from orchestrator.log import get_logger

#: The longest pause in seconds between two tries to reach a broker that is away: whoever waits for it, a worker or
#: Flower, is back so soon after it. Celery's own pauses grow to 30 s, and no setting says otherwise.
LONGEST_PAUSE_S: Final = 5

_log = get_logger()


class Channel(redis.Channel):
    """Kombu's own, but for its client, one for as long as its pool of connections, and what it writes down."""

    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002  (kombu's signature)
        if asynchronous:
            return _without_junk(super()._create_client(asynchronous=True))  # type: ignore[no-untyped-call]
        pool = self.pool
        if self._kept is None or self._kept.connection_pool is not pool:
            self._kept = _without_junk(super()._create_client())  # type: ignore[no-untyped-call]
        return self._kept


class Connection(KombuConnection):
    """Kombu's own, but for the channels of a Redis broker and the pauses between tries to reach any broker."""

    def ensure_connection(
        self,
        errback: Any = None,
        max_retries: int | None = None,
        interval_start: float = 1,
        interval_step: float = 1,
        interval_max: float = LONGEST_PAUSE_S,
        **options: Any,
    ) -> Any:
        """Connect, and try again for as long as the caller says."""
        return super().ensure_connection(  # type: ignore[no-untyped-call]
            errback, max_retries, interval_start, interval_step, interval_max, **options
        )

    def create_transport(self) -> Any:
        """The transport of this connection."""
        return _with_our_channels(super().create_transport())  # type: ignore[no-untyped-call]

    def Pool(self, limit: int | None = None, **kwargs: Any) -> Any:  # noqa: N802  (kombu's name)
        """Connections like this one, for who sends."""
        return _Pool(self, limit, **kwargs)  # type: ignore[no-untyped-call]


class _Pooled(PooledConnection):
    def create_transport(self) -> Any:
        return _with_our_channels(super().create_transport())  # type: ignore[no-untyped-call]


class _Pool(ConnectionPool):
    def new(self) -> Any:
        return _Pooled(self, **dict(self.connection._info(resolve=False)))  # type: ignore[no-untyped-call]  # noqa: SLF001


def _without_junk(client: Any) -> Any:
    """The client, to which a queue's entry that Celery cannot read is as good as none."""

    def taken_from(answer: list[bytes] | None) -> tuple[bytes, bytes] | None:
        return (answer[0], answer[1]) if answer and _is_readable(answer[1], queue=answer[0]) else None

    def taken(answer: Any) -> Any:
        return answer if not isinstance(answer, bytes) or _is_readable(answer) else None

    client.set_response_callback("BRPOP", taken_from)
    client.set_response_callback("RPOP", taken)
    return client


def _is_readable(octets: bytes, *, queue: bytes = b"") -> bool:
    reason = flaw(octets)
    if reason is not None:
        # Nobody answers for it and nobody waits for it: what a message of ours was for, the sweep says again.
        _log.error(
            "message-not-understood",
            queue=queue.decode(errors="replace"),
            octets=len(octets),
            begins=repr(octets[:80]),
            reason=reason,
        )
    return reason is None


def _with_our_channels(transport: Any) -> Any:
    if getattr(transport, "Channel", None) is redis.Channel:
        transport.Channel = Channel
    return transport


class Amqp(AMQP):
    """What a Celery app makes its connections with."""

    Connection = Connection

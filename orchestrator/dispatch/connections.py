"""Celery's connections to a Redis broker, each channel with one client of redis-py.

Kombu makes a new client for every command. That takes redis-py 0.2 ms, longer than the command, twice for each
message that a worker takes and once for each that a service sends: all of it between a wake-up and its run.
"""

from __future__ import annotations

from typing import Any

from celery.app.amqp import AMQP
from kombu.connection import Connection as KombuConnection
from kombu.connection import ConnectionPool, PooledConnection
from kombu.transport import redis

from orchestrator.dispatch.unacked import QoS


class Channel(redis.Channel):
    """Kombu's own, but for its client, one for as long as its pool of connections, and what it writes down."""

    QoS = QoS
    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002  (kombu's signature)
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[no-untyped-call]
        pool = self.pool
        if self._kept is None or self._kept.connection_pool is not pool:
            self._kept = super()._create_client()  # type: ignore[no-untyped-call]
        return self._kept


class Connection(KombuConnection):
    """Kombu's own, but for the channels of a Redis broker."""

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


def _with_our_channels(transport: Any) -> Any:
    if getattr(transport, "Channel", None) is redis.Channel:
        transport.Channel = Channel
    return transport


class Amqp(AMQP):
    """What a Celery app makes its connections with."""

    Connection = Connection

"""Celery's connections to the broker: how soon they are back, and which messages workers on Redis do not get.

Kombu ends a worker that reads junk instead of a message. So the clients that read messages from Redis leave junk out.
Only public names of kombu are used: the transport of a connection, its channels, and their clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

from celery.app.amqp import AMQP
from kombu.connection import Connection as KombuConnection
from kombu.transport import redis

from orchestrator.dispatch.junk import flaw
from orchestrator.log import get_logger

#: The longest pause in seconds between two tries to reach a broker that is away, of a worker or of Flower.
#: Celery's own pauses grow to 30 s, and no setting changes that.
LONGEST_PAUSE_S: Final = 5

_log = get_logger()


class Channel(redis.Channel):
    """Kombu's channel, with clients that leave out junk."""

    @cached_property
    def client(self) -> Any:
        """The client that waits for messages."""
        return _without_junk(super().client)

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """A client for everything else."""
        with super().conn_or_acquire(client) as found:
            yield _without_junk(found)


class Transport(redis.Transport):
    """Kombu's transport, with these channels."""

    Channel = Channel


class Connection(KombuConnection):
    """Kombu's connection, with this transport for Redis and shorter pauses between tries to reach any broker."""

    def ensure_connection(
        self,
        errback: Any = None,
        max_retries: int | None = None,
        interval_start: float = 1,
        interval_step: float = 1,
        interval_max: float = LONGEST_PAUSE_S,
        **options: Any,
    ) -> Any:
        """Connect; try again for as long as the caller wants."""
        return super().ensure_connection(  # type: ignore[no-untyped-call]
            errback, max_retries, interval_start, interval_step, interval_max, **options
        )

    def get_transport_cls(self) -> Any:
        """Return the transport for the broker."""
        found = super().get_transport_cls()  # type: ignore[no-untyped-call]
        return Transport if found is redis.Transport else found


def _without_junk(client: Any) -> Any:
    """Return the client, which drops entries of queues that Celery cannot read."""

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
        # Nobody waits for it: if it was a message of ours, the sweep rings again.
        _log.error(
            "message-not-understood",
            queue=queue.decode(errors="replace"),
            octets=len(octets),
            begins=repr(octets[:80]),
            reason=reason,
        )
    return reason is None


class Amqp(AMQP):
    """Makes the connections of a Celery app."""

    Connection = Connection

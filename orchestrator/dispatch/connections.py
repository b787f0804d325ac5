"""Celery's connections to the broker: how soon they are back, and what workers on Redis do not get to read.

Kombu ends a worker that is given what is no message. So what waits for messages on Redis leaves that out. Only public
names of kombu are used: the transport of a connection, its channels, and their clients.
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

#: The longest pause in seconds between two tries to reach a broker that is away: whoever waits for it, a worker or
#: Flower, is back so soon after it. Celery's own pauses grow to 30 s, and no setting says otherwise.
LONGEST_PAUSE_S: Final = 5

_log = get_logger()


class Channel(redis.Channel):
    """Kombu's own, but for clients that leave out what is no message."""

    @cached_property
    def client(self) -> Any:
        """What waits for messages."""
        return _without_junk(super().client)

    @contextmanager
    def conn_or_acquire(self, client: Any = None) -> Iterator[Any]:
        """What everything else is asked with."""
        with super().conn_or_acquire(client) as found:
            yield _without_junk(found)


class Transport(redis.Transport):
    """Kombu's own, but for its channels."""

    Channel = Channel


class Connection(KombuConnection):
    """Kombu's own, but for the transport of a Redis broker and the pauses between tries to reach any broker."""

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

    def get_transport_cls(self) -> Any:
        """What speaks to the broker."""
        found = super().get_transport_cls()  # type: ignore[no-untyped-call]
        return Transport if found is redis.Transport else found


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


class Amqp(AMQP):
    """What a Celery app makes its connections with."""

    Connection = Connection

"""What a worker has taken from a Redis broker and not acknowledged, written down only if that takes a while.

Kombu writes each message down before it hands it on, and strikes it out when it is acknowledged: two round trips, of
which the first one keeps the run waiting. A run that dies with its worker is found by the ledger, message or none, so
the message of a run is written down a moment later, and not at all when it was acknowledged by then. All other
messages are what they were to kombu.
"""

from __future__ import annotations

import threading
from math import inf
from time import monotonic, time
from typing import Any, Final

from kombu.asynchronous import get_event_loop
from kombu.transport import redis, virtual
from kombu.utils.json import dumps

#: The header that names the run of a message which the ledger can send again.
RUN_HEADER: Final = "orchestra_run"
#: Seconds until the message of a run that is still at work is written down.
DELAY_S: Final = 0.05


class QoS(redis.QoS):
    """Kombu's own, but for the messages of runs in a worker with an event loop. Safe to acknowledge to from threads."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        # In the order in which they were taken, each with when it is to be written down, on the monotonic clock.
        self._unwritten: dict[Any, tuple[Any, float]] = {}
        # The pool `threads` acknowledges and gives back from its threads; what is written is not struck out meanwhile.
        self._writing = threading.Lock()
        self._timed = False

    def append(self, message: Any, delivery_tag: Any) -> None:
        """Take note that a message was taken."""
        hub = get_event_loop() if RUN_HEADER in (message.headers or {}) else None
        if hub is None:
            super().append(message, delivery_tag)  # type: ignore[no-untyped-call]
            return
        with self._writing:
            virtual.QoS.append(self, message, delivery_tag)  # type: ignore[no-untyped-call]
            self._unwritten[delivery_tag] = message, monotonic() + DELAY_S
        if not self._timed:
            self._wake_up(hub, DELAY_S)

    def _wake_up(self, hub: Any, seconds: float) -> None:
        self._timed = True
        hub.call_later(seconds, self._in_time, hub)

    def ack(self, delivery_tag: Any) -> None:
        """The message is dealt with."""
        with self._writing:
            written = self._unwritten.pop(delivery_tag, None) is None
        if written:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]
        else:
            virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:  # noqa: FBT001, FBT002  (kombu's signature)
        """The message is not to be dealt with here."""
        self._write()
        super().reject(delivery_tag, requeue=requeue)  # type: ignore[no-untyped-call]

    def restore_unacked(self, client: Any = None) -> None:
        """Put back what was taken, as this channel is closed."""
        self._write()
        super().restore_unacked(client=client)  # type: ignore[no-untyped-call]

    def _in_time(self, hub: Any) -> None:
        self._timed = False
        if self.channel.closed:
            return
        failed = True
        try:
            self._write(due_at=monotonic())
            failed = False
        finally:
            with self._writing:
                first = next(iter(self._unwritten.values()), None)
            if first is not None:
                self._wake_up(hub, DELAY_S if failed else max(0.001, first[1] - monotonic()))

    def _write(self, due_at: float = inf) -> None:
        """As kombu does, all that are due at once."""
        with self._writing:
            due = {tag: message for tag, (message, at) in self._unwritten.items() if at <= due_at}
            if not due:
                return
            with self.pipe_or_acquire() as pipe:
                for tag, message in due.items():
                    about = message.delivery_info
                    whole = [message._raw, about["exchange"], about["routing_key"]]  # noqa: SLF001  (as kombu does)
                    pipe.zadd(self.unacked_index_key, {tag: time()})
                    pipe.hset(self.unacked_key, tag, dumps(whole))  # type: ignore[no-untyped-call]
                pipe.execute()
            for tag in due:
                del self._unwritten[tag]

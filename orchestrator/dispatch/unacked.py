"""What a worker has taken from a Redis broker and not acknowledged, written down only if that takes a while.

Kombu writes each message down before it hands it on, and strikes it out when it is acknowledged: two round trips, of
which the first one keeps the run waiting. A run that dies with its worker is found by the ledger, message or none, so
the message of a run is written down a moment later, and not at all when it was acknowledged by then. All other
messages are what they were to kombu.
"""

from __future__ import annotations

import threading
from time import time
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
        self._unwritten: dict[Any, Any] = {}
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
            self._unwritten[delivery_tag] = message
        if not self._timed:
            self._timed = True
            hub.call_later(DELAY_S, self._in_time)  # type: ignore[no-untyped-call]

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

    def _in_time(self) -> None:
        self._timed = False
        if not self.channel.closed:
            self._write()

    def _write(self) -> None:
        """As kombu does, all at once."""
        with self._writing:
            if not self._unwritten:
                return
            with self.pipe_or_acquire() as pipe:
                for tag, message in self._unwritten.items():
                    about = message.delivery_info
                    whole = [message._raw, about["exchange"], about["routing_key"]]  # noqa: SLF001  (as kombu does)
                    pipe.zadd(self.unacked_index_key, {tag: time()})
                    pipe.hset(self.unacked_key, tag, dumps(whole))  # type: ignore[no-untyped-call]
                pipe.execute()
            self._unwritten.clear()

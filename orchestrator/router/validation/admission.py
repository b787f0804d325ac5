"""Admission: which entries are carried out now, which have to wait for other tasks, and which are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from orchestrator.envelope.validate import Report
from orchestrator.ledger import Ledger
from orchestrator.log import get_logger
from orchestrator.redisdb import keys
from orchestrator.router.delayed.dependencies import BlockedTask, Dependencies
from orchestrator.router.delayed.retries import Retries
from orchestrator.router.received import ReceivedMessage, Rejection
from orchestrator.router.validation.validator import Validator, reject
from orchestrator.streams import Entry

#: Entries that are read together before they are judged, if they have at most so many octets each.
_TOGETHER: Final = 16
_SMALL: Final = 65_536

#: A message to be carried out now, a rejection, or a message that has to wait for other tasks.
Verdict = ReceivedMessage | Rejection | tuple[ReceivedMessage, BlockedTask]


class Admission:
    """Judges the entries of a round: by what they hold, by their age, and by the tasks that they wait for."""

    def __init__(
        self, ledger: Ledger, *, validator: Validator, retries: Retries, dependencies: Dependencies
    ) -> None:
        self._ledger = ledger
        self._validator = validator
        self._retries = retries
        self._dependencies = dependencies

    def admit(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Verdict]]:
        """The verdict on each entry, in their order; each is given before the next is looked for.

        A few small ones are read before the first of them is judged: the same work done in a row is quicker by a
        twentieth. What is large is read when its turn comes, as what is read takes many times its size.
        """
        for start in range(0, len(entries), _TOGETHER):
            part = entries[start : start + _TOGETHER]
            small = [self._read(entry) if len(entry.data or b"") <= _SMALL else None for entry in part]
            for entry, report in zip(part, small, strict=True):
                yield entry, self._judge(self._open(entry, report or self._read(entry)))

    def _read(self, entry: Entry) -> Report | Rejection | None:
        try:
            return self._validator.read(entry)
        except Exception as error:  # noqa: BLE001 - nothing a message holds may leave the loop as an exception
            return _broken(entry, error)

    def _open(self, entry: Entry, report: Report | Rejection | None) -> ReceivedMessage | Rejection:
        if isinstance(report, Rejection):
            return report
        try:
            return self._validator.judge(entry, report)
        except (RedisConnectionError, RedisTimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return _broken(entry, error)

    def _judge(self, received: ReceivedMessage | Rejection) -> Verdict:
        if isinstance(received, Rejection):
            return received
        rejection = self._unproven_wait(received) or self._retries.late(received)
        if rejection is not None or received.type != "task-delegation":
            return rejection or received
        blocked = self._dependencies.judge(received, timeout_s=self._retries.policy(received.message)[2])
        return (received, blocked) if isinstance(blocked, BlockedTask) else blocked or received

    def _unproven_wait(self, received: ReceivedMessage) -> Rejection | None:
        """A rejection if an old message only says that it waited; None: it is young, or the mark bears it out."""
        if not received.entry.waited or not self._validator.too_old(received.message):
            return None
        mark: Any = self._ledger.redis.get(
            keys.seen(received.entry.stream.shard, received.sender, received.id)
        )
        if mark is not None and mark.decode().partition(" ")[0] == received.entry.id:
            return None
        reason = (
            f"the message is dated {received.message.header.timestamp} and did not wait here; send a new one"
        )
        return reject("too-old", reason, received.message)


def _broken(entry: Entry, error: Exception) -> Rejection:
    get_logger().exception("intake-failed", stream=str(entry.stream), entry=entry.id)
    return reject("internal-error", f"{type(error).__name__}: {error}")

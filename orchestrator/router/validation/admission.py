"""Admission: which entries are carried out now, which have to wait for other tasks, and which are refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import redis

from orchestrator.log import get_logger
from orchestrator.redisdb import keys
from orchestrator.redisdb.all_keys import SharedKeys
from orchestrator.redisdb.client import is_outage, refuses_everything
from orchestrator.router.delayed.dependencies import BlockedTask, Dependencies
from orchestrator.router.delayed.redelivery import Retries
from orchestrator.router.received import ReceivedMessage, Rejection
from orchestrator.router.validation.validator import Validator, reject
from orchestrator.streams import Entry

#: A message to be carried out now, a rejection, or a message that has to wait for other tasks.
Verdict = ReceivedMessage | Rejection | tuple[ReceivedMessage, BlockedTask]


class Admission:
    """Admits the entries of a round, or not: by their content, by their age, and by the tasks that they wait for."""

    def __init__(
        self,
        client: redis.Redis,
        *,
        validator: Validator,
        retries: Retries,
        dependencies: Dependencies,
        shared: SharedKeys,
    ) -> None:
        self._redis = client
        self._shared = shared
        self._validator = validator
        self._retries = retries
        self._dependencies = dependencies

    def admit(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Verdict]]:
        """The verdict on each entry, in their order; each is given before the next entry is read."""
        for entry in entries:
            yield entry, self._judge(self._validated(entry))

    def _validated(self, entry: Entry) -> ReceivedMessage | Rejection:
        try:
            return self._validator.judge(entry, self._validator.read(entry))
        except Exception as error:
            if is_outage(error) or refuses_everything(error) or self._shared.hinder(error):
                raise
            # Nothing a message holds may leave the loop as an exception.
            get_logger().exception("intake-failed", stream=str(entry.stream), entry=entry.id)
            return reject("internal-error", f"{type(error).__name__}: {error}")

    def _judge(self, received: ReceivedMessage | Rejection) -> Verdict:
        if isinstance(received, Rejection):
            return received
        rejection = self._unproven_wait(received) or self._retries.late(received)
        if rejection is not None or received.type != "task-delegation":
            return rejection or received
        blocked = self._dependencies.judge(received, timeout_s=self._retries.policy(received.message)[2])
        return (received, blocked) if isinstance(blocked, BlockedTask) else blocked or received

    def _unproven_wait(self, received: ReceivedMessage) -> Rejection | None:
        """Return a rejection if an old message only claims that it waited; None if it is young, or its mark proves
        the wait.
        """
        if not received.entry.waited or not self._validator.too_old(received.message):
            return None
        mark: Any = self._redis.get(keys.seen(received.entry.stream.shard, received.sender, received.id))
        if mark is not None and mark.decode().partition(" ")[0] == received.entry.id:
            return None
        reason = (
            f"the message is dated {received.message.header.timestamp} and did not wait here; send a new one"
        )
        return reject("too-old", reason, received.message)

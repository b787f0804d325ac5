"""The inboxes of external programs: what was routed to one is put there, in one step with its acknowledgement."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.received import ReceivedMessage
from orchestrator.streams import ROUTER_GROUP, stream_key


class Inboxes:
    """Puts messages into inboxes."""

    def __init__(self, scripts: Scripts, *, most: int) -> None:
        """``most`` is how many messages an inbox holds; then the oldest leave it."""
        self._scripts = scripts
        self._most = most

    def deliver(self, messages: Sequence[ReceivedMessage]) -> list[object]:
        """Deliver messages that were carried out, each once in effect; an answer for each, an exception where it failed."""
        batch = self._scripts.batch()
        for received in messages:
            shard = received.entry.stream.shard
            batch.script(
                "route_inbox",
                [
                    stream_key(received.entry.stream),
                    keys.seen(shard, received.sender, received.id),
                    keys.inbox(shard, received.program),
                    keys.totals(shard),
                ],
                [
                    ROUTER_GROUP,
                    received.entry.id,
                    received.digest,
                    self._most,
                    received.program,
                    received.entry.data or b"",
                ],
            )
        return batch.execute()

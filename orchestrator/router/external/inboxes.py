"""The inboxes of external programs: what was routed to one is put there, in one step with its acknowledgement."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.received import Letter
from orchestrator.streams import ROUTER_GROUP, stream_key


class Inboxes:
    """Puts letters into inboxes."""

    def __init__(self, scripts: Scripts, *, most: int) -> None:
        """``most`` is how many messages an inbox holds; then the oldest leave it."""
        self._scripts = scripts
        self._most = most

    def deliver(self, letters: Sequence[Letter]) -> list[object]:
        """Deliver letters that were carried out, each once in effect; an answer for each, an exception where it failed."""
        batch = self._scripts.batch()
        for letter in letters:
            shard = letter.entry.stream.shard
            batch.script(
                "route_inbox",
                [
                    stream_key(letter.entry.stream),
                    keys.seen(shard, letter.sender, letter.id),
                    keys.inbox(shard, letter.program),
                    keys.totals(shard),
                ],
                [
                    ROUTER_GROUP,
                    letter.entry.id,
                    letter.digest,
                    self._most,
                    letter.program,
                    letter.entry.data or b"",
                ],
            )
        return batch.execute()

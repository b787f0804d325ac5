"""Which sessions a conversation began, by the messages that launched them.

The ids in a message's chain name launches; this book says which session each of them began. It is written
when the router carries a launch out, and forgotten some time after the conversation's last message.
"""

from __future__ import annotations

import redis

from orchestrator.redisdb import keys


class Conversations:
    """The records of conversations, over all shards."""

    def __init__(self, client: redis.Redis, *, shards: int = 1, keep_ms: int = 86_400_000) -> None:
        self._redis = client
        self._shards = shards
        self.keep_ms = keep_ms

    def launched(self, conversation: str, message_id: str) -> str | None:
        """The session that a message launched, in whatever shard; or None."""
        pipeline = self._redis.pipeline(transaction=False)
        for shard in range(self._shards):
            pipeline.hget(keys.conversation(shard, conversation), f"launch:{message_id}")
        return next((answer.decode() for answer in pipeline.execute() if answer), None)

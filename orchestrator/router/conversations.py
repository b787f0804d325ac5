"""Which sessions a conversation began, by the messages that launched them.

The ids in a message's chain name launches; this book says which session each of them began. It is written
when the router carries a launch out, and forgotten some time after the conversation's last message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from orchestrator.redisdb import keys


class Conversations:
    """The books of conversations, over all shards."""

    def __init__(self, client: redis.Redis, *, shards: int = 1, keep_ms: int = 86_400_000) -> None:
        self._redis = client
        self._shards = shards
        self.keep_ms = keep_ms

    def note(
        self, *, shard: int, conversation: str, message_id: str, session: str, agent: str
    ) -> list[tuple[str | int, ...]]:
        """The commands that write down which session of which agent a message launched."""
        key = keys.conversation(shard, conversation)
        return [
            ("HSET", key, f"launch:{message_id}", session, f"agent:{agent}", session),
            ("PEXPIRE", key, self.keep_ms),
        ]

    def launched(self, conversation: str, message_id: str) -> str | None:
        """The session that a message launched, in whatever shard; or None."""
        pipeline = self._redis.pipeline(transaction=False)
        for shard in range(self._shards):
            pipeline.hget(keys.conversation(shard, conversation), f"launch:{message_id}")
        return next((answer.decode() for answer in pipeline.execute() if answer), None)

    def sessions(self, shard: int, conversation: str, message_ids: Sequence[str]) -> list[str]:
        """The sessions that those messages launched, in their order; messages that launched none are left out."""
        if not message_ids:
            return []
        fields = [f"launch:{message_id}" for message_id in message_ids]
        answers: Any = self._redis.hmget(keys.conversation(shard, conversation), fields)
        return [answer.decode() for answer in answers if answer]

    def task(self, shard: int, conversation: str, task_id: str) -> str | None:
        """The session of a task that a foreign program gave that id; or None."""
        return self._field(shard, conversation, f"task:{task_id}")

    def latest(self, shard: int, conversation: str, agent: str) -> str | None:
        """The session of an agent that the conversation launched last; or None."""
        return self._field(shard, conversation, f"agent:{agent}")

    def _field(self, shard: int, conversation: str, name: str) -> str | None:
        answer: Any = self._redis.hget(keys.conversation(shard, conversation), name)
        return answer.decode() if answer else None

"""Messages that wait: for their next attempt, or for other tasks. Durable in Redis; nobody sleeps for them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, Json

from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.envelope.model import AgentMessage
from orchestrator.ids import is_session_id
from orchestrator.ledger import layout
from orchestrator.policy.retry import CAP_MS
from orchestrator.redisdb import keys
from orchestrator.redisdb.key_table import in_its_shard
from orchestrator.redisdb.scripts import Arg, Batch, Scripts, request
from orchestrator.router.received import launched_task
from orchestrator.streams import ROUTER_GROUP, Entry, StreamId, stream_key

#: Messages looked at in one round.
BATCH: Final = 100
#: Milliseconds that the next look at a message lies ahead at most; further off, a clock was wrong when it was set.
AHEAD_MS: Final = CAP_MS + 60_000


class DelayedMessage(BaseModel):
    """A message that waits, as its hash has it: under the names of the fields, or their aliases."""

    model_config = ConfigDict(frozen=True)

    id: str
    stream: StreamId
    #: When to look at it again.
    due_ms: int
    message_id: str = Field("", alias="message-id")
    sender: str = ""
    #: Which attempt comes next.
    attempt: int = 1
    conversation: str = ""
    #: The session that it launches, if it is one of ours; or empty.
    session: str = ""
    #: Its own task-id, if it waits for other tasks; or empty.
    task_id: str = Field("", alias="task")
    #: The tasks that it waits for; empty: it waits for its next attempt.
    tasks: Json[tuple[str, ...]] = ()
    #: How those tasks stood when it was parked, to tell that something has happened.
    standing: str = ""
    #: The agent that is not registered yet, if it waits for that; or empty.
    agent: str = ""
    #: Until when it waits for that agent, or for those tasks; 0: as long as it takes.
    until_ms: int = Field(0, alias="until")
    rule: str = ""
    reason: str = ""
    parked_ms: int = Field(0, alias="parked")


#: What is read of a message to see whether its wait has passed: the fields behind id, stream and time.
_FACTS: Final = [field.alias or name for name, field in DelayedMessage.model_fields.items()][3:]


@dataclass(frozen=True, kw_only=True)
class Tasks:
    """A task that waits for others."""

    task_id: str
    waited_for: list[str]
    #: How they stand now: a word for each, in their order, with commas between.
    standing: str


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A message waits for its next attempt, or for what it names, and then its attempt goes on."""

    due_ms: int
    #: When the attempt began that goes on; None: the next attempt follows.
    since_ms: int | None = None
    #: The agent that is to be registered, if that is what it waits for; or empty.
    agent: str = ""
    #: The tasks that it waits for, if it does.
    tasks: Tasks | None = None
    #: Until when it waits for that agent, or for those tasks; 0: for tasks, as long as it takes.
    until_ms: int = 0


def parked_id(entry: Entry) -> str:
    """The id under which an entry is parked."""
    return f"{entry.stream.type}:{entry.stream.priority}:{entry.id}"


class DelayedMessages:
    """The messages of a stack that wait."""

    def __init__(self, scripts: Scripts, *, shards: Iterable[int], mark_ms: int) -> None:
        self._scripts = scripts
        self._redis = scripts.client
        self._shards = list(shards)
        self._mark_ms = mark_ms
        self._together: Batch | None = None

    def park(
        self,
        entry: Entry,
        message: AgentMessage,
        wait: Wait,
        *,
        attempt: int,
        now_ms: int,
        rule: str,
        reason: str,
    ) -> bool:
        """Let an entry wait; False: another router has dealt with it."""
        shard, name = entry.stream.shard, parked_id(entry)
        tasks = wait.tasks
        own, waited_for = (tasks.task_id, json.dumps(tasks.waited_for)) if tasks is not None else ("", "")
        task_id = launched_task(entry, message.body)
        session = task_id if is_session_id(task_id) and entry.stream.type in SESSION_STARTING else ""
        facts: dict[str, Arg] = {
            "envelope": entry.data or b"",
            "message-id": message.header.message_id.lower(),
            "sender": message.header.sender.agent_name,
            "conversation": message.conversation_id,
            "attempt": attempt,
            "since": "" if wait.since_ms is None else wait.since_ms,
            "parked": now_ms,
            "rule": rule,
            "reason": reason,
            "session": session,
            "task": own,
            "tasks": waited_for,
            "standing": tasks.standing if tasks is not None else "",
            "agent": wait.agent,
            "until": wait.until_ms,
        }
        asked = request(
            group=ROUTER_GROUP,
            entry=entry.id,
            stream=in_its_shard(stream_key(entry.stream)),
            parked=name,
            due_ms=wait.due_ms,
            reason=reason,
            session=session,
            task=own,
            tasks=waited_for,
            conversation=in_its_shard(keys.conversation(shard, message.conversation_id)),
        )
        call = ([keys.parked(shard)], [asked, *layout.pairs(facts)])
        if self._together is not None:
            self._together.script("route_park", *call)
            return True
        return bool(self._scripts.run("route_park", *call))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Park all that is parked inside in one round trip; each counts as parked, even if another router was first."""
        self._together = self._scripts.batch()
        try:
            yield
            self._together.answers()
        finally:
            self._together = None

    def put_off(self, later: Mapping[DelayedMessage, int]) -> None:
        """Look at these messages again at their times; those that another router has released stay released."""
        by_shard: dict[int, dict[str, int]] = {}
        for parked, due_ms in later.items():
            by_shard.setdefault(parked.stream.shard, {})[parked.id] = due_ms
        for shard, scores in by_shard.items():
            self._redis.zadd(keys.parked(shard), scores, xx=True)

    def hurry(self, shard: int, names: Iterable[str]) -> None:
        """Look at these messages now; those that are not parked any more stay released."""
        self._redis.zadd(keys.parked(shard), dict.fromkeys(names, 0), xx=True)

    def reindex(self) -> None:
        """Look at every message now that waits and that the index does not name. Looks through all keys of the server."""
        for shard in self._shards:
            first = keys.parked_message(shard, "")
            found = [
                key.decode().removeprefix(first)
                for key in self._redis.scan_iter(match=f"{first}*", count=10_000)
            ]
            if found:
                self._redis.zadd(keys.parked(shard), dict.fromkeys(found, 0), nx=True)

    def due(self, now_ms: int) -> tuple[list[DelayedMessage], int | None]:
        """Return the messages that are due, and when the next one is; None if no other waits."""
        found: list[DelayedMessage] = []
        later: list[int] = []
        for shard in self._shards:
            key = keys.parked(shard)
            rows: Any = self._redis.zrange(key, 0, BATCH, withscores=True)
            last: Any = rows if len(rows) <= BATCH else self._redis.zrange(key, -BATCH, -1, withscores=True)
            ready = [row for row in rows if row[1] <= now_ms][:BATCH]
            later += [int(row[1]) for row in rows[len(ready) : len(ready) + 1]]
            ready += [row for row in last if row[1] > now_ms + AHEAD_MS]
            if ready:
                found += self._read(shard, ready)
        return found, min(later, default=None)

    def all(self, *, limit: int = 1000) -> list[DelayedMessage]:
        """Everything that waits, the most urgent first."""
        found = []
        for shard in self._shards:
            rows: Any = self._redis.zrange(keys.parked(shard), 0, limit - 1, withscores=True)
            found += self._read(shard, rows)
        return found

    def _read(self, shard: int, rows: list[tuple[bytes, float]]) -> list[DelayedMessage]:
        pipeline = self._redis.pipeline(transaction=False)
        for raw_id, _ in rows:
            pipeline.hmget(
                keys.parked_message(shard, raw_id.decode()), _FACTS
            )  # not the envelope, which is large
        found = []
        for (raw_id, due_ms), facts in zip(rows, pipeline.execute() if rows else [], strict=True):
            name = raw_id.decode()
            if facts[0] is None:  # left between two looks
                self._redis.zrem(keys.parked(shard), name)
                continue
            message_type, priority, _ = name.split(":")
            stream = StreamId(shard, message_type, priority)
            known = {n: f.decode("utf-8", "replace") for n, f in zip(_FACTS, facts, strict=True) if f}
            found.append(DelayedMessage(id=name, stream=stream, due_ms=int(due_ms), **known))
        return found

    def release(self, messages: Sequence[DelayedMessage]) -> int:
        """Put messages back into their streams in one round trip; how many no other router had put back."""
        batch = self._scripts.batch()
        for parked in messages:
            shard = parked.stream.shard
            batch.script(
                "route_unpark",
                [keys.parked(shard)],
                [
                    request(
                        parked=parked.id,
                        entry=parked.id.rpartition(":")[2],
                        stream=in_its_shard(stream_key(parked.stream)),
                        seen=in_its_shard(keys.seen(shard, parked.sender, parked.message_id)),
                        mark_ms=self._mark_ms,
                        session=parked.session,
                        task=parked.task_id,
                        conversation=in_its_shard(keys.conversation(shard, parked.conversation)),
                    )
                ],
            )
        return sum(map(bool, batch.answers()))

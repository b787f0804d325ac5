"""Streams on Redis 6.2 or newer, or Valkey: append, hand out once to each group, take over from the dead, trim."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import redis

from orchestrator import machine
from orchestrator.errors import StreamFull
from orchestrator.redisdb import keys
from orchestrator.redisdb.all_keys import wrong_types
from orchestrator.redisdb.client import MAX_BLOCK_MS
from orchestrator.redisdb.holders import Connected, connected_holders
from orchestrator.redisdb.key_table import is_wrong_type
from orchestrator.redisdb.raw_pipeline import exchange
from orchestrator.redisdb.scripts import Arg, Scripts
from orchestrator.streams import values
from orchestrator.streams.values import ENVELOPE_FIELD, Backlog, DeadLimits, Entry, Pending, Portion, StreamId

_FIELD = ENVELOPE_FIELD.encode()
#: What a group was given last that was given nothing yet.
_NOTHING = "0-0"
#: Seconds for which a stream is left alone that somebody has overwritten.
_LEAVE_ALONE_S: Final = 1.0
_OF_SHARD = {
    values.TRANSITIONS: keys.transitions,
    values.SESSION_EVENTS: keys.session_events,
    values.NOTICES: keys.notices,
    values.DEAD: keys.dead,
}


def dead_call(
    entry: Entry,
    fields: Mapping[str, Arg],
    *,
    group: str,
    sender: str,
    limits: DeadLimits,
    seen: str = "",
    reports: tuple[str, Sequence[bytes]] = ("", ()),
) -> tuple[list[str], list[Arg]]:
    """Return KEYS and ARGV of `route_dead`, by which an entry of a group becomes a dead letter with these fields.

    ``seen`` is the key of its mark; ``reports`` are published in the stream with that key.
    """
    shard, (stream, octets) = entry.stream.shard, reports
    dead = keys.dead(shard)
    names = [stream_key(entry.stream), dead, stream or dead, keys.totals(shard), seen or dead]
    said = [part for pair in fields.items() for part in pair]
    args = [group, entry.id, sender, *limits.args, len(octets), *octets, *said]
    return [*names, keys.dead_index(shard), keys.dead_usage(shard)], args


def stream_key(stream: StreamId) -> str:
    """Return the Redis key of a stream."""
    match stream.type:
        case values.OUTBOX:
            return keys.outbox(stream.shard, stream.priority)
        case values.INBOX:
            return keys.inbox(stream.shard, stream.priority)
        case values.LEDGER:
            return _OF_SHARD[stream.priority](stream.shard)
    return keys.messages(stream.shard, stream.type, stream.priority)


class RedisStreams:
    """Streams on one server; safe to share between threads.

    A stream that somebody has overwritten with another type is as good as empty, and holds up no other; every service
    names it with its signs of life.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._redis = client
        self._scripts = Scripts(client)
        self._names: dict[bytes, StreamId] = {}
        self._keys: dict[StreamId, str] = {}
        #: Streams that somebody has overwritten, and until when they are left alone, on the monotonic clock.
        self._overwritten: dict[StreamId, float] = {}

    def _key(self, stream: StreamId) -> str:
        key = self._keys.get(stream)
        if key is None:
            key = self._keys[stream] = stream_key(stream)
            self._names[key.encode()] = stream
        return key

    def publish(
        self, stream: StreamId, data: bytes, *, limit: int = 0, extra: dict[str, str] | None = None
    ) -> str:
        """Append an envelope and return its entry id; with a ``limit``, only while the stream is shorter.

        Raises:
            StreamFull: the stream holds ``limit`` entries or more; nothing was appended.
        """
        fields: list[Any] = [ENVELOPE_FIELD, data]
        for name, value in (extra or {}).items():
            fields += [name, value]
        answer = self._scripts.run(
            "publish", [self._key(stream), keys.totals(stream.shard)], [limit, *fields]
        )
        if isinstance(answer, int):
            raise StreamFull(str(stream), answer, limit)
        return str(answer.decode())

    def ensure_groups(self, groups: Sequence[str], streams: Sequence[StreamId]) -> None:
        """Create missing groups, which read their streams from the first entry; existing groups stay as they are."""
        pipe = self._redis.pipeline(transaction=False)
        for stream in streams:
            for group in groups:
                pipe.xgroup_create(self._key(stream), group, id="0", mkstream=True)
        for answer in pipe.execute(raise_on_error=False):
            if isinstance(answer, Exception) and not str(answer).startswith("BUSYGROUP"):
                self._leave_alone(streams, answer)

    def _leave_alone(self, streams: Iterable[StreamId], error: Exception) -> None:
        """Read those of the streams for a while no more that somebody has overwritten.

        Raises:
            Exception: ``error`` has another reason.
        """
        keys_of = {self._key(stream): stream for stream in streams}
        wrong = wrong_types(self._redis, dict.fromkeys(keys_of, "stream")) if is_wrong_type(error) else []
        if not wrong and not is_wrong_type(error):
            raise error
        self._overwritten |= {keys_of[one.key]: machine.monotonic() + _LEAVE_ALONE_S for one in wrong}

    def _sound(self, streams: Sequence[StreamId]) -> Sequence[StreamId]:
        """Return the streams without those that are left alone."""
        if not self._overwritten:
            return streams
        now = machine.monotonic()
        self._overwritten = {stream: until for stream, until in self._overwritten.items() if until > now}
        return [stream for stream in streams if stream not in self._overwritten]

    def read(
        self, group: str, consumer: str, portions: Sequence[Portion], *, block_ms: int = 0
    ) -> list[Entry]:
        """Hand out entries that no consumer of the group has had, in the order of ``portions``.

        Waits up to ``block_ms`` for a first one when there are none. A group that is missing is created again.
        """
        wanted = [Portion(sound, p.most) for p in portions if (sound := self._sound(p.streams))]
        if not wanted:
            if any(p.streams for p in portions):
                machine.sleep(block_ms / 1000)  # there is no stream to wait for
            return []
        most = wanted[0].most
        if any(p.most != most for p in wanted):
            entries = self._read_now(group, consumer, wanted)
            if entries or block_ms <= 0:
                return entries
            most = min(p.most for p in wanted)
        everything = Portion([s for p in wanted for s in p.streams], most)
        if block_ms <= 0:
            return self._read_now(group, consumer, [everything])
        # One command reads and waits: one round trip instead of two. After a wait the server answers with what the first
        # step published, and the next round takes what followed.
        command = self._read_command(group, consumer, everything, block_ms=min(block_ms, MAX_BLOCK_MS))
        return self._entries(self._checked(group, [everything], exchange(self._redis, [command])))

    def _read_now(self, group: str, consumer: str, portions: Sequence[Portion]) -> list[Entry]:
        """Return the entries that are there, in the order of the portions."""
        if not portions:
            return []
        commands = [self._read_command(group, consumer, portion) for portion in portions]
        return self._entries(self._checked(group, portions, exchange(self._redis, commands)))

    def _read_command(
        self, group: str, consumer: str, portion: Portion, *, block_ms: int = 0
    ) -> tuple[str | int, ...]:
        block: list[str | int] = ["BLOCK", block_ms] if block_ms else []
        names = [self._key(s) for s in portion.streams]
        fresh = [">"] * len(names)
        return (
            "XREADGROUP",
            "GROUP",
            group,
            consumer,
            "COUNT",
            portion.most,
            *block,
            "STREAMS",
            *names,
            *fresh,
        )

    def _checked(self, group: str, portions: Sequence[Portion], answers: list[Any]) -> list[Any]:
        found = [answer for answer in answers if not is_missing_group(answer)]
        if len(found) < len(answers):
            # The server lost its memory. The new group begins at the first entry, so that it misses nothing.
            self.ensure_groups([group], [s for p in portions for s in p.streams])
        for answer in found:
            if isinstance(answer, Exception):
                self._leave_alone([s for p in portions for s in p.streams], answer)
        return [answer for answer in found if not isinstance(answer, Exception)]

    def _entries(self, answers: Iterable[Any]) -> list[Entry]:
        entries = []
        for answer in answers:
            for name, rows in answer or ():
                stream = self._names[name]
                entries += [entry for row in rows if (entry := entry_of(stream, row)) is not None]
        return entries

    def reclaim(
        self, group: str, consumer: str, streams: Sequence[StreamId], *, idle_ms: int, limit: int
    ) -> list[Entry]:
        """Take over entries that a consumer has held for at least ``idle_ms``: oldest first, ``limit`` a stream."""
        claimed: list[Entry] = []
        asked: list[tuple[StreamId, str]] = [(s, _NOTHING) for s in streams]
        while asked:
            commands = [
                ("XAUTOCLAIM", self._key(stream), group, consumer, idle_ms, cursor, "COUNT", limit)
                for stream, cursor in asked
            ]
            again = []
            for (stream, _), answer in zip(asked, exchange(self._redis, commands), strict=True):
                if isinstance(answer, Exception):
                    if not is_missing_group(answer):
                        self._leave_alone([stream], answer)
                    continue
                entries = [e for row in answer[1] if (e := entry_of(stream, row)) is not None]
                claimed += entries
                # One call looks at ten times its COUNT; what is older may stand behind many fresh ones.
                if not entries and answer[0] != _NOTHING.encode():
                    again.append((stream, answer[0].decode()))
            asked = again
        return self._with_deliveries(group, claimed)

    def holders(self, group: str, streams: Sequence[StreamId]) -> dict[str, list[StreamId]]:
        """Return the consumers that hold entries, and of which streams."""
        found: dict[str, list[StreamId]] = {}
        commands = [("XPENDING", self._key(stream), group) for stream in streams]
        for stream, answer in zip(streams, exchange(self._redis, commands) if commands else (), strict=True):
            # A group that is gone, or a stream that was spoilt, has no holders; reading it raises the error.
            for name, _ in (None if isinstance(answer, Exception) else answer[3]) or ():
                found.setdefault(name.decode(), []).append(stream)
        return found

    def take_over(
        self, group: str, consumer: str, stream: StreamId, *, of: str, idle_ms: int, limit: int
    ) -> list[Entry]:
        """Take over the oldest entries that the consumer ``of`` holds, and was handed ``idle_ms`` ago or longer."""
        key = self._key(stream)
        try:
            pending: Any = self._redis.xpending_range(key, group, "-", "+", limit, consumername=of)
        except redis.ResponseError as error:
            if not is_missing_group(error):
                self._leave_alone([stream], error)
            return []
        if not pending:
            return []
        ids = [row["message_id"].decode() for row in pending]
        (rows,) = exchange(self._redis, [("XCLAIM", key, group, consumer, idle_ms, *ids)])
        if isinstance(rows, Exception):
            raise rows
        return self._with_deliveries(group, [e for row in rows if (e := entry_of(stream, row)) is not None])

    def connected(self) -> Connected:
        """Which processes are connected to the server."""
        return connected_holders(self._redis)

    def uncount(self, group: str, consumer: str, entry: Entry) -> None:
        """Do not count the last delivery of an entry that ``consumer`` reclaimed. The consumer keeps the entry."""
        key = self._key(entry.stream)
        self._redis.xclaim(
            key, group, consumer, 0, [entry.id], retrycount=max(1, entry.deliveries - 1), justid=True
        )

    def _with_deliveries(self, group: str, entries: list[Entry]) -> list[Entry]:
        if not entries:
            return []
        pipeline = self._redis.pipeline(transaction=False)
        for entry in entries:
            pipeline.xpending_range(self._key(entry.stream), group, entry.id, entry.id, 1)
        answers = pipeline.execute()
        return [
            entry._replace(deliveries=int(rows[0]["times_delivered"]) if rows else 1)
            for entry, rows in zip(entries, answers, strict=True)
        ]

    def acknowledge(self, group: str, entries: Sequence[Entry], *, delete: bool = False) -> int:
        """Acknowledge entries; how many of them were still pending. ``delete`` removes them from their streams too."""
        by_stream: dict[StreamId, list[str]] = {}
        for entry in entries:
            by_stream.setdefault(entry.stream, []).append(entry.id)
        pipeline = self._redis.pipeline(transaction=False)
        for stream, ids in by_stream.items():
            pipeline.execute_command("XACK", self._key(stream), group, *ids)
        if delete:
            for stream, ids in by_stream.items():
                pipeline.xdel(self._key(stream), *ids)
        answers = pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception):
                # In a stream that was overwritten meanwhile nothing is left to acknowledge.
                self._leave_alone(by_stream, answer)
        return sum(answer for answer in answers[: len(by_stream)] if isinstance(answer, int))

    def trim(self, groups: Sequence[str], streams: Sequence[StreamId], *, also: Sequence[str] = ()) -> int:
        """Drop the entries that every one of ``groups`` has acknowledged; how many.

        ``also`` are groups that count only on the streams on which they exist.
        """
        batch = self._scripts.batch()
        for stream in streams:
            batch.script(
                "trim", [self._key(stream), keys.totals(stream.shard)], [len(groups), *groups, *also]
            )
        answers = batch.execute()
        for answer in answers:
            if isinstance(answer, Exception):
                self._leave_alone(streams, answer)
        return sum(answer for answer in answers if isinstance(answer, int))

    def pending(self, group: str, stream: StreamId, *, most: int) -> list[Pending]:
        """Return the oldest entries that were handed out and not acknowledged; empty if the group is missing."""
        try:
            rows: Any = self._redis.xpending_range(self._key(stream), group, "-", "+", most)
        except redis.ResponseError as error:
            if not is_missing_group(error):
                self._leave_alone([stream], error)
            return []
        return [
            Pending(
                row["message_id"].decode(),
                row["consumer"].decode(),
                int(row["times_delivered"]),
                int(row["time_since_delivered"]),
            )
            for row in rows
        ]

    def claim(
        self, group: str, consumer: str, stream: StreamId, entry_id: str, *, idle_ms: int
    ) -> Entry | None:
        """Take over one entry that nobody was handed for ``idle_ms``; None if somebody was."""
        command = ("XCLAIM", self._key(stream), group, consumer, idle_ms, entry_id)
        (answer,) = exchange(self._redis, [command])
        if isinstance(answer, Exception):
            raise answer
        return next((entry for row in answer if (entry := entry_of(stream, row)) is not None), None)

    def forget(self, group: str, streams: Sequence[StreamId], *, idle_ms: int) -> int:
        """Remove consumers of the group that hold nothing and were silent for ``idle_ms``; how many.

        A consumer that holds something stays until another has taken that over.
        """
        batch = self._scripts.batch()
        for stream in streams:
            batch.script("forget_consumers", [self._key(stream)], [group, idle_ms])
        return sum(answer for answer in batch.execute() if isinstance(answer, int))

    def is_open(self, group: str, stream: StreamId, entry_id: str) -> bool:
        """Return True if an entry is not acknowledged yet: no consumer was handed it, or its holder is at work."""
        key = self._key(stream)
        try:
            groups: Any = self._redis.xinfo_groups(key)
            if self._redis.xpending_range(key, group, entry_id, entry_id, 1):
                return True
        except redis.ResponseError:  # neither stream nor group: nobody has had anything
            return True
        return _order(entry_id) > _order(_progress(groups, group)[0])

    def backlog(self, group: str, streams: Sequence[StreamId]) -> list[Backlog]:
        """Return the progress of the group in each stream. Without the group everything in the stream is unread."""
        asked = self._redis.pipeline(transaction=False)
        for stream in streams:
            key, kind = self._key(stream), f"{stream.type}:{stream.priority}"
            asked.xlen(key)
            asked.hmget(keys.totals(stream.shard), f"trimmed:{kind}", f"published:{kind}")
            asked.xinfo_groups(key)
            asked.xpending(key, group)
            asked.xpending_range(key, group, "-", "+", 1)
        answers = asked.execute(raise_on_error=False)
        of_streams = [answers[at : at + 5] for at in range(0, len(answers), 5)]
        first = self._redis.pipeline(transaction=False)
        for stream, (*_, groups, _summary, _held) in zip(streams, of_streams, strict=True):
            first.xrange(self._key(stream), min=f"({_progress(groups, group)[0]}", count=1)
        rows = []
        for stream, answer, unread in zip(
            streams, of_streams, first.execute(raise_on_error=False), strict=True
        ):
            length, totals, groups, summary, held = answer
            if isinstance(length, Exception):
                self._leave_alone([stream], length)
                continue
            if isinstance(totals, Exception):
                if not is_wrong_type(totals):
                    raise totals
                totals = (0, 0)
            # A group or stream that is not there yet answers with an error, and holds nothing.
            pending = 0 if isinstance(summary, Exception) else int(summary["pending"])
            oldest = None if isinstance(held, Exception) or not held else held[0]
            trimmed, counted = (int(total or 0) for total in totals)
            rows.append(
                Backlog(
                    stream,
                    # What somebody takes out by hand was published all the same, and the scripts have counted it.
                    published=max(length + trimmed, counted),
                    unread=self._unread(stream, length, *_progress(groups, group)) if unread else 0,
                    unread_since_ms=_ms_of(unread[0][0]) if unread else None,
                    pending=pending,
                    pending_since_ms=_ms_of(oldest["message_id"]) if oldest else None,
                    oldest_pending_ms=int(oldest["time_since_delivered"]) if oldest else 0,
                )
            )
        return rows

    def _unread(self, stream: StreamId, length: int, after: str, lag: int | None) -> int:
        """Return how many of ``length`` entries follow ``after``; counted here if the server does not know."""
        if lag is not None or after == _NOTHING:
            return length if lag is None else lag
        count = 0
        while True:
            rows: Any = self._redis.xrange(self._key(stream), min=f"({after}", count=1000)
            if not rows:
                return count
            after, count = rows[-1][0].decode(), count + len(rows)


def is_missing_group(error: object) -> bool:
    """Return True if a group or its stream does not exist: it was removed, or the server lost its memory."""
    return isinstance(error, redis.ResponseError) and "NOGROUP" in str(error)


def _order(entry_id: str) -> tuple[int, int]:
    """Return the key by which entry ids are ordered."""
    ms, _, number = entry_id.partition("-")
    return int(ms), int(number or 0)


def _progress(answer: Any, group: str) -> tuple[str, int | None]:
    """Return the last entry that a group was given, by the answer of XINFO GROUPS, and how many follow it.

    The number is None where the server does not know it: before Redis 7, or once an entry between was deleted.
    """
    for facts in answer if isinstance(answer, list) else ():
        if facts["name"] == group.encode():
            return str(facts["last-delivered-id"].decode()), facts.get("lag")
    return _NOTHING, None


def _ms_of(entry_id: bytes) -> int:
    """When an entry was appended, in milliseconds since the epoch."""
    return int(entry_id.partition(b"-")[0])


def entry_of(stream: StreamId, row: Any) -> Entry | None:
    """Return an entry from the server's answer: its id, and its fields in a row; None if it was deleted by hand."""
    if row is None or row[1] is None:
        return None  # deleted by hand while it was pending
    data = None
    extra = {}
    fields = iter(row[1])
    for name, value in zip(fields, fields, strict=True):
        if name == _FIELD:
            data = value
        else:
            extra[name.decode("utf-8", "replace")] = value.decode("utf-8", "replace")
    return Entry(stream, row[0].decode(), data, extra)

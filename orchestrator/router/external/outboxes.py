"""The outboxes of external programs: their entries go to the streams of messages, and are routed from there.

A program may write to its outbox and to nothing else, as much as it likes. The server counts the bytes of an entry before a
router is given it. A router moves an entry in one step with its acknowledgement and writes the owner of the outbox beside
it, so that a message is accepted only from the program that signed it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import redis

from orchestrator import machine
from orchestrator.bootstrap import Container
from orchestrator.envelope.validate import Report
from orchestrator.log import get_logger
from orchestrator.redisdb import keys
from orchestrator.redisdb.all_keys import SharedKeys
from orchestrator.redisdb.scripts import Scripts
from orchestrator.streams import (
    INBOX,
    OUTBOX,
    PRIORITIES,
    ROUTER_GROUP,
    Entry,
    RedisStreams,
    StreamId,
    boxes,
    stream_key,
)
from orchestrator.streams.redis_streams import entry_of, is_missing_group
from orchestrator.streams.values import ENVELOPE_FIELD, OCTETS_FIELD

#: Seconds after which it is looked up which programs are registered.
REFRESH_S: Final = 2.0
#: Where an entry goes that cannot be read; the router refuses it there with a reason.
_UNREADABLE: Final = ("message", "low")
#: Bytes of an entry beside its envelope.
_BESIDE: Final = 1024
#: Bytes that count as one message against the quota of a program.
_OF_A_MESSAGE: Final = 64 * 1024
#: Messages a minute that are taken from the outbox of one program in a shard.
QUOTA: Final = 12_000
#: Milliseconds between two looks into the outboxes: what blocks until an entry comes is sent all of it.
LOOK_MS: Final = 100


def make_boxes(streams: RedisStreams, programs: Sequence[str], shards: int) -> None:
    """Make the outbox and the inbox of each program where they are missing, with the group that reads them."""
    streams.ensure_groups([ROUTER_GROUP], boxes(OUTBOX, programs, shards))
    for program in programs:
        streams.ensure_groups([program], boxes(INBOX, [program], shards))


class Outboxes:
    """The outboxes that one router reads."""

    def __init__(
        self, parts: Container, *, read: Callable[[Entry], Report | None], shared: SharedKeys
    ) -> None:
        self._scripts = Scripts(parts.redis)
        self._streams = RedisStreams(parts.redis)
        self._read = read
        self._agents = parts.agents
        self._table = parts.routing
        self._shards = parts.settings.shards
        self._shared = shared
        self._programs: list[str] = []
        #: Bytes of the largest message, and those that one round reads, give or take one message.
        self._max_bytes = parts.settings.max_message_bytes
        #: Which outbox is read first in the next round.
        self._turn = 0
        #: Until when nothing more is taken from an outbox, on the monotonic clock.
        self._paused: dict[StreamId, float] = {}
        self._next_look = 0.0
        self.sources: list[StreamId] = []

    @property
    def within_quota(self) -> list[StreamId]:
        """The outboxes of programs that may send more in this minute."""
        if not self._paused:
            return self.sources
        now = machine.monotonic()
        self._paused = {stream: until for stream, until in self._paused.items() if until > now}
        return [stream for stream in self.sources if stream not in self._paused]

    def refresh(self) -> None:
        """Look up which programs are registered, if it is time."""
        if machine.monotonic() < self._next_look:
            return
        try:
            programs = [record.name for record in self._agents.all() if record.external]
        except redis.ResponseError as error:
            if not self._shared.hinder(error):
                raise
            programs = self._programs
        if programs != self._programs:
            self._programs = programs
            make_boxes(self._streams, programs, self._shards)
            self.sources = boxes(OUTBOX, programs, self._shards)
        self._next_look = machine.monotonic() + REFRESH_S

    def read(self, consumer: str, *, most: int) -> list[Entry]:
        """Read new entries of the outboxes in turn, at most ``most`` from each."""
        streams = self.within_quota
        if not streams:
            return []
        pipeline = self._scripts.client.pipeline(transaction=False)
        for stream in streams:
            pipeline.xlen(stream_key(stream))
        filled = []
        for stream, length in zip(streams, pipeline.execute(raise_on_error=False), strict=True):
            if isinstance(length, Exception):
                if not self._shared.hinder(length):
                    raise length
            elif length:
                filled.append(stream)
        self._turn += 1
        start = self._turn % max(1, len(filled))
        entries: list[Entry] = []
        left = self._max_bytes
        for stream in (*filled[start:], *filled[:start]):
            found = self._read_one(stream, consumer, most, left)
            entries += found
            left -= sum(len(entry.data or b"") for entry in found)
            if left <= 0:
                break
        return entries

    def _read_one(self, stream: StreamId, consumer: str, most: int, octets: int) -> list[Entry]:
        shard, program = stream.shard, stream.priority
        refusals = StreamId(shard, *_UNREADABLE)
        try:
            rows, said, left_ms = self._scripts.run(
                "outbox_read",
                [
                    stream_key(stream),
                    stream_key(refusals),
                    keys.totals(shard),
                    keys.quota(shard, program),
                ],
                [ROUTER_GROUP, consumer, program, most, octets, self._max_bytes + _BESIDE, _OF_A_MESSAGE],
            )
        except redis.ResponseError as error:
            if is_missing_group(error):
                make_boxes(self._streams, [program], self._shards)  # the server lost its memory
            elif not self._shared.hinder(error):
                raise
            return []
        self._keep_quota(stream, sent=said, left_ms=left_ms)
        return [entry for row in rows if (entry := entry_of(stream, row)) is not None]

    def collect(self, entries: Sequence[Entry], *, unread: bool = False) -> list[Entry]:
        """Move entries that came from outboxes; return the others in order. Entries that cannot be moved now stay
        pending.

        ``unread``: do not parse them, as that has ended routers; each is checked alone in its next stream.
        """
        others: list[Entry] = []
        moved: list[StreamId] = []
        batch = self._scripts.batch()
        for entry in entries:
            if entry.stream.type != OUTBOX:
                others.append(entry)
                continue
            kind, priority = _UNREADABLE if unread else self._place(entry)
            shard = entry.stream.shard
            moved.append(entry.stream)
            batch.script(
                "route_collect",
                [
                    stream_key(entry.stream),
                    stream_key(StreamId(shard, kind, priority)),
                    keys.totals(shard),
                    keys.quota(shard, entry.stream.priority),
                ],
                [
                    ROUTER_GROUP,
                    entry.id,
                    entry.stream.priority,
                    -(-max(1, len(entry.data or b"")) // _OF_A_MESSAGE),
                    *self._fields(entry),
                ],
            )
        for stream, answer in zip(moved, batch.execute(), strict=True):
            if isinstance(answer, Exception):
                if not self._shared.hinder(answer):
                    raise answer
            elif answer:
                self._keep_quota(stream, sent=answer[0], left_ms=answer[1])
        return others

    def _keep_quota(self, stream: StreamId, *, sent: int, left_ms: int) -> None:
        """Do not read an outbox for the rest of the minute if its program has sent as much as it may."""
        if sent >= QUOTA and stream not in self._paused:
            self._paused[stream] = machine.monotonic() + left_ms / 1000
            get_logger().warning(
                "outbox-over-quota", program=stream.priority, quota=QUOTA, rests_s=round(left_ms / 1000)
            )

    def _fields(self, entry: Entry) -> list[str | bytes | int]:
        """Return the fields of an entry that a program may have altered: its envelope, or the size of one that is too
        large.
        """
        if entry.data is None:
            return []
        if len(entry.data) > self._max_bytes:
            return [OCTETS_FIELD, len(entry.data)]
        return [ENVELOPE_FIELD, entry.data]

    def _place(self, entry: Entry) -> tuple[str, str]:
        """Type and priority of the stream in which a message belongs."""
        try:
            report = self._read(entry)
        except Exception:  # noqa: BLE001 - nothing a message holds may leave the loop as an exception
            get_logger().exception("outbox-unreadable", stream=str(entry.stream), entry=entry.id)
            return _UNREADABLE
        message = None if report is None else report.message
        if message is None:
            return _UNREADABLE
        priority = message.header.priority or self._table[message.body.type].priority
        return message.body.type, priority if priority in PRIORITIES else "low"

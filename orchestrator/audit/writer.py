"""The audit writer: a consumer group of its own on every stream of messages, transitions and dead letters; misses nothing.

An entry is acknowledged after the commit that wrote it. What a dead writer held is reclaimed and read alone; what ends
every writer that reads it is kept unread. What is written already is not written twice. Any number of copies may write
to one database, or each to its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import redis

from orchestrator import machine
from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.heads import EitherKeys, Head, HeadSigner, KeptHeads
from orchestrator.audit.records import DeadRecord, FactsReader, MessageRecord, read_dead, read_entry
from orchestrator.audit.store import AuditStore
from orchestrator.audit.transitions import Step, StepsRecord
from orchestrator.config.settings import Settings
from orchestrator.crashpoints import failpoint
from orchestrator.envelope.parse import ParseLimits
from orchestrator.envelope.sealing import Opener
from orchestrator.errors import AuditError, KeyringError
from orchestrator.keyring.registry import Keyring
from orchestrator.log import get_logger
from orchestrator.machine import Clock, SystemClock
from orchestrator.redisdb import keys
from orchestrator.redisdb.key_table import is_wrong_type
from orchestrator.redisdb.raw_pipeline import ServerClock
from orchestrator.runtime.service import still_at_work
from orchestrator.streams import (
    AUDIT_GROUP,
    DEAD,
    GROUPS,
    LEDGER,
    TRANSITIONS,
    Consumer,
    Entry,
    Portion,
    RedisStreams,
    StreamId,
    all_streams,
    ledger_streams,
)

#: Entries that one read takes from one stream: after an outage a commit costs more than all else in it.
BATCH: Final = 500
#: Milliseconds that an idle writer waits before it looks up.
BLOCK_MS: Final = 1000
#: Milliseconds after which an entry's holder counts as dead: a commit on a slow disk takes long.
RECLAIM_IDLE_MS: Final = 60_000
#: Deliveries to a writer of its own that ended while it read an entry, after which the entry is kept unread.
POISON_DELIVERIES: Final = 3
_RETRY_S: Final = 2.0
_LINGER_S: Final = 0.25
#: How often a writer waits before it writes, while so many entries come in each wait, and until it has so many.
_LINGERS: Final = 4
_BUSY: Final = 50
_MOST: Final = 2000
#: Octets above which a read takes the fewest entries the next time, and which a round reads, give or take one read.
_OCTETS: Final = 64 * 1024 * 1024
#: Octets of stored bodies that one transaction writes, give or take one body.
_BODIES: Final = 32 * 1024 * 1024
#: Messages that are indexed at once when nothing else is to be done, and so many that wait for it that it is done
#: although there is more to write: a search reads those that wait one by one.
_INDEX: Final = 500
_INDEX_LATE: Final = 4_000
#: Seconds between two heads that are kept in a file while there is no pause: each costs the disk a flush.
_KEEP_EVERY_S: Final = 1.0


class AuditWriter:
    """A copy of the audit writer."""

    def __init__(
        self,
        client: redis.Redis,
        store: AuditStore,
        *,
        consumer: str,
        sources: Sequence[StreamId],
        clock: Clock | None = None,
        reclaim_idle_ms: int = RECLAIM_IDLE_MS,
        facts: FactsReader | None = None,
        kept: KeptHeads | None = None,
    ) -> None:
        self._redis = client
        self._kept = kept
        self._to_keep: Head | None = None
        self._next_keep = 0.0
        self._store = store
        shards = sorted({stream.shard for stream in sources})
        ledgers = [StreamId(shard, LEDGER, name) for name in (TRANSITIONS, DEAD) for shard in shards]
        everything = [*sources, *ledgers]
        self._everything = everything
        #: Entries that the next read takes from one stream: few until it is known that they are small.
        self._share = 1
        streams = RedisStreams(client)
        self._consumer = Consumer(
            streams,
            AUDIT_GROUP,
            consumer,
            lambda: everything,
            reclaim_idle_ms=reclaim_idle_ms,
        )
        self._clock = clock or SystemClock()
        self._facts = facts or FactsReader()
        self._held: list[Entry] = []
        #: Of the entries held, those that have ended the writers that read them.
        self._poison: set[tuple[StreamId, str]] = set()
        #: Whether there was more to index when there was nothing else to do.
        self._to_index = False
        self._logged: set[str] = set()
        # Before anything is read: a stream is trimmed only below what this group has acknowledged.
        streams.ensure_groups(GROUPS, sources)
        streams.ensure_groups([AUDIT_GROUP], ledgers)
        store.believe(self._noted())
        if kept is not None:
            store.believe(kept.read(store.id))

    def run(self, stop: threading.Event) -> None:
        """Write until told to stop; a database that cannot be written to is tried again and again."""
        self._log_once("audit-not-signed", self._store.unsigned)
        while not stop.is_set():
            try:
                self.run_once(block_ms=BLOCK_MS, linger=lambda: stop.wait(_LINGER_S))
            except AuditError as error:
                self._share = 1  # what comes meanwhile may be large
                get_logger().error("audit-not-written", error=str(error), held=len(self._held))
                stop.wait(_RETRY_S)
        self._keep_head()

    def run_once(self, *, block_ms: int = 0, linger: Callable[[], object] | None = None) -> int:
        """Write what was left over, then what is new; return how many records were written.

        ``linger`` lets more messages come before the first ones are written.

        Raises:
            AuditError: the database cannot be written to; what was read is held for the next round.
        """
        written = self._write([])
        tried: set[tuple[StreamId, str]] = set()
        for (entry,) in self._consumer.left_over(limit=1):
            if (
                entry.stream,
                entry.id,
            ) in tried:  # it is held for so long that this writer took it from itself
                self._consumer.uncount(entry)
            else:
                tried.add((entry.stream, entry.id))
                self._try(entry)
                self._held.append(entry)
                if len(tried) < BATCH:
                    continue
            written += self._write([])
            tried.clear()
        written += self._write([])
        entries = self._read(block_ms=0 if self._to_index else block_ms)
        # Few big transactions cost the disk, and everybody else on it, less than many small ones.
        more = entries
        for _ in range(_LINGERS if linger is not None and entries else 0):
            assert linger is not None
            if len(entries) >= _MOST or _octets(entries) > _OCTETS:
                break
            if len(more) < BATCH:  # otherwise there is more to read already
                linger()
            more = self._read()
            entries = [*entries, *more]
            if len(more) < _BUSY:
                break
        written += self._write(entries)
        if not entries:
            self._to_index = self._store.index(_INDEX) == _INDEX
        elif self._store.unindexed() > _INDEX_LATE:
            self._store.index(max(_INDEX, 2 * written))
        if not entries or machine.monotonic() >= self._next_keep:
            self._keep_head()
        return written

    def _read(self, *, block_ms: int = 0) -> list[Entry]:
        """Read new entries until none is left or there are enough for one batch."""
        entries: list[Entry] = []
        while True:
            share = self._share
            more = self._consumer.read(
                [Portion(self._everything, share)], block_ms=0 if entries else block_ms
            )
            entries += more
            self._share = 1 if _octets(more) > _OCTETS else min(BATCH, 4 * share)
            if len(more) < share or len(entries) >= BATCH or _octets(entries) > _OCTETS:
                # As one read has them: what is urgent has the lower number of two messages of one millisecond.
                return sorted(entries, key=lambda entry: self._everything.index(entry.stream))

    def _try(self, entry: Entry) -> None:
        """Read an entry that was left over, alone, so that a crash counts against no other entry.

        Its deliveries count the writers that ended here: the first was in a batch, and one that is survived is taken back.
        """
        if entry.stream.type == LEDGER:
            return
        if entry.deliveries - 1 > POISON_DELIVERIES:
            self._poison.add((entry.stream, entry.id))
            get_logger().error(
                "audit-poison",
                stream=str(entry.stream),
                entry=entry.id,
                octets=len(entry.data or b""),
                deaths=entry.deliveries - 1,
            )
            return
        try:
            self._facts.read(entry.data or b"")
        finally:  # whatever it comes to, it has not ended the process
            self._consumer.uncount(entry)

    def _write(self, entries: Sequence[Entry]) -> int:
        """Commit, then acknowledge; entries that could not be committed are held and go first the next time."""
        self._held += entries
        written = 0
        while self._held:
            still_at_work()
            failpoint("audit.read")
            number, messages, dead, steps = self._records()
            written += self._store.add(messages, dead, transitions=steps)
            failpoint("audit.written")
            done, self._held = self._held[:number], self._held[number:]
            self._consumer.acknowledge(done)
            self._poison.difference_update((entry.stream, entry.id) for entry in done)
            self._note_head()
        return written

    def _records(self) -> tuple[int, list[MessageRecord], list[DeadRecord], list[StepsRecord]]:
        """Return the number of held entries to write, up to so many octets of stored bodies, and their records."""
        received_ms = self._clock.now_ms()
        messages: list[MessageRecord] = []
        dead: list[DeadRecord] = []
        steps: dict[str, list[Step]] = {}
        size = number = 0
        for number, entry in enumerate(self._held, 1):  # noqa: B007 - the number of the last one is wanted
            if entry.stream.type == LEDGER:
                if entry.stream.priority == DEAD:
                    dead.append(read_dead(entry, received_ms=received_ms))
                else:
                    steps.setdefault(str(entry.stream), []).append(Step.of(entry))
                continue
            unread = (entry.stream, entry.id) in self._poison
            messages.append(read_entry(entry, received_ms=received_ms, reader=self._facts, unread=unread))
            size += len(messages[-1].body_octets)
            if size > _BODIES:
                break
        records = [StepsRecord(stream=name, steps=s, received_ms=received_ms) for name, s in steps.items()]
        return number, messages, dead, records

    def _noted(self) -> Head | None:
        """Return the head of this database that Redis has; None if it has none."""
        try:
            noted: Any = self._redis.hget(keys.audit_heads(), self._store.id)
        except redis.ResponseError as error:
            if not is_wrong_type(error):
                raise
            return None
        return Head.from_text(noted) if noted is not None else None

    def _note_head(self) -> None:
        """Tell Redis how far this database has come, so that an end that is cut off shows."""
        self._log_once("audit-changed", self._store.changed)
        self._log_once("audit-not-signed", self._store.unsigned)
        if self._store.changed:
            return
        # Where nobody signs, the ends are noted all the same: other databases of this stack count what is written here.
        head = self._store.signed_head or self._store.ends()
        try:
            self._redis.hset(keys.audit_heads(), self._store.id, head.to_text())
        except redis.ResponseError as error:
            if not is_wrong_type(error):
                raise  # it was overwritten: the signs of life name it, and the trail is written all the same
        if head.jws:
            self._to_keep = head

    def _keep_head(self) -> None:
        """Keep how far this database has come where neither it nor Redis is, so that putting both back shows."""
        head, self._to_keep = self._to_keep, None
        if head is None or self._kept is None:
            return
        try:
            self._kept.keep(head)
        except AuditError as error:
            self._log_once("audit-head-not-kept", str(error))
        self._next_keep = machine.monotonic() + _KEEP_EVERY_S

    def _log_once(self, event: str, reason: str) -> None:
        if reason and event not in self._logged:
            self._logged.add(event)
            get_logger().error(event, database=self._store.name, reason=reason)


def _octets(entries: Sequence[Entry]) -> int:
    return sum(len(entry.data or b"") for entry in entries)


@dataclass(frozen=True, kw_only=True)
class TrailBacklog:
    """Entries that no writer has committed, by kind; a writer that holds an entry has not committed it."""

    messages: int
    #: Steps of the ledger.
    steps: int
    dead_letters: int
    #: Milliseconds since the oldest of them was published; 0: there are none.
    oldest_ms: int

    @property
    def entries(self) -> int:
        """All of them."""
        return self.messages + self.steps + self.dead_letters


def backlog(client: redis.Redis, shards: int) -> TrailBacklog:
    """Return how far the audit trail of a stack is behind. Redis is asked, and no database: that may be away."""
    kinds = (
        all_streams(shards),
        ledger_streams(TRANSITIONS, shards),
        ledger_streams(DEAD, shards),
    )
    rows = [RedisStreams(client).backlog(AUDIT_GROUP, kind) for kind in kinds]
    messages, steps, dead_letters = (sum(row.unread + row.pending for row in kind) for kind in rows)
    since = [
        ms
        for kind in rows
        for row in kind
        for ms in (row.unread_since_ms, row.pending_since_ms)
        if ms is not None
    ]
    return TrailBacklog(
        messages=messages,
        steps=steps,
        dead_letters=dead_letters,
        oldest_ms=max(0, ServerClock(client).now_ms() - min(since)) if since else 0,
    )


class AuditParts(Protocol):
    """Parts of a stack that an audit writer needs."""

    @property
    def redis(self) -> redis.Redis: ...
    @property
    def settings(self) -> Settings: ...
    @property
    def keyring(self) -> Keyring: ...
    @property
    def opener(self) -> Opener: ...


def build_writer(parts: AuditParts, *, consumer: str) -> AuditWriter:
    """Return a writer to the audit database of the settings.

    Raises:
        AuditError: the database cannot be opened or made, or the head of it that is kept cannot be read.
    """
    settings, keyring = parts.settings, parts.keyring
    heads = HeadSigner(lambda: keyring.signer(OPERATOR), EitherKeys(keyring, keyring.store))
    store = AuditStore(settings.audit_database, heads=heads)
    try:
        keyring.require(OPERATOR)
    except KeyringError as error:
        store.unsigned = str(error)
    return AuditWriter(
        parts.redis,
        store,
        consumer=consumer,
        sources=all_streams(settings.shards),
        # A commit on a slow disk takes longer than anything a worker does between two signs of life.
        reclaim_idle_ms=round(settings.lease_s * 4000),
        facts=FactsReader(
            limits=ParseLimits(size=settings.max_message_bytes),
            opener=parts.opener,
            keys=keyring if settings.signatures_required else None,
        ),
        kept=KeptHeads.of(settings),
    )

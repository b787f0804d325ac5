"""The inspection behind `orchestra audit verify`: the database against itself, its signatures, and the server."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit import AuditReader, AuditStore, Break, Coverage
from orchestrator.audit.heads import EitherKeys, Head, KeptHeads, Proof, proof_of
from orchestrator.audit.transfer import load
from orchestrator.audit.verification import Suspect, verify
from orchestrator.audit.writer import backlog
from orchestrator.bootstrap import Container
from orchestrator.config.settings import Settings
from orchestrator.errors import OrchestraError
from orchestrator.keyring.store import KeyStore
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.deadletters.store import DeadLetters
from orchestrator.router.delayed.parked import DelayedMessages
from orchestrator.streams import (
    LEDGER,
    ROUTER_GROUP,
    TRANSITIONS,
    RedisStreams,
    StreamId,
    all_streams,
    ledger_streams,
)

#: Looks at what seems to be lost, and the seconds between them: a writer may be at work between two reads.
_LOOKS: Final = 8
BETWEEN_S: Final = 0.15


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """Result of an inspection. None: not known, because Redis was not asked."""

    #: The audit database.
    file: str
    #: Where it is not what was written.
    breaks: list[Break]
    #: Entries that it holds.
    messages: int
    #: Entries that were published; null: Redis was not asked.
    published: int | None = None
    #: Published entries that are written.
    written: int | None = None
    #: Published entries that a writer is still to write; null: Redis was not asked.
    waiting: int | None = None
    #: Milliseconds since the oldest of them was published; 0: there are none; null: Redis was not asked.
    behind_ms: int | None = None
    #: Steps of the ledger that were written so far.
    steps: int = 0
    #: Steps of the ledger that were published; null: Redis was not asked.
    steps_published: int | None = None
    #: Published entries that it lacks and that no writer will write.
    lost: int = 0
    #: The streams that they were in.
    where: str = ""
    #: Why Redis was not asked.
    unreached: str | None = None

    @property
    def intact(self) -> bool:
        """Whether the trail is what was written."""
        return not self.breaks and not self.lost


def inspect(
    settings: Settings, connect: Callable[[], AbstractContextManager[Container]], file: Path | None = None
) -> Inspected:
    """Inspect the audit trail of a stack; where ``connect`` finds none, the database alone; or an exported trail.

    Raises:
        AuditError: there is none, or it cannot be read.
    """
    if file is not None:
        return _inspect_file(settings, file)
    store = AuditStore(settings.audit_database, read_only=True)
    with ExitStack() as opened:
        try:
            parts = opened.enter_context(connect())
        except OrchestraError as error:
            return _offline(store, settings, settings.audit_name, str(error), KeptHeads.of(settings))
        return _online(store, parts)


def _inspect_file(settings: Settings, file: Path) -> Inspected:
    """Inspect an exported trail by the keys in the data folder; no server is asked.

    Raises:
        AuditError: the file is not a whole exported trail.
    """
    with _scratch() as scratch:
        copy = scratch / "audit.sqlite"
        with closing(AuditStore(copy)) as writing:
            load(file, writing)
        with closing(AuditStore(copy, read_only=True)) as store:
            return _offline(store, settings, str(file), "it is a file", None)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder that goes when this process ends, however that ends: another one waits for it, and removes the folder."""
    folder = mkdtemp(prefix="orchestra-audit-")
    remove = "import shutil, sys; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
    command = [sys.executable, "-I", "-S", "-c", remove, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True):
        yield Path(folder)


def _offline(
    store: AuditStore, settings: Settings, name: str, reason: str, kept: KeptHeads | None
) -> Inspected:
    folder = KeyStore(settings.keys_dir, settings.signature_algorithm)
    breaks = verify(
        store,
        proof_of(folder, settings),
        noted=None,
        kept=kept,
        signed_here=folder.current(OPERATOR) is not None,
        undecided=lambda suspects: {suspect.sha256 for suspect in suspects},
    )
    return Inspected(
        file=name, breaks=list(breaks), messages=store.total(), steps=_steps(store), unreached=reason
    )


def _online(store: AuditStore, parts: Container) -> Inspected:
    reader = AuditReader(store)
    proof = proof_of(EitherKeys(parts.keyring, parts.keyring.store), parts.settings)
    # The head first: what is written meanwhile is in the database and not in it.
    noted: Any = parts.redis.hget(keys.audit_heads(), store.id)
    breaks = verify(
        store,
        proof,
        noted=Head.from_text(noted) if noted is not None else None,
        kept=KeptHeads.of(parts.settings),
        signed_here=parts.keyring.store.current(OPERATOR) is not None,
        undecided=lambda suspects: _undecided(parts, suspects),
        unaudited=_unaudited(parts),
    )
    found = list(breaks)
    elsewhere = _elsewhere(parts, store.id, proof)
    coverage = _settled(reader, parts, elsewhere)
    messages = [row for row in coverage if row.stream.type != LEDGER]
    missing = sum(max(0, row.missing) for row in messages)
    lost = max(0, sum(row.lost for row in coverage) - elsewhere)
    published = sum(row.published for row in messages)
    return Inspected(
        file=parts.settings.audit_name,
        breaks=found,
        messages=store.total(),
        published=published,
        written=published - missing,
        waiting=missing - sum(row.lost for row in messages),
        behind_ms=backlog(parts.redis, parts.settings.shards).oldest_ms,
        steps=_steps(store),
        steps_published=sum(row.published for row in coverage if row.stream.type == LEDGER),
        lost=lost,
        where=", ".join(str(row.stream) for row in coverage if row.lost) if lost else "",
    )


def _settled(reader: AuditReader, parts: Container, elsewhere: int) -> list[Coverage]:
    """Return how much of what was published is written, looked at until nothing seems lost, or a few times."""
    shards = parts.settings.shards
    streams, sources = RedisStreams(parts.redis), [*all_streams(shards), *ledger_streams(TRANSITIONS, shards)]
    coverage = reader.coverage(streams, sources)
    for _ in range(_LOOKS - 1):
        if sum(row.lost for row in coverage) <= elsewhere:
            break
        time.sleep(BETWEEN_S)
        again = reader.coverage(streams, sources)
        if sum(row.lost for row in again) < sum(row.lost for row in coverage):
            coverage = again
    return coverage


def _elsewhere(parts: Container, database: str, proof: Proof) -> int:
    """Return how many entries the other databases of this stack hold, by heads that the operator signed."""
    heads: Any = parts.redis.hgetall(keys.audit_heads())
    others = [Head.from_text(text) for name, text in heads.items() if name.decode() != database]
    believed = [head for head in others if head is not None and not head.fault(proof.keys, head.database)]
    return sum(head.messages.seq + head.transitions.entries for head in believed)


def _steps(store: AuditStore) -> int:
    """Return how many steps of the ledger were written so far, those included that the operator has removed."""
    return store.ends().transitions.entries


def _unaudited(parts: Container) -> int:
    """Return how many dead letters were dropped before the writer had read them."""
    shards = range(parts.settings.shards)
    counts: Any = [parts.redis.hget(keys.dead_usage(shard), "unaudited") for shard in shards]
    return sum(int(number or 0) for number in counts)


def _undecided(parts: Container, suspects: Iterable[Suspect]) -> set[str]:
    """Return the digests that a router has not decided for good: unread, pending, parked, or a dead letter not
    audited.
    """
    client, shards = parts.redis, parts.settings.shards
    parking = DelayedMessages(Scripts(client), shards=range(shards), mark_ms=0)
    parked = {(str(p.stream), p.id.rpartition(":")[2]) for p in parking.all(limit=100_000)}
    dead = {
        (str(dead_letter.stream), dead_letter.entry)
        for dead_letter in DeadLetters(client, shards=shards).all()
    }

    def is_with_routers(stream: str, entry: str) -> bool:
        return RedisStreams(client).is_open(ROUTER_GROUP, StreamId.parse(stream), entry)

    return {
        suspect.sha256
        for suspect in suspects
        if suspect.place in parked or suspect.place in dead or is_with_routers(*suspect.place)
    }

"""Reading of the audit trail from where the last reading ended, and the file that remembers how far that is.

The file is a cache: without it the trail is read again from its first row, and comes to the same counts.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import redis
from sqlalchemy import Select, select

from orchestrator.audit import database as schema
from orchestrator.audit.store import AuditStore
from orchestrator.audit.transitions import Step, order_of, unpack
from orchestrator.config.settings import Settings
from orchestrator.errors import AuditError
from orchestrator.log import get_logger
from orchestrator.redisdb import keys
from orchestrator.redisdb.key_table import is_wrong_type
from orchestrator.redisdb.raw_pipeline import server_ms
from orchestrator.streams import AUDIT_GROUP, TRANSITIONS, ledger_streams
from orchestrator.streams.redis_streams import is_missing_group
from orchestrator.telemetry.fold import AgentsOf, Fold

#: Of the file; one of another version is not read.
_VERSION: Final = 2
#: Rows of transitions that one query reads, of up to 2,000 steps each, and of dead letters.
_ROWS: Final = 100
_DEAD: Final = 5_000
#: Steps that are counted together, for which the ledger is asked once.
_AT_ONCE: Final = 2_000

_log = get_logger()


class Trail:
    """The audit trail of one stack, counted as far as it was read."""

    def __init__(self, settings: Settings, *, spans: bool = False) -> None:
        """``spans``: whether somebody takes the spans of attempts that have ended."""
        self._settings = settings
        self._spans = spans
        self._folder = settings.data / "metrics"
        self._store: AuditStore | None = None
        self.fold = Fold()
        #: Dead letters by the type of their message.
        self.dead_by_type: dict[str, int] = {}
        self._steps = self._dead = 0
        #: Stream → steps that were written before others that come before them, as a writer that was killed held these.
        self._held: dict[str, list[Step]] = defaultdict(list)
        #: Until when everything that the ledger changed is counted, by the server's clock.
        self.settled_ms = 0
        self._kept: tuple[int, int] | None = None
        self._said = False
        #: Whether the reading went on where an earlier process ended.
        self.restored = False

    def read(self, client: redis.Redis, agents_of: AgentsOf, *, go_on: Callable[[], bool]) -> bool:
        """Count what is new, for as long as ``go_on`` says; return True if nothing is left.

        Steps are counted in the order in which they happened, which is not always that of the rows.

        Raises:
            redis.RedisError: Redis does not answer.
            AuditError: the trail cannot be read.
        """
        store = self._open()
        # First this, then the rows: what is complete now is in them.
        now_ms = server_ms(client)
        complete, everything = complete_up_to(client, self._settings.shards)
        ended = self._read(store, go_on)
        for stream, steps in self._held.items():
            steps.sort(key=lambda step: order_of(step.entry_id))
            end = complete.get(stream, (0, 0))
            ready = sum(order_of(step.entry_id) <= end for step in steps)
            for start in range(0, ready, _AT_ONCE):
                self.fold.apply(stream, steps[start : min(ready, start + _AT_ONCE)], agents_of)
            del steps[:ready]
        if ended:
            self.settled_ms = now_ms if everything else min((ms for ms, _ in complete.values()), default=0)
        return ended

    def _read(self, store: AuditStore, go_on: Callable[[], bool]) -> bool:
        while go_on():
            rows = store.query(_after(schema.TRANSITIONS, ("stream", "document"), self._steps, _ROWS))
            for seq, stream, document in rows:
                self._held[stream] += unpack(document)
                self._steps = seq
            dead = store.query(_after(schema.DEAD_LETTERS, ("stream", "rule"), self._dead, _DEAD))
            for seq, stream, rule in dead:
                self.fold.totals.count("orchestra_dead_letters_total", rule)
                kind = stream.split("/")[1] if stream.count("/") == 2 else ""
                self.dead_by_type[kind] = self.dead_by_type.get(kind, 0) + 1
                self._dead = seq
            if len(rows) < _ROWS and len(dead) < _DEAD:
                return True
        return False

    def keep(self) -> None:
        """Write down how far the trail was read, and the counts; a file that cannot be written costs time, no counts."""
        if self._store is None or self._kept == (self._steps, self._dead):
            return
        document = {
            "version": _VERSION,
            "database": self._store.id,
            "transitions": self._steps,
            "dead_letters": self._dead,
            "dead_by_type": self.dead_by_type,
            "held": {stream: steps for stream, steps in self._held.items() if steps},
            "fold": self.fold.to_json(),
        }
        path = self._file(self._store.id)
        scratch = path.with_suffix(f".{os.getpid()}")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            scratch.write_text(json.dumps(document), encoding="utf-8")
            scratch.replace(path)
        except OSError as error:
            if not self._said:  # a folder that is read-only stays so
                _log.warning("metrics-not-kept", file=str(path), error=str(error))
            self._said = True
            return
        self._kept = self._steps, self._dead

    def _open(self) -> AuditStore:
        if self._store is None:
            self._store = AuditStore(self._settings.audit_database, read_only=True)
            self._restore(self._store.id)
            if self._spans:
                self.fold.spans = []
        return self._store

    def _restore(self, database: str) -> None:
        path, document = self._file(database), None
        with suppress(OSError, ValueError):
            document = json.loads(path.read_text(encoding="utf-8"))
        if document is None:
            return
        try:
            if document["version"] != _VERSION or document["database"] != database:
                return
            fold, dead = Fold.from_json(document["fold"]), dict[str, int](document["dead_by_type"])
            held = {name: [Step(*step) for step in steps] for name, steps in document["held"].items()}
            steps, letters = int(document["transitions"]), int(document["dead_letters"])
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            _log.warning("metrics-read-anew", file=str(path), error=repr(error))
            return
        self.fold, self.dead_by_type, self._steps, self._dead = fold, dead, steps, letters
        self._held = defaultdict(list, held)
        self._kept, self.restored = (steps, letters), True

    def _file(self, database: str) -> Path:
        # One that sends spans has not read further than it has sent.
        return self._folder / f"{database}{'-traces' if self._spans else ''}.json"


def complete_up_to(client: redis.Redis, shards: int) -> tuple[dict[str, tuple[int, int]], bool]:
    """Return of each stream of transitions up to which entry the trail has all of them, and whether that is all there are.

    Writers acknowledge what they have committed. What one of them holds that was killed comes later than what follows it.
    """
    found: dict[str, tuple[int, int]] = {}
    everything = True
    for shard, stream in enumerate(ledger_streams(TRANSITIONS, shards)):
        pipe = client.pipeline(transaction=True)
        pipe.xinfo_groups(keys.transitions(shard))
        pipe.xpending_range(keys.transitions(shard), AUDIT_GROUP, "-", "+", 1)
        pipe.xinfo_stream(keys.transitions(shard))
        groups, held, about = pipe.execute(raise_on_error=False)
        for reply in (groups, held, about):
            if isinstance(reply, redis.ResponseError) and (_is_missing(reply) or is_wrong_type(reply)):
                break
            if isinstance(reply, Exception):
                raise reply
        else:
            end = found[str(stream)] = _end_of(groups, held)
            everything = everything and end == order_of(about["last-generated-id"].decode())
    return found, everything


def _is_missing(error: redis.ResponseError) -> bool:
    return is_missing_group(error) or "no such key" in str(error)


def _end_of(groups: Sequence[Any], held: Sequence[Any]) -> tuple[int, int]:
    if held:
        ms, number = order_of(held[0]["message_id"].decode())
        return ms, number - 1
    names = {group["name"]: group["last-delivered-id"] for group in groups}
    last = names.get(AUDIT_GROUP.encode())
    return order_of(last.decode()) if last else (0, 0)


def missing(settings: Settings) -> bool:
    """Return True if there is no trail yet: no audit writer has begun one."""
    where = settings.audit_database
    return isinstance(where, Path) and not where.exists()


def _after(table: Any, columns: tuple[str, ...], seq: int, most: int) -> Select[Any]:
    wanted = [table.c.seq, *(table.c[name] for name in columns)]
    return select(*wanted).where(table.c.seq > seq).order_by(table.c.seq).limit(most)


__all__ = ["AuditError", "Trail", "missing"]

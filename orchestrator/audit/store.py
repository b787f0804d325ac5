"""The audit database: SQLite in one file, added to by one writer at a time, read by anybody.

Each row's ``chain`` is a hash over the row and the chain of the row before, so that changing, removing or
inserting a row anywhere shows in every later one.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from orchestrator.audit.records import DeadRecord, MessageRecord
from orchestrator.audit.text import says
from orchestrator.errors import AuditError

#: The version of the schema, as `PRAGMA user_version` has it.
VERSION: Final = 1
#: Seconds to wait for another writer's commit.
_BUSY_S: Final = 30.0

_MESSAGE_COLUMNS: Final = [
    "stream",
    "entry_id",
    "message_id",
    "type",
    "priority",
    "sender",
    "recipient",
    "correlation_id",
    "parent_id",
    "task_id",
    "sent",
    "published_ms",
    "received_ms",
    "attempt",
    "xml",
    "sha256",
]
_DEAD_COLUMNS: Final = ["dead_id", "stream", "entry_id", "rule", "reason", "attempts", "at_ms", "received_ms"]
_CHAINED: Final = {
    "messages": [name for name in _MESSAGE_COLUMNS if name != "xml"],
    "dead_letters": _DEAD_COLUMNS,
}


@dataclass(frozen=True, kw_only=True)
class Break:
    """A place where the trail is not what was written."""

    table: str
    seq: int
    what: str


class AuditStore:
    """One audit database. Safe to share between threads."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Open the database; a writer makes it if it is not there.

        Raises:
            AuditError: it cannot be opened or made, or is no audit database of this version.
        """
        self.path = path
        self._lock = threading.Lock()
        try:
            self._db = self._open(read_only=read_only)
        except (sqlite3.Error, OSError) as error:
            if read_only and not path.exists():
                hint = "run a stack, or `orchestra audit writer`, on this data folder first"
            else:
                hint = "check the file, its folder and the space on the disk"
            raise AuditError(path, str(error), hint) from error

    def _open(self, *, read_only: bool) -> sqlite3.Connection:
        if read_only:
            db = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=ro",
                uri=True,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
            db.execute("PRAGMA query_only = 1")
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode = WAL")
            # What is acknowledged to Redis is on the disk, even if the machine loses its power.
            db.execute("PRAGMA synchronous = FULL")
            self._make_schema(db)
        db.row_factory = sqlite3.Row
        db.create_function("says", 2, says, deterministic=True)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION:
            db.close()
            raise AuditError(
                self.path,
                f"it has version {version}, this program needs {VERSION}",
                "move it away or upgrade",
            )
        return db

    @staticmethod
    def _make_schema(db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        try:
            if db.execute("PRAGMA user_version").fetchone()[0] == 0:
                for statement in (
                    (resources.files(__package__) / "schema.sql").read_text(encoding="utf-8").split(";\n")
                ):
                    db.execute(statement)
                db.execute("INSERT INTO facts VALUES ('id', ?)", (uuid.uuid4().hex,))
                db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise

    @property
    def id(self) -> str:
        """The name of this database among all, for as long as the file lives."""
        return str(self.query("SELECT value FROM facts WHERE name = 'id'")[0][0])

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()

    # --- writing -----------------------------------------------------------------------------

    def add(self, messages: Sequence[MessageRecord], dead: Sequence[DeadRecord] = ()) -> int:
        """Write records that are not there yet, all in one transaction; how many were new.

        Raises:
            AuditError: the disk is full or the file cannot be written; nothing of the batch was.
        """
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    new = self._append("messages", _MESSAGE_COLUMNS, messages)
                    new += self._append("dead_letters", _DEAD_COLUMNS, dead)
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise AuditError(
                    self.path, str(error), "make room on the disk; nothing is lost meanwhile"
                ) from error
        return new

    def _append(
        self, table: str, columns: Sequence[str], records: Sequence[MessageRecord] | Sequence[DeadRecord]
    ) -> int:
        if not records:
            return 0
        chain = self._head(table)
        places = ", ".join("?" * (len(columns) + 1))
        insert = f"INSERT OR IGNORE INTO {table} ({', '.join(columns)}, chain) VALUES ({places})"  # noqa: S608
        values_of, chained_of = attrgetter(*columns), attrgetter(*_CHAINED[table])
        new = 0
        for record in records:
            link = _link(chain, chained_of(record))
            if self._db.execute(insert, (*values_of(record), link)).rowcount:
                chain = link
                new += 1
        return new

    def _head(self, table: str) -> str:
        row = self._db.execute(f"SELECT chain FROM {table} ORDER BY seq DESC LIMIT 1").fetchone()  # noqa: S608
        return row[0] if row else ""

    # --- reading -----------------------------------------------------------------------------

    def messages(
        self,
        *,
        where: str = "1",
        values: Sequence[Any] = (),
        order: str = "m.seq",
        limit: int = -1,
    ) -> Iterator[MessageRecord]:
        """The messages that a condition over ``m`` holds for, with the reason of those that are dead."""
        query = (  # every part of it is our own text; values travel apart
            "SELECT m.*, coalesce((SELECT d.rule || ': ' || d.reason FROM dead_letters d "  # noqa: S608
            "WHERE d.stream = m.stream AND d.entry_id = m.entry_id LIMIT 1), '') AS dead "
            f"FROM messages m WHERE {where} ORDER BY {order} LIMIT ?"
        )
        with self._lock, closing(self._db.execute(query, [*values, limit])) as rows:
            found = rows.fetchall()
        for row in found:
            yield MessageRecord(**dict(row))

    def counts(self) -> dict[str, int]:
        """How many entries of each stream are written."""
        with self._lock:
            return dict(self._db.execute("SELECT stream, count(*) FROM messages GROUP BY stream").fetchall())

    def total(self) -> int:
        """How many entries are written."""
        with self._lock:
            return int(self._db.execute("SELECT count(*) FROM messages").fetchone()[0])

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """Rows of a reading query of our own."""
        with self._lock:
            return self._db.execute(sql, values).fetchall()

    def head(self) -> tuple[int, str]:
        """The number and the chain of the last message, which stand for everything before."""
        with self._lock:
            row = self._db.execute("SELECT seq, chain FROM messages ORDER BY seq DESC LIMIT 1").fetchone()
        return (row[0], row[1]) if row else (0, "")

    def verify(self, *, head: tuple[int, str] | None = None) -> Iterator[Break]:
        """Walk over everything and name each place that was changed behind the writer's back.

        ``head`` is the number and chain of a message that is known to have been written.
        """
        for table, columns in _CHAINED.items():
            chain, expected = "", 1
            xml = ", xml" if table == "messages" else ""
            names = ", ".join(columns)
            cursor = self._db.execute(f"SELECT seq, chain, {names}{xml} FROM {table} ORDER BY seq")  # noqa: S608
            while rows := cursor.fetchmany(1000):
                for row in rows:
                    seq = row["seq"]
                    if seq != expected:
                        yield Break(
                            table=table, seq=expected, what=f"rows {expected} to {seq - 1} are missing"
                        )
                    if xml and hashlib.sha256(row["xml"]).hexdigest() != row["sha256"]:
                        yield Break(table=table, seq=seq, what="its XML is not what was published")
                    elif _link(chain, [row[name] for name in columns]) != row["chain"]:
                        yield Break(
                            table=table, seq=seq, what="its facts, or the row before it, were changed"
                        )
                    chain, expected = row["chain"], seq + 1
        if head is not None:
            row = self._db.execute("SELECT chain FROM messages WHERE seq = ?", (head[0],)).fetchone()
            if row is None:
                yield Break(table="messages", seq=head[0], what="the end was cut off: this row was written")
            elif row[0] != head[1]:
                yield Break(table="messages", seq=head[0], what="it is not the row that was written")


def _link(chain: str, values: Sequence[Any]) -> str:
    """The chain after a row: SHA-256 of a JSON list of the chain before and the row's values."""
    text = json.dumps([chain, *values], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

"""The audit database: SQLite in one file, added to by one writer at a time, read by anybody.

Each row's ``chain`` is a hash over the row and the chain of the row before, so that changing, removing or
inserting a row anywhere shows in every later one. The operator signs where both tables end, in the same
transaction as their rows.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import resources
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from orchestrator.audit.heads import End, Head, HeadChanged, HeadSigner
from orchestrator.audit.records import DeadRecord, MessageRecord
from orchestrator.audit.text import says
from orchestrator.envelope.signature import Signer
from orchestrator.errors import AuditError, KeyringError

#: The version of the schema, as `PRAGMA user_version` has it.
VERSION: Final = 2
#: Those that are read as well; a writer makes one of this version of them.
_OLDER: Final = (1,)
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

    def __init__(self, path: Path, *, read_only: bool = False, heads: HeadSigner | None = None) -> None:
        """Open the database; a writer makes it if it is not there. ``heads`` signs what is written.

        Raises:
            AuditError: it cannot be opened or made, or is no audit database of this version.
        """
        self.path = path
        #: Why heads are not signed any more, if somebody has changed the database; else empty.
        self.changed = ""
        #: Why rows are not signed, where the operator's key is not at hand; else empty.
        self.unsigned = ""
        self._heads = heads
        self._lock = threading.Lock()
        try:
            self._db = self._open(read_only=read_only)
        except (sqlite3.Error, OSError) as error:
            if read_only and not path.exists():
                hint = "run a stack, or `orchestra audit writer`, on this data folder first"
            else:
                hint = "check the file, its folder and the space on the disk"
            raise AuditError(path, str(error), hint) from error
        self._id = str(self._db.execute("SELECT value FROM facts WHERE name = 'id'").fetchone()[0])

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
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            db = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode = WAL")
            # What is acknowledged to Redis is on the disk, even if the machine loses its power.
            db.execute("PRAGMA synchronous = FULL")
            self._make_schema(db)
        db.row_factory = sqlite3.Row
        db.create_function("says", 2, says, deterministic=True)
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version != VERSION and not (read_only and version in _OLDER):
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
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0:
                _run(db, "schema.sql")
                db.execute("INSERT INTO facts VALUES ('id', ?)", (uuid.uuid4().hex,))
            if version in (0, *_OLDER):
                _run(db, "heads.sql")
                db.execute(f"PRAGMA user_version = {VERSION}")
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise

    @property
    def id(self) -> str:
        """The name of this database among all, for as long as the file lives."""
        return self._id

    @property
    def signed_head(self) -> Head | None:
        """The latest head that this writer has signed, or knows from elsewhere."""
        return self._heads.known if self._heads is not None else None

    def believe(self, head: Head | None) -> None:
        """Take a head that was kept elsewhere for what this database had reached, if the operator stands for it."""
        if self._heads is not None:
            self._heads.believe(head, self.id)

    def stored_head(self) -> Head | None:
        """The signed head in the database, unchecked; None: it has none that can be read."""
        try:
            rows = self.query("SELECT document FROM heads")
        except sqlite3.OperationalError:  # an older version
            return None
        return Head.from_json(rows[0][0]) if rows else None

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._db.close()

    # --- writing -----------------------------------------------------------------------------

    def add(self, messages: Sequence[MessageRecord], dead: Sequence[DeadRecord] = ()) -> int:
        """Write records that are not there yet and sign where they end, all in one transaction; how many were new.

        Raises:
            AuditError: the disk is full, the file cannot be written, or the operator's key is gone; nothing of the
                batch was written.
        """
        signer = self._signer()
        with self._lock:
            signed = None
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    before = self._ends()
                    new = self._append("messages", _MESSAGE_COLUMNS, messages)
                    new += self._append("dead_letters", _DEAD_COLUMNS, dead)
                    if new and signer is not None:
                        signed = self._sign(before, signer)
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise AuditError(
                    self.path, str(error), "make room on the disk; nothing is lost meanwhile"
                ) from error
            if signed is not None and self._heads is not None:
                self._heads.known = signed
        return new

    def _signer(self) -> Signer | None:
        """The operator's signer; None where it does not sign: never in a database of which it has signed a part."""
        if self._heads is None:
            return None
        try:
            return self._heads.signer()
        except KeyringError as error:
            if self.stored_head() is None:
                self.unsigned = str(error)
                return None
            hint = "bring the operator's key (`orchestra keys export operator`); nothing is lost meanwhile"
            raise AuditError(self.path, f"its rows cannot be signed: {error}", hint) from error

    def _sign(self, before: Head, signer: Signer) -> Head | None:
        """Sign where the tables end now; None: they were changed, and nobody vouches for what follows."""
        assert self._heads is not None
        try:
            row = self._db.execute("SELECT document FROM heads").fetchone()
            stored = Head.from_json(row[0]) if row else None
            if row and stored is None:
                raise HeadChanged("the stored head cannot be read")
            head = self._heads.next(stored, before, self._ends(), signer)
        except HeadChanged as error:
            self.changed = str(error)
            return None
        self._db.execute("INSERT OR REPLACE INTO heads VALUES (1, ?)", (head.to_json(),))
        return head

    def _ends(self) -> Head:
        """Where the tables end, unsigned."""
        return Head(database=self._id, messages=self._end("messages"), dead_letters=self._end("dead_letters"))

    def _end(self, table: str) -> End:
        row = self._db.execute(f"SELECT seq, chain FROM {table} ORDER BY seq DESC LIMIT 1").fetchone()  # noqa: S608
        return End(seq=row[0], chain=row[1]) if row else End()

    def _append(
        self, table: str, columns: Sequence[str], records: Sequence[MessageRecord] | Sequence[DeadRecord]
    ) -> int:
        if not records:
            return 0
        chain = self._end(table).chain
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

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything that is read inside is of one moment, whatever is written meanwhile."""
        with self._lock:
            self._db.execute("BEGIN")
        try:
            yield
        finally:
            with self._lock:
                self._db.execute("ROLLBACK")

    def ends(self) -> Head:
        """Where both tables end, unsigned."""
        with self._lock:
            return self._ends()

    def chain_at(self, table: str, seq: int) -> str | None:
        """The chain of one row; None: there is no such row."""
        rows = self.query(f"SELECT chain FROM {table} WHERE seq = ?", [seq])  # noqa: S608 - one of our own names
        return rows[0][0] if rows else None

    def broken_chain(self) -> Iterator[Break]:
        """Walk over both tables and name each row that does not fit its chain."""
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

    def unrefused(self) -> Iterator[sqlite3.Row]:
        """Every message without a dead letter, for itself or for another attempt with the same octets."""
        cursor = self._db.execute(
            "SELECT seq, stream, entry_id, published_ms, sha256, xml FROM messages WHERE sha256 NOT IN ("
            "SELECT m.sha256 FROM messages m JOIN dead_letters d ON d.stream = m.stream AND d.entry_id = m.entry_id) "
            "ORDER BY seq"
        )
        while rows := cursor.fetchmany(1000):
            yield from rows


def _run(db: sqlite3.Connection, script: str) -> None:
    """Run the statements of a file beside this one."""
    for statement in (resources.files(__package__) / script).read_text(encoding="utf-8").split(";\n"):
        db.execute(statement)


def _link(chain: str, values: Sequence[Any]) -> str:
    """The chain after a row: SHA-256 of a JSON list of the chain before and the row's values."""
    text = json.dumps([chain, *values], ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()

"""The engine below the audit trail: SQLite in one file, or PostgreSQL at a URL; its tables, opened, migrated, locked, read.

One transaction of all processes writes at a time: SQLite locks its file, PostgreSQL an advisory lock.
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import zstandard
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    create_engine,
    event,
    inspect,
    select,
    text,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from orchestrator.errors import AuditError, AuditUnavailable, InputError

#: The revision that this program reads and writes: the newest in the folder of migrations.
REVISION: Final = "1"

#: Markup that most envelopes repeat. Rows that were packed with it cannot be read with another: it never changes.
_MARKUP: Final = zstandard.ZstdCompressionDict(
    files("orchestrator.audit").joinpath("markup-1.txt").read_bytes(),
    dict_type=zstandard.DICT_TYPE_RAWCONTENT,
)
_LEVEL: Final = 3
_MARKUP.precompute_compress(level=_LEVEL)
#: Octets that a packed envelope may have: more than any limit of a stack.
_MOST: Final = 1 << 30


class _Zstd(threading.local):
    """Each thread's own, as none is safe to share."""

    def __init__(self) -> None:
        self.packer = zstandard.ZstdCompressor(level=_LEVEL, dict_data=_MARKUP)
        self.unpacker = zstandard.ZstdDecompressor(dict_data=_MARKUP)


_ZSTD: Final = _Zstd()


def pack(octets: bytes) -> bytes:
    """Return an envelope as it is stored: compressed, with the markup of envelopes as dictionary; none stays none."""
    return _ZSTD.packer.compress(octets) if octets else b""


class Packed(TypeDecorator[bytes]):
    """An envelope: packed in the database, and as it was published for everybody who reads the column."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: bytes | None, dialect: object) -> bytes:
        """Return what is stored of an envelope."""
        return pack(value or b"")

    def process_result_value(self, value: bytes | None, dialect: object) -> bytes:
        """Return the envelope; what was stored, where somebody has changed that so that it is none any more."""
        octets = bytes(value or b"")
        try:
            # The frame says how much room it asks for.
            known = octets and 0 <= zstandard.frame_content_size(octets) <= _MOST
            return _ZSTD.unpacker.decompress(octets) if known else octets
        except zstandard.ZstdError:
            return octets


METADATA: Final = MetaData()
_NUMBER: Final = BigInteger().with_variant(Integer, "sqlite")


def _text(name: str) -> Column[str]:
    return Column(name, Text, nullable=False)


def _number(name: str) -> Column[int]:
    return Column(name, _NUMBER, nullable=False)


def _seq() -> Column[int]:
    return Column("seq", _NUMBER, primary_key=True, autoincrement=False)


def _newest_first(name: str, column: str, which: str | None = None) -> Index:
    """Return the index for a search by one column; ``which`` rows it has, where nearly all others have one value."""
    only = None if which is None else text(which)
    columns = (column, "published_ms", "seq")
    return Index(f"messages_by_{name}", *columns, sqlite_where=only, postgresql_where=only)


#: `id`: the name of this database among all.
FACTS: Final = Table("facts", METADATA, Column("name", Text, primary_key=True), _text("value"))

MESSAGES: Final = Table(
    "messages",
    METADATA,
    _seq(),
    _text("stream"),  # shard/type/priority
    _text("entry_id"),  # id of the entry in its stream
    _text("message_id"),  # in lower case; '' where the XML is not valid, as below
    _text("type"),
    _text("priority"),
    _text("sender"),
    _text("recipient"),
    _text("correlation_id"),
    _text("parent_id"),  # the message it follows upon: the first reference of its chain
    _text("task_id"),
    _text("sent"),  # time in the header
    _number("published_ms"),  # when it entered the stream
    _number("received_ms"),  # when it was written here
    Column("attempt", Integer, nullable=False),
    _number("octets"),  # how many were published; redacted: 0
    Column("xml", Packed, nullable=False),  # the bytes as they were published, packed; redacted: none
    _text("sha256"),  # of xml; redacted: ''
    _text("chain"),
    _text("salt"),  # random; redacted: ''
    _text("commitment"),  # to sha256, body and status under the salt
    _text("status"),  # of a status-update or a task-completion; under the commitment, too
    _text("body"),  # SHA-256 of the body that is kept in `bodies`; '': none is, or redacted
    UniqueConstraint("stream", "entry_id"),
    Index("messages_by_message", "message_id"),
    Index("messages_by_parent", "parent_id", "type"),
    Index("messages_by_task", "task_id", "type"),
    Index("messages_by_time", "published_ms", "seq"),
    *(
        _newest_first(name, column)
        for name, column in (("conversation", "correlation_id"), ("status", "status"))
    ),
    *(_newest_first(column, column) for column in ("sender", "recipient", "type")),
    _newest_first("priority", "priority", "priority != 'normal'"),
    _newest_first("attempt", "attempt", "attempt != 1"),
    Index("messages_by_body", "body", sqlite_where=text("body != ''"), postgresql_where=text("body != ''")),
)

#: Bodies that were stored apart, each once. Beside this table is `message_words`; see `words`.
BODIES: Final = Table(
    "bodies",
    METADATA,
    Column("sha256", Text, primary_key=True),  # of the body as it was stored
    Column("content", LargeBinary, nullable=False),  # compressed with zstd
)

DEAD_LETTERS: Final = Table(
    "dead_letters",
    METADATA,
    _seq(),
    Column("dead_id", Text, nullable=False, unique=True),  # shard and id of the dead letter
    _text("stream"),  # of the entry that died
    _text("entry_id"),
    _text("rule"),
    _text("reason"),
    Column("attempts", Integer, nullable=False),
    _number("at_ms"),
    _number("received_ms"),
    _text("chain"),
    Index("dead_letters_by_entry", "stream", "entry_id"),
    Index("dead_letters_by_rule", "rule", "seq"),
)

#: What the ledger changed: a row for the entries of one shard that were read together.
TRANSITIONS: Final = Table(
    "transitions",
    METADATA,
    _seq(),
    _text("stream"),  # shard/ledger/transitions
    _text("first_id"),  # ids of the first and the last entry
    _text("last_id"),
    _number("first_ms"),
    _number("last_ms"),
    _number("entries"),  # how many
    _number("total"),  # how many with those of all rows before
    _number("received_ms"),
    Column("document", LargeBinary, nullable=False),  # see `transitions.pack`
    _text("sha256"),  # of document
    _text("chain"),
    Index("transitions_by_time", "stream", "last_ms"),
)

#: Which rows of transitions are about a session; made from their documents.
TRANSITION_SESSIONS: Final = Table(
    "transition_sessions",
    METADATA,
    Column("session", Text, primary_key=True),
    Column("seq", _NUMBER, primary_key=True, autoincrement=False),
    sqlite_with_rowid=False,
)

#: One row: where the tables end, signed by the operator.
HEADS: Final = Table(
    "heads",
    METADATA,
    Column("only", Integer, primary_key=True, autoincrement=False),
    _text("document"),  # JSON Web Signature: database, number and chain of each table's last row, time
)

#: What the operator took out of the trail or said of it, signed: one tombstone for each table, others for each row.
AMENDMENTS: Final = Table(
    "amendments",
    METADATA,
    Column("kind", Text, primary_key=True),  # acceptance | redaction | tombstone
    Column("subject", Text, primary_key=True),  # the number of a row of messages | the name of a table
    _text("document"),
)

#: Columns that a chain does not cover: its own, and what the commitment of a message or a digest stands for.
_UNCHAINED: Final = {"seq", "chain", "xml", "document", "salt", "commitment", "status", "body", "octets"}
#: What the chain covers of a row, in this order; of a message its commitment stands for `sha256`.
CHAINED: Final = {
    table.name: [column.name for column in table.c if column.name not in _UNCHAINED]
    for table in (MESSAGES, DEAD_LETTERS, TRANSITIONS)
}

#: Seconds to wait for another writer's commit.
_BUSY_S: Final = 30.0
#: The advisory lock of writers in PostgreSQL: the bytes of "orchaudi".
_WRITERS: Final = 0x6F72636861756469
_POSTGRES: Final = "postgresql+psycopg"


class Database:
    """An audit database. Safe to share between threads.

    Args:
        where: the path of a SQLite file, or a URL of PostgreSQL.
        read_only: nothing is made, migrated or written.

    Raises:
        AuditError: it cannot be opened or made, or is no audit database of this version.
        AuditUnavailable: its server does not answer.
    """

    def __init__(self, where: Path | str, *, read_only: bool = False) -> None:
        self.path = where if isinstance(where, Path) else None
        self.name = str(where) if self.path is not None else make_url(str(where)).render_as_string()
        self._read_only = read_only
        self._local = threading.local()
        try:
            self.engine = self._sqlite() if self.path is not None else self._postgres(str(where))
            if not read_only:
                self._migrate()
            with self.engine.connect() as db:
                self._check(db)
                self.id = str(db.execute(select(FACTS.c.value).where(FACTS.c.name == "id")).scalar_one())
        except (SQLAlchemyError, sqlite3.Error, OSError) as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def forget_removed(self) -> None:
        """Erase removed rows from a SQLite file; PostgreSQL erases them when it vacuums the table.

        Raises:
            AuditError: somebody reads what was there before, so that the files keep it for as long.
        """
        if self.path is None:
            return
        with self._failures(), self.engine.connect() as db:
            db = db.execution_options(isolation_level="AUTOCOMMIT")
            busy = db.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").scalar()
        if busy:
            cause = "the text is removed, and its files keep it for as long as somebody reads what was there before"
            raise AuditError(
                self.name, cause, "run it again when no export, report or verification is at work"
            )

    # --- transactions ------------------------------------------------------------------------

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Raise errors of the database as AuditError, except an IntegrityError: the row is there already.

        A number that is larger than any in the database is an InputError.
        """
        try:
            yield
        except IntegrityError:
            raise
        except OverflowError as error:  # of SQLite's driver; PostgreSQL compares any numbers
            raise InputError("a number that was given is larger than the audit database can hold") from error
        except (DBAPIError, OSError) as error:
            raise self._failure(error) from error

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that commits at the end and is the only one of its kind.

        Raises:
            AuditError: the database refused something; nothing was written.
            IntegrityError: a row is there already; nothing was written.
        """
        with self._failures(), self.engine.connect() as db:
            db = db.execution_options(orchestra_writes=True)
            with db.begin():
                self._lock(db)
                yield db

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A connection for reading; inside of a snapshot of this thread, the snapshot's.

        Raises:
            AuditError: the database refused something.
        """
        snapshot: Connection | None = getattr(self._local, "snapshot", None)
        with self._failures():
            if snapshot is not None:
                yield snapshot
                return
            with self.engine.connect() as db, db.begin():
                yield db

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Read everything in this block, in this thread, as of one moment, whatever is written meanwhile.

        Raises:
            AuditError: the database refused something.
        """
        with self._failures(), self.engine.connect() as db:
            if self.path is None:
                db = db.execution_options(isolation_level="REPEATABLE READ")
            with db.begin():
                self._local.snapshot = db
                try:
                    yield
                finally:
                    self._local.snapshot = None

    def _lock(self, db: Connection) -> None:
        if self.path is None:
            db.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")

    # --- opening -----------------------------------------------------------------------------

    def _sqlite(self) -> Engine:
        path = self.path
        assert path is not None
        if not self._read_only:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)  # SQLite makes the files beside it alike
        mode = "?mode=ro" if self._read_only else ""

        def connect() -> sqlite3.Connection:
            db = sqlite3.connect(
                f"{path.absolute().as_uri()}{mode}",
                uri=True,
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
            if self._read_only:
                db.execute("PRAGMA query_only = 1")
            else:
                db.execute("PRAGMA journal_mode = WAL")
                # What is acknowledged to Redis is on the disk, even if the machine loses its power.
                db.execute("PRAGMA synchronous = FULL")
                # What is redacted leaves no trace in free pages, nor in those that the index of words frees.
                db.execute("PRAGMA secure_delete = ON")
            return db

        engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool)

        @event.listens_for(engine, "begin")
        def begin(db: Connection) -> None:
            writes = db.get_execution_options().get("orchestra_writes")
            db.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

        return engine

    def _postgres(self, where: str) -> Engine:
        url = make_url(where)
        if url.drivername not in ("postgresql", "postgres", _POSTGRES):
            raise AuditError(
                self.name, "it is not a URL of PostgreSQL", "write it like postgresql://user@host/orchestra"
            )
        try:
            return create_engine(
                url.set(drivername=_POSTGRES),
                paramstyle="format",
                pool_pre_ping=True,
                connect_args={
                    "application_name": "orchestra-audit",
                    "connect_timeout": 10,
                    "keepalives_idle": 30,
                    "tcp_user_timeout": 30_000,
                    "options": "-c default_transaction_read_only=on" if self._read_only else "",
                },
            )
        except (ImportError, NoSuchModuleError) as error:
            hint = "install it: pip install 'agent-orchestra[postgres]'"
            raise AuditError(self.name, f"the driver of PostgreSQL is missing ({error})", hint) from error

    def _migrate(self) -> None:
        """Bring the database to this program's revision; what is there already is kept."""
        with self.engine.connect() as db:
            db = db.execution_options(orchestra_writes=True)
            with db.begin():
                self._lock(db)
                revision = _revision(db)
                if revision is not None and revision >= REVISION:
                    return
                _upgrade(db)
                if revision is None:
                    db.execute(FACTS.insert().values(name="id", value=uuid.uuid4().hex))

    def _check(self, db: Connection) -> None:
        revision = _revision(db)
        if revision == REVISION:
            return
        if revision is None or revision < REVISION:
            hint = "run a stack, or `orchestra service audit`, on it first"
        else:
            hint = "upgrade agent-orchestra, or move it away"
        raise AuditError(self.name, f"it has revision {revision}, this program needs {REVISION}", hint)

    def _failure(self, error: Exception) -> AuditError:
        cause = str(getattr(error, "orig", None) or error).strip()
        if self.path is None:
            away = isinstance(error, (OSError, DBAPIError)) and (
                getattr(error, "connection_invalidated", False)
                or type(getattr(error, "orig", None)).__name__ in ("OperationalError", "ConnectionTimeout")
            )
            hint = "check that it runs and that URL and password are right; nothing is lost meanwhile"
            return (AuditUnavailable if away else AuditError)(self.name, cause, hint)
        if self._read_only and not self.path.exists():
            return AuditError(
                self.name, cause, "run a stack, or `orchestra service audit`, on this data folder first"
            )
        hint = "check the file, its folder and the room on the disk; nothing is lost meanwhile"
        return AuditError(self.name, cause, hint)


def _revision(db: Connection) -> str | None:
    """Return the revision of the database; None if it was not made by migrations."""
    if not inspect(db).has_table("alembic_version"):
        return None
    revision: Any = db.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if revision is None else str(revision)


def _upgrade(db: Connection) -> None:
    from alembic import command  # takes a while to load, and is needed once for each database
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "orchestrator.audit:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = db
    command.upgrade(config, REVISION)

"""The tables of the audit database, as this version reads and writes them; the migrations make them."""

from __future__ import annotations

from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

#: The revision that this program reads and writes: the newest in the folder of migrations.
REVISION: Final = "0001"

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
    Column("xml", LargeBinary, nullable=False),  # the bytes as they were published; redacted: none
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

#: Bodies that travelled apart, each once. Beside this table is `message_words`; see `words`.
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
_UNCHAINED: Final = {"seq", "chain", "xml", "document", "salt", "commitment", "status", "body"}
#: What the chain covers of a row, in this order; of a message its commitment stands for `sha256`.
CHAINED: Final = {
    table.name: [column.name for column in table.c if column.name not in _UNCHAINED]
    for table in (MESSAGES, DEAD_LETTERS, TRANSITIONS)
}

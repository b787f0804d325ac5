"""Version 1: messages, dead letters, transitions and bodies, the signed head, amendments, and the words of messages."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_BY_TIME = {
    "conversation": "correlation_id",
    "sender": "sender",
    "recipient": "recipient",
    "status": "status",
    "type": "type",
}
#: Columns in which nearly all rows have one value, and which rows their index has.
_SELDOM = {"priority": "priority != 'normal'", "attempt": "attempt != 1"}


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, _NUMBER, nullable=False)


def _key(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=True)


def _seq() -> sa.Column[int]:
    return sa.Column("seq", _NUMBER, primary_key=True, autoincrement=False)


def _index(table: str, name: str, columns: list[str], which: str | None = None) -> None:
    only = None if which is None else sa.text(which)
    op.create_index(f"{table}_by_{name}", table, columns, sqlite_where=only, postgresql_where=only)


def upgrade() -> None:
    """Make the tables."""
    op.create_table("facts", _key("name"), _text("value"))
    op.create_table(
        "messages",
        _seq(),
        *map(_text, ("stream", "entry_id", "message_id", "type", "priority", "sender", "recipient")),
        *map(_text, ("correlation_id", "parent_id", "task_id", "sent")),
        *map(_number, ("published_ms", "received_ms")),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("xml", sa.LargeBinary, nullable=False),
        *map(_text, ("sha256", "chain", "salt", "commitment", "status", "body")),
        sa.UniqueConstraint("stream", "entry_id"),
    )
    _index("messages", "message", ["message_id"])
    _index("messages", "parent", ["parent_id", "type"])
    _index("messages", "task", ["task_id", "type"])
    _index("messages", "time", ["published_ms", "seq"])
    _index("messages", "body", ["body"], "body != ''")
    for name, column in _BY_TIME.items():
        _index("messages", name, [column, "published_ms", "seq"])
    for column, which in _SELDOM.items():
        _index("messages", column, [column, "published_ms", "seq"], which)
    op.create_table("bodies", _key("sha256"), sa.Column("content", sa.LargeBinary, nullable=False))
    op.create_table(
        "dead_letters",
        _seq(),
        sa.Column("dead_id", sa.Text, nullable=False, unique=True),
        *map(_text, ("stream", "entry_id", "rule", "reason")),
        sa.Column("attempts", sa.Integer, nullable=False),
        *map(_number, ("at_ms", "received_ms")),
        _text("chain"),
    )
    _index("dead_letters", "entry", ["stream", "entry_id"])
    _index("dead_letters", "rule", ["rule", "seq"])
    op.create_table(
        "transitions",
        _seq(),
        *map(_text, ("stream", "first_id", "last_id")),
        *map(_number, ("first_ms", "last_ms", "entries", "total", "received_ms")),
        sa.Column("document", sa.LargeBinary, nullable=False),
        *map(_text, ("sha256", "chain")),
    )
    _index("transitions", "time", ["stream", "last_ms"])
    op.create_table("transition_sessions", _key("session"), _seq())
    op.create_table(
        "heads", sa.Column("only", sa.Integer, primary_key=True, autoincrement=False), _text("document")
    )
    op.create_table("amendments", _key("kind"), _key("subject"), _text("document"))
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE message_words USING fts5(words, columnsize=0, "
            "tokenize='unicode61 remove_diacritics 0')"
        )
    else:
        op.execute("CREATE TABLE message_words (rowid BIGINT PRIMARY KEY, words TSVECTOR NOT NULL)")
        op.execute("CREATE INDEX message_words_by_word ON message_words USING gin (words)")

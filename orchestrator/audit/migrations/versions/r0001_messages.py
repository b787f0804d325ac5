"""Version 1: messages and dead letters, each a hash chain."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, _NUMBER, nullable=False)


def upgrade() -> None:
    """Make the tables."""
    op.create_table("facts", sa.Column("name", sa.Text, primary_key=True), _text("value"))
    op.create_table(
        "messages",
        sa.Column("seq", _NUMBER, primary_key=True, autoincrement=False),
        *map(_text, ("stream", "entry_id", "message_id", "type", "priority", "sender", "recipient")),
        *map(_text, ("correlation_id", "parent_id", "task_id", "sent")),
        _number("published_ms"),
        _number("received_ms"),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("xml", sa.LargeBinary, nullable=False),
        _text("sha256"),
        _text("chain"),
        sa.UniqueConstraint("stream", "entry_id"),
    )
    for name, columns in {
        "message": ["message_id"],
        "conversation": ["correlation_id", "seq"],
        "parent": ["parent_id", "type"],
        "task": ["task_id", "type"],
    }.items():
        op.create_index(f"messages_by_{name}", "messages", columns)
    op.create_table(
        "dead_letters",
        sa.Column("seq", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("dead_id", sa.Text, nullable=False, unique=True),
        *map(_text, ("stream", "entry_id", "rule", "reason")),
        sa.Column("attempts", sa.Integer, nullable=False),
        _number("at_ms"),
        _number("received_ms"),
        _text("chain"),
    )
    op.create_index("dead_letters_by_entry", "dead_letters", ["stream", "entry_id"])

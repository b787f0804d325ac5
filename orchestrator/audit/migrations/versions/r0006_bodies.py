"""Version 6: how tasks ended, stored bodies, whole, and the words of messages, for a search by text."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make the tables; messages that are there get their words from the writer, and no body."""
    for name in ("status", "body"):
        op.add_column("messages", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.create_index("messages_by_status", "messages", ["status", "seq"])
    op.create_index(
        "messages_by_body",
        "messages",
        ["body"],
        sqlite_where=sa.text("body != ''"),
        postgresql_where=sa.text("body != ''"),
    )
    op.create_table(
        "bodies",
        sa.Column("sha256", sa.Text, primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
    )
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE message_words USING fts5(words, columnsize=0, "
            "tokenize='unicode61 remove_diacritics 0')"
        )
    else:
        op.execute("CREATE TABLE message_words (rowid BIGINT PRIMARY KEY, words TSVECTOR NOT NULL)")
        op.execute("CREATE INDEX message_words_by_word ON message_words USING gin (words)")

"""Version 1: messages, dead letters, transitions and bodies, the signed head, amendments, and the words of messages.

Until a release has it, it makes the tables that the program reads; whoever writes the second revision copies them here.
"""

from __future__ import annotations

from alembic import op

from orchestrator.audit.database import METADATA

revision = "1"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    METADATA.create_all(op.get_bind(), checkfirst=False)
    if op.get_bind().dialect.name == "sqlite":
        op.execute(
            "CREATE VIRTUAL TABLE message_words USING fts5(words, columnsize=0, "
            "tokenize='unicode61 remove_diacritics 0')"
        )
    else:
        op.execute("CREATE TABLE message_words (rowid BIGINT PRIMARY KEY, words TSVECTOR NOT NULL)")
        op.execute("CREATE INDEX message_words_by_word ON message_words USING gin (words)")

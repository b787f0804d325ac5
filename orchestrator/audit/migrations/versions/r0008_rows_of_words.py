"""Version 8: a text has as many rows of words as it needs; the writer indexes every message anew."""

from __future__ import annotations

from alembic import op

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    """Remove the rows, which are numbered in another way."""
    op.execute("DELETE FROM message_words")

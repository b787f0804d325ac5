"""Version 5: what the ledger changed, beside what was said."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, _NUMBER, nullable=False)


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "transitions",
        sa.Column("seq", _NUMBER, primary_key=True, autoincrement=False),
        *map(_text, ("stream", "first_id", "last_id")),
        *map(_number, ("first_ms", "last_ms", "entries", "total", "received_ms")),
        sa.Column("document", sa.LargeBinary, nullable=False),
        *map(_text, ("sha256", "chain")),
    )
    op.create_index("transitions_by_time", "transitions", ["stream", "last_ms"])
    op.create_table(
        "transition_sessions",
        sa.Column("session", sa.Text, primary_key=True),
        sa.Column("seq", _NUMBER, primary_key=True, autoincrement=False),
    )

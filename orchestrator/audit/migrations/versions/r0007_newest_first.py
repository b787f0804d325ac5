"""Version 7: the indexes of searches give the newest by time first; rare types, priorities, attempts and rules have one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

_BY_TIME = {
    "conversation": "correlation_id",
    "sender": "sender",
    "recipient": "recipient",
    "status": "status",
    "type": "type",
}
_SELDOM = {"priority": "priority != 'normal'", "attempt": "attempt != 1"}


def upgrade() -> None:
    """Make the indexes anew."""
    for name in ("conversation", "sender", "recipient", "status", "time"):
        op.drop_index(f"messages_by_{name}", "messages", if_exists=True)
    op.create_index("messages_by_time", "messages", ["published_ms", "seq"])
    for name, column in _BY_TIME.items():
        op.create_index(f"messages_by_{name}", "messages", [column, "published_ms", "seq"])
    for column, which in _SELDOM.items():
        op.create_index(
            f"messages_by_{column}",
            "messages",
            [column, "published_ms", "seq"],
            sqlite_where=sa.text(which),
            postgresql_where=sa.text(which),
        )
    op.create_index("dead_letters_by_rule", "dead_letters", ["rule", "seq"])

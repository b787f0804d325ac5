"""Version 4: indexes for searches by who, to whom and when."""

from __future__ import annotations

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Make the indexes."""
    op.create_index("messages_by_sender", "messages", ["sender", "seq"])
    op.create_index("messages_by_recipient", "messages", ["recipient", "seq"])
    op.create_index("messages_by_time", "messages", ["published_ms"])

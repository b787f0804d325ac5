"""Version 3: salted commitments, so that text can be taken out, and the operator's signed amendments."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns and the table; rows that are there keep their chain."""
    for name in ("salt", "commitment"):
        op.add_column("messages", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.create_table(
        "amendments",
        sa.Column("kind", sa.Text, primary_key=True),
        sa.Column("subject", sa.Text, primary_key=True),
        sa.Column("document", sa.Text, nullable=False),
    )

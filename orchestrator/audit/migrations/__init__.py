"""How the audit database comes from each version to the next; Alembic runs them."""

"""Migrations of the audit database from each version to the next; Alembic runs them."""

"""The Celery worker: takes ready runs from the ledger and executes agents."""

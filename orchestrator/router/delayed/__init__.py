"""Messages that wait: for their next attempt, or for other tasks."""

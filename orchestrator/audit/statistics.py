"""Message counts, dead letters and task times, from the audit trail."""

from __future__ import annotations

from typing import Any

from orchestrator.audit.store import AuditStore
from orchestrator.policy.routing import LAUNCHES


def report(store: AuditStore, *, since_ms: int = 0, until_ms: int = 1 << 62) -> dict[str, Any]:
    """Counts and durations of a time; times are those at which messages were published."""
    span = [since_ms, until_ms]
    within = "published_ms >= ? AND published_ms < ?"
    overall = store.query(
        "SELECT count(*), count(DISTINCT message_id), count(DISTINCT correlation_id), "  # noqa: S608
        f"min(published_ms), max(published_ms), coalesce(sum(length(xml)), 0) FROM messages WHERE {within}",
        span,
    )[0]

    def counted(column: str) -> dict[str, int]:
        rows = store.query(
            f"SELECT {column}, count(DISTINCT message_id) FROM messages WHERE {within} AND message_id <> '' "  # noqa: S608
            f"GROUP BY {column} ORDER BY 2 DESC, 1",
            span,
        )
        return {row[0]: row[1] for row in rows}

    dead = store.query(
        "SELECT rule, count(*) FROM dead_letters WHERE at_ms >= ? AND at_ms < ? GROUP BY rule ORDER BY 2 DESC, 1",
        span,
    )
    durations = sorted(
        row[0]
        for row in store.query(
            "SELECT min(done.published_ms) - min(given.published_ms) FROM messages given JOIN messages done "  # noqa: S608
            "ON done.task_id = given.task_id AND done.type = 'task-completion' "
            f"WHERE given.type IN ({', '.join('?' * len(LAUNCHES))}) AND given.task_id <> '' "
            "AND given.published_ms >= ? AND given.published_ms < ? GROUP BY given.task_id",
            [*sorted(LAUNCHES), *span],
        )
    )
    return {
        "entries": overall[0],
        "messages": overall[1],
        "conversations": overall[2],
        "first_ms": overall[3],
        "last_ms": overall[4],
        "bytes": overall[5],
        "by_type": counted("type"),
        "by_sender": counted("sender"),
        "by_recipient": counted("recipient"),
        "dead_letters": {row[0]: row[1] for row in dead},
        "tasks_completed": len(durations),
        "task_p50_ms": _percentile(durations, 50),
        "task_p95_ms": _percentile(durations, 95),
    }


def _percentile(values: list[int], percent: int) -> int | None:
    return values[min(len(values) - 1, len(values) * percent // 100)] if values else None

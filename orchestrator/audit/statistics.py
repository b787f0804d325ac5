"""Message counts, dead letters and task times, from the audit trail."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, func, select

from orchestrator.audit.schema import DEAD_LETTERS, MESSAGES
from orchestrator.audit.store import AuditStore
from orchestrator.policy.routing import LAUNCHES

_M: Final = MESSAGES.c
_D: Final = DEAD_LETTERS.c


def report(store: AuditStore, *, since_ms: int = 0, until_ms: int = 1 << 62) -> dict[str, Any]:
    """Counts and durations of a time; times are those at which messages were published."""
    within = (_M.published_ms >= since_ms, _M.published_ms < until_ms)
    overall = store.query(
        select(
            func.count(),
            func.count(_M.message_id.distinct()),
            func.count(_M.correlation_id.distinct()),
            func.min(_M.published_ms),
            func.max(_M.published_ms),
            func.coalesce(func.sum(func.length(_M.xml)), 0),
        ).where(*within)
    )[0]

    def counted(column: ColumnElement[str]) -> dict[str, int]:
        number = func.count(_M.message_id.distinct()).label("number")
        query = select(column, number).where(*within, _M.message_id != "").group_by(column)
        return {row[0]: row[1] for row in store.query(query.order_by(number.desc(), column))}

    deaths = func.count().label("deaths")
    dead = store.query(
        select(_D.rule, deaths)
        .where(_D.at_ms >= since_ms, _D.at_ms < until_ms)
        .group_by(_D.rule)
        .order_by(deaths.desc(), _D.rule)
    )
    given, done = MESSAGES.alias("given").c, MESSAGES.alias("done").c
    durations = sorted(
        row[0]
        for row in store.query(
            select(func.min(done.published_ms) - func.min(given.published_ms))
            .where(
                done.task_id == given.task_id,
                done.type == "task-completion",
                given.type.in_(sorted(LAUNCHES)),
                given.task_id != "",
                given.published_ms >= since_ms,
                given.published_ms < until_ms,
            )
            .group_by(given.task_id)
        )
    )
    return {
        "entries": overall[0],
        "messages": overall[1],
        "conversations": overall[2],
        "first_ms": overall[3],
        "last_ms": overall[4],
        "bytes": int(overall[5]),
        "by_type": counted(_M.type),
        "by_sender": counted(_M.sender),
        "by_recipient": counted(_M.recipient),
        "dead_letters": {row[0]: row[1] for row in dead},
        "tasks_completed": len(durations),
        "task_p50_ms": _percentile(durations, 50),
        "task_p95_ms": _percentile(durations, 95),
    }


def _percentile(values: list[int], percent: int) -> int | None:
    return values[min(len(values) - 1, len(values) * percent // 100)] if values else None

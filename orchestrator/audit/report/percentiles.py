"""Percentiles in bounded memory: computed by the database, or from a histogram of what passes by."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from sqlalchemy import Select, case, func, or_, select

from orchestrator.audit.report.model import Percentiles
from orchestrator.audit.store import AuditStore

_PERCENTS: Final = (50, 95, 99, 100)
#: Bits of a duration that a histogram keeps: what is longer than 4 s is rounded by less than a thousandth.
_BITS: Final = 12


def percentiles(store: AuditStore, durations: Select[Any]) -> dict[str, Percentiles]:
    """Return the percentiles of durations for each name, of a query with the columns ``name`` and ``ms``.

    A negative duration, of a clock that was put back, counts as 0.
    """
    asked = durations.subquery()
    ms = case((asked.c.ms < 0, 0), else_=asked.c.ms).label("ms")
    ranked = select(
        asked.c.name,
        ms,
        func.row_number().over(partition_by=asked.c.name, order_by=ms).label("number"),
        func.count().over(partition_by=asked.c.name).label("total"),
    ).subquery()
    row = ranked.c
    wanted = or_(*(row.number == (row.total * percent + 99) // 100 for percent in _PERCENTS))
    found: dict[str, dict[int, int]] = {}
    totals: dict[str, int] = {}
    for name, number, total, value in store.query(
        select(row.name, row.number, row.total, row.ms).where(wanted)
    ):
        found.setdefault(name, {})[number] = int(value)
        totals[name] = total
    return {
        name: _percentiles(total, [found[name][_rank(total, percent)] for percent in _PERCENTS])
        for name, total in totals.items()
    }


class Histogram:
    """Counts of durations, which forgets the durations."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, ms: int) -> None:
        """Count a duration; a negative one, of a clock that was put back, is 0."""
        ms = max(0, ms)
        dropped = max(0, ms.bit_length() - _BITS)
        self._counts[ms >> dropped << dropped] += 1

    def percentiles(self) -> Percentiles:
        """Return the percentiles of the values that were added."""
        total = self._counts.total()
        if not total:
            return Percentiles()
        ranks = iter([_rank(total, percent) for percent in _PERCENTS])
        values: list[int] = []
        rank, seen = next(ranks), 0
        for ms in sorted(self._counts):
            seen += self._counts[ms]
            while len(values) < len(_PERCENTS) and rank <= seen:
                values.append(ms)
                rank = next(ranks, total + 1)
        return _percentiles(total, values)


def _rank(total: int, percent: int) -> int:
    return (total * percent + 99) // 100


def _percentiles(total: int, values: list[int]) -> Percentiles:
    return Percentiles(count=total, p50_ms=values[0], p95_ms=values[1], p99_ms=values[2], max_ms=values[3])

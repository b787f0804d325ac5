"""Values of a report. Times are milliseconds since the epoch, durations milliseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sqlalchemy import Select, case, func, or_, select

from orchestrator.audit.store import AuditStore
from orchestrator.policy.budget import Cost

Unit = Literal["hour", "day"]
#: Milliseconds of a unit of the time line; days are those of UTC.
UNIT_MS: Final[Mapping[Unit, int]] = {"hour": 3_600_000, "day": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Durations by nearest rank; None: nothing was measured."""

    #: How many were measured.
    count: int = 0
    #: Half of them took no longer.
    p50_ms: int | None = None
    #: The same of 95 in 100.
    p95_ms: int | None = None
    #: The same of 99 in 100.
    p99_ms: int | None = None
    #: The longest.
    max_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HopRow:
    """Times that one hop took."""

    #: Published-routed, ready-claimed, claimed-answered, answered-delivered, promised-delivered, task, query-
    #: reply or published-audited.
    hop: str
    #: From what to what.
    what: str
    #: How long it took.
    times: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    """Messages that one agent sent and received. ``tasks``: the times of the tasks that it was given and completed."""

    #: The agent.
    agent: str
    #: Messages that it sent.
    sent: int
    #: Messages to it.
    received: int
    #: Its entries that became dead letters.
    dead: int
    #: How long tasks took that it was given and completed.
    tasks: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """Messages that became dead letters by one rule."""

    #: The rule.
    rule: str
    #: Parser, schema, content, signature or router.
    checked_by: str
    #: Dead letters.
    count: int


@dataclass(slots=True, kw_only=True)
class CallbackRow:
    """Callbacks that sessions of an agent launched, and their outcomes.

    ``carried + launched = delivered + dead + pending``.
    """

    #: Agent of the sessions that were promised them; empty: not known, or all.
    agent: str = ""
    #: Promised before the time of the report, and moved in it.
    carried: int = 0
    #: Promised in it.
    launched: int = 0
    #: Delivered.
    delivered: int = 0
    #: Dead.
    dead: int = 0

    @property
    def pending(self) -> int:
        """Those that were neither delivered nor dead at the end of the time."""
        return self.carried + self.launched - self.delivered - self.dead


@dataclass(slots=True, kw_only=True)
class CostRow:
    """Spending of an agent's sessions on calls of models."""

    #: The agent; empty: not known.
    agent: str
    #: What it spent.
    cost: Cost


@dataclass(slots=True, kw_only=True)
class Bucket:
    """Counts of one hour or day."""

    #: When it begins.
    start_ms: int
    #: Messages.
    messages: int = 0
    #: Further attempts.
    retries: int = 0
    #: Entries published in it that became dead letters.
    dead: int = 0
    #: Sessions that came to an answer.
    finished: int = 0
    #: Sessions that failed or were stopped.
    failed: int = 0
    #: What calls of models cost.
    cost: Cost = field(default_factory=Cost)


@dataclass(slots=True, kw_only=True)
class Report:
    """A report on a time, by the times at which entries were published."""

    #: The audit database.
    database: str
    #: When the report was made.
    made_ms: int
    #: The time asked for; null: from the first on.
    since_ms: int | None
    #: Its end; null: to the last.
    until_ms: int | None
    #: What the time line is divided by: hour or day, of UTC.
    by: Unit
    #: Published entries, retries included.
    entries: int = 0
    #: Messages: first attempts.
    messages: int = 0
    #: Further attempts.
    retries: int = 0
    #: Messages that needed more than one attempt.
    retried: int = 0
    #: The most attempts of one message.
    attempts: int = 0
    #: Entries that became dead letters.
    dead: int = 0
    #: Conversations.
    conversations: int = 0
    #: When the first entry was published; null: none.
    first_ms: int | None = None
    #: When the last was; null: none.
    last_ms: int | None = None
    #: Bytes of all entries.
    bytes: int = 0
    #: Messages by type.
    by_type: Mapping[str, int] = field(default_factory=dict)
    #: Messages by priority.
    by_priority: Mapping[str, int] = field(default_factory=dict)
    #: The 50 busiest agents.
    agents: tuple[AgentRow, ...] = ()
    #: How many others there are.
    other_agents: int = 0
    #: Dead letters of the time by rule, the commonest 50 first.
    failures: tuple[FailureRow, ...] = ()
    #: How long each hop took.
    hops: tuple[HopRow, ...] = ()
    #: Sessions that were begun, finished, failed, stopped, deleted; one that was resumed may finish twice.
    sessions: Mapping[str, int] = field(default_factory=dict)
    #: Tries of runs beyond the first.
    runs_retried: int = 0
    #: Callbacks promised and kept.
    callbacks: CallbackRow = field(default_factory=CallbackRow)
    #: The same by agent.
    callbacks_by_agent: tuple[CallbackRow, ...] = ()
    #: What calls of models cost.
    spent: Cost = field(default_factory=Cost)
    #: The same by agent.
    spent_by_agent: tuple[CostRow, ...] = ()
    #: The hours or days in which something happened.
    timeline: tuple[Bucket, ...] = ()
    #: Correlation-id of the conversation with the most entries; empty: none.
    longest_conversation: str = ""

    @property
    def delivered(self) -> float | None:
        """The part of the messages that did not become dead letters; None: there were none."""
        return (self.messages - min(self.dead, self.messages)) / self.messages if self.messages else None


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

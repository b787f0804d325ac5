"""Figures from messages and dead letters, counted by the database: no row of a message comes here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Label,
    Select,
    and_,
    case,
    func,
    literal,
    literal_column,
    select,
    union_all,
)

from orchestrator.audit.report.model import AgentRow, Bucket, FailureRow, HopRow, Percentiles, Report
from orchestrator.audit.report.percentiles import percentiles
from orchestrator.audit.schema import DEAD_LETTERS, MESSAGES
from orchestrator.audit.store import AuditStore
from orchestrator.envelope.catalogue import RULES
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.envelope.signature_reading import RULES as SIGNATURE_RULES

_M: Final = MESSAGES.c
_D: Final = DEAD_LETTERS.c
#: Agents, and rules, that a report names.
_NAMED: Final = 50
_COMPLETION: Final = "task-completion"
_GIVEN: Final = func.min(case((_M.type != _COMPLETION, _M.published_ms)))
_DONE: Final = func.min(case((_M.type == _COMPLETION, _M.published_ms)))
_LASTED: Final = (_DONE - _GIVEN).label("ms")
_DEAD_ENTRIES: Final = select(_D.stream, _D.entry_id).distinct().subquery("dead_entries")
_WORDS: Final = {
    "task": "task given → task completed",
    "query-reply": "question asked → reply",
    "published-audited": "published → in the audit trail",
}


@dataclass(frozen=True)
class Period:
    """A period of time; None: without a bound."""

    since_ms: int | None = None
    until_ms: int | None = None

    def holds(self, column: ColumnElement[int]) -> list[ColumnElement[bool]]:
        """Return the conditions that a time of the database is in it."""
        since = [] if self.since_ms is None else [column >= self.since_ms]
        return since if self.until_ms is None else [*since, column < self.until_ms]


class MessageFigures:
    """The figures of a time. Each method is one walk over a table, or over an index of it."""

    def __init__(self, store: AuditStore, period: Period) -> None:
        self._store = store
        self._period = period
        self._within = period.holds(_M.published_ms)
        self._died_within = period.holds(_D.at_ms)

    def span(self) -> tuple[int | None, int | None]:
        """When the first and the last entry were published."""
        query = select(func.min(_M.published_ms), func.max(_M.published_ms)).where(*self._within)
        first, last = self._store.query(query)[0]
        return first, last

    def count(self, report: Report, timeline: dict[int, Bucket], unit_ms: int) -> None:
        """Count messages into the report and into the buckets of its timeline."""
        start = _start(unit_ms)
        firsts = func.sum(case((_M.attempt == 1, 1), else_=0))
        seconds = func.sum(case((_M.attempt == 2, 1), else_=0))
        size, most = func.sum(func.length(_M.xml)), func.max(_M.attempt)
        query = select(start, _M.type, _M.priority, func.count(), firsts, seconds, size, most)
        by_type, by_priority = Counter[str](), Counter[str]()
        for row in self._store.each(query.where(*self._within).group_by(start, _M.type, _M.priority)):
            begin, kind, priority = int(row[0]), row[1], row[2]
            entries, messages, retried, octets = map(int, row[3:7])
            report.entries += entries
            report.messages += messages
            report.retries += entries - messages
            report.retried += retried
            report.bytes += octets
            report.attempts = max(report.attempts, row[7])
            by_type[kind] += messages
            by_priority[priority] += messages
            bucket = timeline.setdefault(begin, Bucket(start_ms=begin))
            bucket.messages += messages
            bucket.retries += entries - messages
        report.by_type, report.by_priority = dict(by_type.most_common()), dict(by_priority.most_common())

    def conversations(self) -> int:
        """Return the number of conversations to which the messages belong."""
        query = select(func.count(_M.correlation_id.distinct()))
        return int(self._store.query(query.where(*self._within, _M.correlation_id != ""))[0][0])

    def longest_conversation(self) -> str:
        """Return the conversation with the most entries; empty if there is none."""
        query = select(_M.correlation_id).where(*self._within, _M.correlation_id != "")
        query = query.group_by(_M.correlation_id).order_by(func.count().desc(), _M.correlation_id).limit(1)
        rows = self._store.query(query)
        return str(rows[0][0]) if rows else ""

    def dead(self, timeline: dict[int, Bucket], unit_ms: int) -> int:
        """Return how many entries became dead letters, and add them to the buckets in which they were published."""
        start = _start(unit_ms)
        total = 0
        query = select(start, func.count()).select_from(_DEAD_ENTRIES.join(MESSAGES, _is_dead_entry()))
        for begin, count in self._store.each(query.where(*self._within).group_by(start)):
            total += count
            timeline.setdefault(int(begin), Bucket(start_ms=int(begin))).dead += count
        return total

    def failures(self) -> tuple[FailureRow, ...]:
        """Dead letters by rule, the commonest first."""
        count = func.count()
        query = select(_D.rule, count).where(*self._died_within).group_by(_D.rule)
        rows = self._store.query(query.order_by(count.desc(), _D.rule).limit(_NAMED))
        return tuple(FailureRow(rule=rule, checked_by=checked_by(rule), count=count) for rule, count in rows)

    def agents(self) -> tuple[tuple[AgentRow, ...], int]:
        """Return the busiest agents, and how many others there are."""
        first = (*self._within, _M.attempt == 1)
        one, none = literal(1), literal(0)
        sides = union_all(
            select(_M.sender.label("agent"), one.label("sent"), none.label("received")).where(*first),
            select(_M.recipient, none, one).where(*first),
        ).subquery()
        named = sides.c.agent != ""
        sent, received = func.sum(sides.c.sent), func.sum(sides.c.received)
        query = select(sides.c.agent, sent, received).where(named).group_by(sides.c.agent)
        rows = self._store.query(query.order_by((sent + received).desc(), sides.c.agent).limit(_NAMED))
        others = 0
        if len(rows) == _NAMED:
            known = self._store.query(select(func.count(sides.c.agent.distinct())).where(named))
            others = int(known[0][0]) - len(rows)
        names = [row[0] for row in rows]
        dead, tasks = self._dead_of(names), self._tasks_of(names)
        return tuple(
            AgentRow(
                agent=name,
                sent=int(sent),
                received=int(received),
                dead=dead.get(name, 0),
                tasks=tasks.get(name, Percentiles()),
            )
            for name, sent, received in rows
        ), others

    def hops(self) -> list[HopRow]:
        """Hops whose ends are messages."""
        question, answer = MESSAGES.alias("question").c, MESSAGES.alias("answer").c
        replies = (
            select(
                literal("query-reply").label("name"),
                (func.min(answer.published_ms) - func.min(question.published_ms)).label("ms"),
            )
            .where(*self._period.holds(question.published_ms), question.type == "query")
            .where(question.message_id != "", answer.parent_id == question.message_id, answer.type == "reply")
            .group_by(question.message_id)
        )
        kept = select(
            literal("published-audited").label("name"), (_M.received_ms - _M.published_ms).label("ms")
        ).where(*self._within)
        tasks = percentiles(
            self._store, self._tasks().with_only_columns(literal("task").label("name"), _LASTED)
        )
        found = {**tasks, **percentiles(self._store, replies), **percentiles(self._store, kept)}
        return [
            HopRow(hop=hop, what=what, times=found.get(hop, Percentiles())) for hop, what in _WORDS.items()
        ]

    def _tasks(self) -> Select[Any]:
        """Tasks that were given within the time and completed, one row each."""
        return (
            select(_M.task_id)
            .where(_M.task_id != "", _M.type.in_([*sorted(SESSION_STARTING), _COMPLETION]))
            .group_by(_M.task_id)
            .having(
                and_(
                    _GIVEN.is_not(None),
                    _DONE.is_not(None),
                    *self._period.holds(_GIVEN),
                )
            )
        )

    def _tasks_of(self, names: Iterable[str]) -> dict[str, Percentiles]:
        agent = func.max(case((_M.type != _COMPLETION, _M.recipient))).label("name")
        given = self._tasks().with_only_columns(agent, _LASTED).subquery()
        durations = select(given.c.name, given.c.ms).where(given.c.name.in_(list(names)))
        return percentiles(self._store, durations)

    def _dead_of(self, names: Iterable[str]) -> dict[str, int]:
        query = select(_M.sender, func.count()).select_from(_DEAD_ENTRIES.join(MESSAGES, _is_dead_entry()))
        rows = self._store.query(query.where(*self._within, _M.sender.in_(list(names))).group_by(_M.sender))
        return {row[0]: row[1] for row in rows}


def _start(unit_ms: int) -> Label[Any]:
    # PostgreSQL knows only without parameters that what is grouped by is what is selected.
    unit: ColumnElement[int] = literal_column(str(int(unit_ms)), BigInteger)
    return (_M.published_ms // unit * unit).label("start")


def _is_dead_entry() -> ColumnElement[bool]:
    return and_(_M.stream == _DEAD_ENTRIES.c.stream, _M.entry_id == _DEAD_ENTRIES.c.entry_id)


def checked_by(rule: str) -> str:
    """Return who refuses messages by a rule: parser, schema, content, signature, or the router."""
    if rule in RULES and rule not in SIGNATURE_RULES:
        return RULES[rule].by
    return "signature" if rule in SIGNATURE_RULES else "router"

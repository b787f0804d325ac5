"""Figures from messages and dead letters, counted by the database: no row of a message comes here."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
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

from orchestrator.audit.database import DEAD_LETTERS, MESSAGES, TRANSITIONS
from orchestrator.audit.report.model import (
    AgentRow,
    Bucket,
    CallbackRow,
    CostRow,
    FailureRow,
    Histogram,
    HopRow,
    Percentiles,
    Report,
    percentiles,
)
from orchestrator.audit.store import AuditStore
from orchestrator.audit.transitions import Transition, transitions_of, unpack
from orchestrator.envelope.catalogue import RULES
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.envelope.signature import RULES as SIGNATURE_RULES
from orchestrator.policy.budget import Cost

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
        size, most = func.sum(_M.octets), func.max(_M.attempt)
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


_T: Final = TRANSITIONS.c
#: Things of one kind that have begun and not ended: what is more is forgotten, the oldest first.
_OPEN: Final = 200_000
_AGENT: Final = re.compile(r"^agent=(.*?)(?: parent=\S*)?$")
#: A longer number is none: anybody who can write to Redis may append what looks like a step.
_NUMBER: Final = re.compile(r"\b(\w+)=([0-9]{1,18})\b")
_ENDED: Final = frozenset({"finished", "failed", "stopped", "deleted"})
_RUN_ENDED: Final = frozenset({"completed", "failed", "stopped"})
#: Hop → from what to what. A run is ready when the router has accepted the message that begins it.
_HOPS: Final = {
    "published-routed": "task published → accepted by a router",
    "ready-claimed": "run ready → claimed by a worker",
    "claimed-answered": "run claimed → run ended",
    "answered-delivered": "child ended → callback delivered",
    "promised-delivered": "child launched → callback delivered",
}

Key = tuple[str, str]


class _Open(OrderedDict[Key, int]):
    """When things began that have not ended; the oldest are forgotten where there are too many."""

    def begin(self, key: Key, at_ms: int) -> None:
        self[key] = at_ms
        if len(self) > _OPEN:
            self.popitem(last=False)


class LedgerFigures:
    """The figures of a time, gathered from its transitions as they pass by."""

    def __init__(self, store: AuditStore, timeline: dict[int, Bucket], unit_ms: int) -> None:
        self._store = store
        self._timeline = timeline
        self._unit_ms = unit_ms
        self._agents: OrderedDict[str, str] = OrderedDict()
        self._pending, self._ready, self._claimed = _Open(), _Open(), _Open()
        #: Callbacks that are known and have not come to an end, and those among them whose child has ended.
        self._promised, self._answered = _Open(), _Open()
        #: Callbacks that nobody was promised yet.
        self._silent = _Open()
        self._waits = {hop: Histogram() for hop in _HOPS}
        self.sessions: Counter[str] = Counter()
        self.runs_retried = 0
        self._callbacks: dict[str, CallbackRow] = {}
        self._costs: defaultdict[str, Cost] = defaultdict(Cost)

    def read(self, period: Period, progress: Callable[[int, int], object]) -> None:
        """Walk over the transitions of a time; ``progress`` gets how many rows are done, of how many."""
        since, until = period.since_ms, period.until_ms
        conditions = [] if since is None else [_T.last_ms >= since]
        conditions += [] if until is None else [_T.first_ms < until]
        total = int(self._store.query(select(func.count()).select_from(TRANSITIONS).where(*conditions))[0][0])
        query = select(_T.stream, _T.document).where(*conditions).order_by(_T.seq)
        for number, (stream, document) in enumerate(self._store.each(query), 1):
            for step in unpack(document):
                for change in transitions_of(stream, step):
                    if (since is None or change.at_ms >= since) and (until is None or change.at_ms < until):
                        self._take(change)
            progress(number, total)

    @property
    def hops(self) -> list[HopRow]:
        """Hops whose ends are transitions."""
        return [
            HopRow(hop=hop, what=what, times=self._waits[hop].percentiles()) for hop, what in _HOPS.items()
        ]

    @property
    def callbacks(self) -> tuple[CallbackRow, ...]:
        """Callbacks by the agents of the sessions that were promised them, most first."""
        rows = self._callbacks.values()
        return tuple(sorted(rows, key=lambda row: (-row.launched - row.carried, row.agent)))

    @property
    def costs(self) -> tuple[CostRow, ...]:
        """The spending of agents, most first."""
        rows = [CostRow(agent=agent, cost=cost) for agent, cost in self._costs.items()]
        return tuple(sorted(rows, key=lambda row: (-row.cost.nano_usd, -row.cost.tokens, row.agent)))

    def _take(self, change: Transition) -> None:
        match change.kind:
            case "session":
                self._session(change)
            case "run":
                self._run(change)
            case "callback":
                self._callback(change)
            case "budget" if change.state == "spent":
                self._spent(change)

    def _session(self, change: Transition) -> None:
        key = (change.session, "")
        if change.state in ("pending", "scheduled"):
            if match := _AGENT.match(change.detail):
                self._note_agent(change.session, match[1])
                self.sessions["begun"] += 1
                self._pending.begin(key, change.at_ms)
        elif change.state in _ENDED:
            self.sessions[change.state] += 1
            self._pending.pop(key, None)
            if change.state == "finished":
                self._bucket(change.at_ms).finished += 1
            elif change.state != "deleted":
                self._bucket(change.at_ms).failed += 1

    def _run(self, change: Transition) -> None:
        key = (change.session, change.id)
        if change.state == "queued":
            begun = self._pending.pop((change.session, ""), None)
            # What an external program gave has its run in the step that makes the session.
            if begun is not None and change.by != "launch":
                self._waits["published-routed"].add(change.at_ms - begun)
            if change.detail.startswith("again_in_ms="):
                self.runs_retried += 1
                # It is ready when it has waited for so long.
                self._ready.begin(key, change.at_ms + _numbers(change.detail).get("again_in_ms", 0))
            else:
                self._ready.begin(key, change.at_ms)
            self._claimed.pop(key, None)
        elif change.state == "running" and not change.detail.startswith("asked to be"):
            self._end(self._ready, key, change.at_ms, "ready-claimed")
            self._claimed.begin(key, change.at_ms)
        elif change.state in _RUN_ENDED:
            self._end(self._claimed, key, change.at_ms, "claimed-answered")
            self._ready.pop(key, None)

    def _callback(self, change: Transition) -> None:
        key = (change.session, change.id)
        if change.state == "none":
            self._silent.begin(key, change.at_ms)
            return
        row = self._row(change.session)
        if key not in self._promised:
            if change.state == "owed" or self._silent.pop(key, None) is not None:
                row.launched += 1
            else:
                row.carried += 1
            self._promised.begin(key, change.at_ms if change.state == "owed" else -1)
        if change.state == "queued" and key not in self._answered:
            self._answered.begin(key, change.at_ms)
        elif change.state in ("delivered", "dead"):
            promised, answered = self._promised.pop(key), self._answered.pop(key, None)
            if change.state == "dead":
                row.dead += 1
                return
            row.delivered += 1
            if promised >= 0:
                self._waits["promised-delivered"].add(change.at_ms - promised)
            if answered is not None:
                self._waits["answered-delivered"].add(change.at_ms - answered)

    def _spent(self, change: Transition) -> None:
        numbers = _numbers(change.detail)
        cost = Cost(**{name: numbers[name] for name in _COUNTED if name in numbers})
        self._costs[self._agent(change.session)] += cost
        self._bucket(change.at_ms).cost += cost

    def _end(self, begun: _Open, key: Key, at_ms: int, hop: str) -> None:
        since = begun.pop(key, None)
        if since is not None:
            self._waits[hop].add(at_ms - since)

    def _bucket(self, at_ms: int) -> Bucket:
        start = at_ms // self._unit_ms * self._unit_ms
        return self._timeline.setdefault(start, Bucket(start_ms=start))

    def _row(self, session: str) -> CallbackRow:
        agent = self._agent(session)
        return self._callbacks.setdefault(agent, CallbackRow(agent=agent))

    def _note_agent(self, session: str, agent: str) -> None:
        self._agents[session] = agent
        if len(self._agents) > _OPEN:
            self._agents.popitem(last=False)

    def _agent(self, session: str) -> str:
        """Return the agent of a session, by its first transition or by the message that launched it; '' if unknown."""
        known = self._agents.get(session)
        if known is None:
            query = (
                select(_M.recipient)
                .where(_M.task_id == session, _M.type.in_(sorted(SESSION_STARTING)))
                .limit(1)
            )
            rows = self._store.query(query)
            known = str(rows[0][0]) if rows else ""
            self._note_agent(session, known)
        return known


_COUNTED: Final = tuple(field.name for field in fields(Cost))


def _numbers(detail: str) -> dict[str, int]:
    return {name: int(number) for name, number in _NUMBER.findall(detail)}


def all_callbacks(rows: Sequence[CallbackRow]) -> CallbackRow:
    """Return the sum of rows."""
    counts = [each.name for each in fields(CallbackRow) if each.name != "agent"]
    return CallbackRow(**{name: sum(getattr(row, name) for row in rows) for name in counts})

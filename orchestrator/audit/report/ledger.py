"""Figures from the ledger's transitions: waits, retries, callbacks launched and delivered, cost of model calls.

Transitions are compressed, many in a row, so they pass through here once, oldest first. What is kept meanwhile is
bounded: what has begun and not ended yet, up to ``_OPEN`` of each kind, and histograms.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Final

from sqlalchemy import func, select

from orchestrator.audit.report.messages import Period
from orchestrator.audit.report.model import Bucket, CallbackRow, CostRow, HopRow
from orchestrator.audit.report.percentiles import Histogram
from orchestrator.audit.schema import MESSAGES, TRANSITIONS
from orchestrator.audit.store import AuditStore
from orchestrator.audit.transitions import Transition, transitions_of, unpack
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.policy.budget import Cost

_T: Final = TRANSITIONS.c
_M: Final = MESSAGES.c
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
        #: Agent, and bucket → what was spent, in the order of `_COUNTED`.
        self._costs: dict[str, list[int]] = {}
        self._costs_at: dict[int, list[int]] = {}

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
        for start, counts in self._costs_at.items():
            self._bucket(start).cost = _cost(counts)

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
        rows = [CostRow(agent=agent, cost=_cost(counts)) for agent, counts in self._costs.items()]
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
        start = change.at_ms // self._unit_ms * self._unit_ms
        for counts in (
            self._costs.setdefault(self._agent(change.session), [0] * len(_COUNTED)),
            self._costs_at.setdefault(start, [0] * len(_COUNTED)),
        ):
            for at, name in enumerate(_COUNTED):
                counts[at] += numbers.get(name, 0)

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


def _cost(counts: Iterable[int]) -> Cost:
    return Cost(**dict(zip(_COUNTED, counts, strict=True)))


def added(*costs: Cost) -> Cost:
    """Return the sum of costs."""
    return Cost(**{name: sum(getattr(cost, name) for cost in costs) for name in _COUNTED})


def all_callbacks(rows: Iterable[CallbackRow]) -> CallbackRow:
    """Return the sum of rows."""
    whole = CallbackRow()
    for row in rows:
        whole.carried += row.carried
        whole.launched += row.launched
        whole.delivered += row.delivered
        whole.dead += row.dead
    return whole

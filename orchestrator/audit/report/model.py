"""What a report says, as values. Times are milliseconds since the epoch, durations milliseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from orchestrator.policy.budget import Cost

Unit = Literal["hour", "day"]
#: Milliseconds of a unit of the time line; days are those of UTC.
UNIT_MS: Final[Mapping[Unit, int]] = {"hour": 3_600_000, "day": 86_400_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Durations by nearest rank; None: nothing was measured."""

    count: int = 0
    p50_ms: int | None = None
    p95_ms: int | None = None
    p99_ms: int | None = None
    max_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HopRow:
    """How long one hop took."""

    hop: str
    #: From what to what, in words.
    what: str
    times: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRow:
    """What one agent sent and received. ``tasks``: how long those took that it was given and completed."""

    agent: str
    sent: int
    received: int
    #: Messages of it that became dead letters.
    dead: int
    tasks: Percentiles


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """Messages that became dead letters by one rule."""

    rule: str
    #: parser | schema | content | signature | router
    checked_by: str
    count: int


@dataclass(slots=True, kw_only=True)
class CallbackRow:
    """Callbacks that sessions of an agent were promised, and what became of them.

    ``carried + launched = delivered + dead + pending``.
    """

    agent: str = ""
    #: Promised before the time of the report, and moved within it.
    carried: int = 0
    launched: int = 0
    delivered: int = 0
    dead: int = 0

    @property
    def pending(self) -> int:
        """Those that were neither delivered nor dead at the end of the time."""
        return self.carried + self.launched - self.delivered - self.dead


@dataclass(slots=True, kw_only=True)
class CostRow:
    """What sessions of an agent spent on calls of models."""

    agent: str
    cost: Cost


@dataclass(slots=True, kw_only=True)
class Bucket:
    """What happened in one hour or day."""

    start_ms: int
    #: First attempts, and the attempts after them.
    messages: int = 0
    retries: int = 0
    dead: int = 0
    #: Sessions that came to an answer, and those that failed or were stopped.
    finished: int = 0
    failed: int = 0
    cost: Cost = field(default_factory=Cost)


@dataclass(slots=True, kw_only=True)
class Report:
    """A report on a time, by the times at which entries were published."""

    database: str
    made_ms: int
    #: The time asked for; None: without a bound.
    since_ms: int | None
    until_ms: int | None
    by: Unit
    #: Published entries, those among them that are first attempts, and those that are later ones.
    entries: int = 0
    messages: int = 0
    retries: int = 0
    #: Messages that needed more than one attempt.
    retried: int = 0
    #: The most attempts of one message.
    attempts: int = 0
    #: Entries that became dead letters; of entries of this time.
    dead: int = 0
    conversations: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    bytes: int = 0
    by_type: Mapping[str, int] = field(default_factory=dict)
    by_priority: Mapping[str, int] = field(default_factory=dict)
    #: The busiest agents first, and how many others there are.
    agents: tuple[AgentRow, ...] = ()
    other_agents: int = 0
    #: Dead letters of this time by rule, the commonest first.
    failures: tuple[FailureRow, ...] = ()
    hops: tuple[HopRow, ...] = ()
    #: What became of sessions: begun, finished, failed, stopped, deleted.
    sessions: Mapping[str, int] = field(default_factory=dict)
    #: Tries of runs beyond the first.
    runs_retried: int = 0
    callbacks: CallbackRow = field(default_factory=CallbackRow)
    callbacks_by_agent: tuple[CallbackRow, ...] = ()
    spent: Cost = field(default_factory=Cost)
    spent_by_agent: tuple[CostRow, ...] = ()
    timeline: tuple[Bucket, ...] = ()
    #: The correlation-id of the conversation with the most entries; empty: there is none.
    longest_conversation: str = ""

    @property
    def delivered(self) -> float | None:
        """The part of the messages that did not become dead letters; None: there were none."""
        return (self.messages - min(self.dead, self.messages)) / self.messages if self.messages else None

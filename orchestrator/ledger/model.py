"""What the ledger holds, as frozen values: sessions, runs, items, and the outcomes of transitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

JSON = Any


class SessionState(StrEnum):
    """Where a session stands."""

    PENDING = "pending"  #: launched; no run has been claimed yet
    RUNNING = "running"  #: a run is or was last seen at work
    IDLE = "idle"  #: between runs, with something outstanding
    FINISHED = "finished"  #: nothing outstanding; a user may resume it
    FAILED = "failed"
    STOPPED = "stopped"
    DELETED = "deleted"


#: How the reason of a session ends whose agent did not heed the wish to stop.
BY_FORCE = "ended by force"
#: … whose worker was lost after it was asked to stop.
WORKER_LOST = "its worker was lost"

#: States in which a session will never run again.
CLOSED = frozenset({SessionState.FAILED, SessionState.STOPPED, SessionState.DELETED})


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class ItemState(StrEnum):
    """Where a callback (or another item of a session's queue) stands."""

    OWED = "owed"
    QUEUED = "queued"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    DEAD = "dead"


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to act for a run: valid until the run ends or its lease is lost."""

    run: str
    claim: str
    session: str
    parent: str
    root: str


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session as the ledger has it."""

    id: str
    agent: str
    parent: str  #: empty for a root
    root: str
    depth: int  #: 0 for a root
    state: SessionState
    title: str
    run: str  #: the non-terminal run, or empty: busy means that this is not empty
    launched: int  #: delegations for which a callback is owed
    delivered: int
    dead: int
    owed: int  #: launched, and the child is not over yet
    runs: int
    created_ms: int
    updated_ms: int
    ended_ms: int  #: 0 while not over
    correlation: str  #: the conversation's id
    message: str  #: message-id of the envelope that launched it
    chain: tuple[str, ...]  #: message ids from the launch back to the root, nearest first
    callback: bool  #: whether its parent is owed a callback
    reason: str  #: why it failed, was stopped or deleted
    progress: int  #: 0 to 100, or -1 while unknown
    activity: str
    priority: str
    task: str  #: Celery task id whose result this root owes, or empty
    waiting: JSON  #: waiting policies by group of delegations, "" being the default one
    questions: tuple[str, ...]  #: ids of its own questions that have no reply yet
    close_policy: str  #: what becomes of its children when it is closed: stop, abandon, heir:<session>
    parked: str = ""  #: why its launch waits, in words, or empty
    entry: str = ""  #: where its launch stands, type:priority:entry; empty if it came from outside
    delegator: str = ""  #: the agent or foreign program that gave it its task; empty: a user did
    sealed: bool = False  #: whether its prompt is an envelope with a body encrypted for its agent

    @property
    def busy(self) -> bool:
        """Whether it has a non-terminal run."""
        return self.run != ""

    @property
    def pending(self) -> int:
        """Callbacks neither delivered nor dead."""
        return self.launched - self.delivered - self.dead


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as the ledger has it."""

    id: str
    session: str
    number: int
    cause: Literal["start", "callbacks", "user"]
    state: RunState
    claim: str
    beat: int  #: renewal counter of the lease
    attempt: int  #: how often it was claimed
    lost: int  #: how often its worker was lost
    items: tuple[str, ...]  #: what it carries
    worker: str
    created_ms: int
    started_ms: int
    ended_ms: int
    stop: str  #: reason for which it was asked to stop, or empty
    reason: str
    awaits: tuple[str, ...] = ()  #: items that it stands still for: the end of a child, or a reply
    late: tuple[str, ...] = ()  #: groups of delegations whose deadline made this run, with children missing

    @property
    def foreign(self) -> bool:
        """Whether a program outside of the stack has it, which holds no lease."""
        return self.claim == "foreign"


@dataclass(frozen=True, kw_only=True)
class Item:
    """A callback, question, message, reply or prompt in a session's books."""

    id: str
    kind: str  #: completion, query, blocker, clarification, error, message, reply, prompt, …
    state: ItemState
    child: str  #: the session it came from; empty for a prompt
    agent: str
    status: str  #: completed or failed; empty while owed and for what is not a completion
    priority: str
    seq: int  #: the parent's sequence number, 0 while owed
    size: int  #: bytes of its text
    run: str  #: the run that carries or carried it
    reason: str  #: why it is dead
    title: str = ""
    callback: bool = True  #: False: a delegation that owes nothing
    at_ms: int = 0
    extra: JSON = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dispatch:
    """A run that is to be sent to a worker."""

    run: str
    session: str
    agent: str
    cause: str


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A run that is now held: everything its worker needs to know."""

    claim: Claim
    session: Session
    run: Run
    prompt: str
    state: JSON  #: what the agent saved in its last committed run
    items: tuple[Item, ...]
    texts: dict[str, str]  #: item id → text


@dataclass(kw_only=True)
class Following:
    """The run that a worker wants next, claimed in one round trip with the commit before it."""

    run: str
    session: str
    claim: str  #: a claim id of its own
    worker: str
    asked: bool = False  #: whether it was asked for, and is held or refused
    held: Claimed | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended, as its worker reports it."""

    status: Literal["completed", "failed", "stopped"]
    text: str  #: the answer, or what went wrong
    state: JSON = None  #: new saved state, or None to leave it as it is
    waiting: JSON = None  #: new waiting policy, or None to leave it as it is


@dataclass(frozen=True, kw_only=True)
class Committed:
    """What a commit made of the session."""

    session_state: SessionState
    over: bool  #: the session is over and its parent's callback queued
    first: bool  #: False when this very commit had been made before
    result_owed: bool  #: a root whose Celery result is to be settled now


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A signed envelope that a transition publishes in the same atomic step."""

    data: bytes
    type: str
    priority: str
    message_id: str


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A root that was submitted, now or earlier under the same key."""

    session: str
    created: bool
    state: SessionState
    agent: str  #: of the session that is there


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A child that a running session launches."""

    effect: str  #: effect key: the same key gives the same child
    child_id: str
    agent: str
    description: str
    envelope: Outgoing
    correlation: str
    chain: Sequence[str]  #: its parent's, nearest message first
    title: str = ""
    callback: bool = True
    group: str = ""
    on_failure: str = "deliver"
    #: What becomes of it when its parent is closed: stop, abandon, heir:<session>; empty: the parent's policy.
    on_close: str = ""


@dataclass(frozen=True, kw_only=True)
class Delegated:
    """A child that was launched, now or by an earlier try of the same run."""

    child: str
    created: bool


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """What a heartbeat learnt."""

    held: bool
    stop: str  #: why the run is asked to stop, or empty


@dataclass(frozen=True, kw_only=True)
class RetryLater:
    """A failed run that has attempts left: it is queued again."""

    failures: int


@dataclass(frozen=True, kw_only=True)
class Flushed:
    """What a flush did."""

    #: run: a resume was made; busy, empty, waits, closed: nothing to do now, and why; damaged: it cannot be read.
    outcome: Literal["run", "busy", "empty", "waits", "closed", "damaged"]
    dispatch: Dispatch | None = None
    more: bool = False
    detail: str = ""  #: the busy run, the due time in ms, the session's state


@dataclass(frozen=True, kw_only=True)
class StopVerdict:
    """What became of a wish to end a session."""

    #: ended: it is over now; asked: a running run was asked; over: it had ended before; unknown: no such session.
    outcome: Literal["ended", "asked", "over", "unknown"]
    #: ended: the run that was queued and never starts, if there was one; asked: the run; over: the session's state.
    detail: str = ""
    #: Of a session that had finished before: how many below it were still at work, and are ended or asked to.
    below: int = 0


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A running run as an observer sees it."""

    run: str
    session: str
    claim: str
    beat: str
    worker: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds that the ledger's transitions keep; see the settings of the same names."""

    max_children: int = 100_000
    max_depth: int = 50
    max_tree_sessions: int = 1_000_000
    max_tree_runs: int = 10_000_000
    conversation_messages: int = 1_000_000
    resume_max_items: int = 500
    resume_max_bytes: int = 1_048_576
    #: Texts of more bytes are stored once and referred to.
    inline_bytes: int = 1_048_576
    max_lost_workers: int = 20
    redispatch_ms: int = 10_000
    redispatch_cap_ms: int = 600_000
    retry_ms: int = 1_000
    #: How long a question may stay open; 0: as long as it takes.
    question_ms: int = 0
    tree_ttl_ms: int = 7 * 86_400_000
    #: Replicas that must have a claim or a commit before it counts, and how long to wait for them.
    replicas: int = 0
    replica_timeout_ms: int = 1_000

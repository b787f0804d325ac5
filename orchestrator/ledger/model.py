"""What the ledger holds, as frozen values: sessions, runs, and the items of a session's records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from orchestrator.policy.budget import Cost
from orchestrator.policy.versions import OnDeploy, lane_of

JSON = Any


class SessionState(StrEnum):
    """Where a session stands."""

    SCHEDULED = "scheduled"  #: submitted; its time has not come
    PENDING = "pending"  #: launched; no run has been claimed yet
    RUNNING = "running"  #: a run is or was last seen at work
    IDLE = "idle"  #: between runs, with something outstanding
    FINISHED = "finished"  #: nothing outstanding; a user may resume it
    FAILED = "failed"
    STOPPED = "stopped"
    DELETED = "deleted"
    DAMAGED = "damaged"  #: its record does not say; `orchestra doctor` says what is wrong with it


#: How the reason of a session ends whose agent did not stop when it was asked to.
BY_FORCE = "ended by force"
#: … whose worker was lost after it was asked to stop.
WORKER_LOST = "its worker was lost"

#: Why a session fails that has not ended within its time, by the timer that says so.
OVERDUE: Mapping[str, str] = {
    "limit": "it was not done within its time limit",
    "review": "the review was not done in time",
}

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
    ASKED = "asked"  #: a question to the user that has no reply yet; it is in no queue


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session as the ledger has it."""

    id: str  #: begins with `ses_`
    agent: str  #: the name of its agent
    parent: str  #: empty for a root
    root: str  #: the root of its tree; its own id, if it is one
    depth: int  #: 0 for a root
    state: SessionState  #: where it stands
    title: str  #: what people call it
    run: str  #: the non-terminal run, or empty: busy means that this is not empty
    launched: int  #: delegations for which a callback is owed
    delivered: int  #: callbacks of its children that a committed run has had
    dead: int  #: callbacks that will not be delivered, each with a reason
    owed: int  #: launched, and the child has not ended yet
    runs: int  #: runs that it has had so far
    created_ms: int  #: when it was launched, in milliseconds since 1970
    updated_ms: int  #: when anything of it changed last
    ended_ms: int  #: 0 while it has not ended
    correlation: str  #: the conversation's id
    message: str  #: message-id of the envelope that launched it
    chain: tuple[str, ...]  #: message ids from the launch back to the root, nearest first
    callback: bool  #: whether its parent is owed a callback
    reason: str  #: why it failed, was stopped or deleted
    progress: int  #: 0 to 100, or -1 while unknown
    activity: str  #: what its agent says that it is doing
    priority: str  #: `critical`, `high`, `normal` or `low`
    task: str  #: Celery task id whose result this root owes, or empty
    waiting: JSON  #: waiting policies by group of delegations, "" being the default one
    questions: tuple[str, ...]  #: ids of its own questions that have no reply yet
    close_policy: str  #: what becomes of its children when it is closed: stop, abandon, heir:<session>
    parked: str = ""  #: why its launch waits, in words, or empty
    entry: str = ""  #: where its launch stands, type:priority:entry; empty if it came from outside
    due_ms: int = 0  #: when it was to begin, if it was scheduled; 0: at once
    delegator: str = ""  #: the agent or external program that gave it its task; empty: a user did
    children: int = 0  #: delegations in all, also those for which nothing is owed
    trouble: str = ""  #: how the last try of its present run ended, while that is to be tried again
    task_id: str = (
        ""  #: the task-id under which an external program gave it its task; empty: its own id is that
    )
    sealed: bool = False  #: whether its prompt is an envelope with a body encrypted for its agent
    encrypted: bool = (
        False  #: whether what it says and is told is sealed in the ledger, and encrypted on its way
    )
    caller: str = (
        ""  #: who hears of it instead of the session that launched it; `none`: nobody; empty: that session
    )
    planned: bool = False  #: whether its prompt is a plan that the operator gave it to carry out
    damage: tuple[str, ...] = ()  #: what cannot be read of its record, a sentence each
    steps: int = 0  #: durable steps that its runs recorded
    step: str = ""  #: the one that was recorded last
    last_said: str = ""  #: message-id of its latest status-update
    report: str = ""  #: message-id of the envelope that reports its latest end
    proof: str = ""  #: of who reports its latest end; empty while it has not ended
    task_proof: str = ""  #: of who gave it its task
    budgets: tuple[
        str, ...
    ] = ()  #: sessions whose budgets it counts against, the root first; itself, if it has one
    used: Cost = field(default_factory=Cost)  #: what its own calls of models have cost so far
    forked_from: str = ""  #: the session that it is a fork of
    forked_at: str = ""  #: the run of that session at which it begins
    version: str = ""  #: the version of its agent's definition; empty before its first run
    on_deploy: OnDeploy = (
        "latest"  #: what becomes of it when its agent has another version, as it was when it began
    )

    def policy_for(self, on_close: str) -> str:
        """What becomes of a child of whose delegation ``on_close`` is, when this session is closed."""
        return on_close or self.close_policy or "stop"

    @property
    def pinned(self) -> str:
        """The version that a worker must have to take its runs; empty: any will do."""
        return self.version if self.on_deploy == "pin" else ""

    @property
    def lane(self) -> str:
        """Among whose ready runs its own are: its agent's, or those that wait for one version of it."""
        return lane_of(self.agent, self.pinned)

    @property
    def reported_as(self) -> str:
        """The task-id that its reports name: the one under which it was given its task."""
        return self.task_id or self.id

    @property
    def approvals(self) -> tuple[str, ...]:
        """Those of its open questions that only a person answers."""
        return tuple(one for one in self.questions if one.startswith("apr_"))

    @property
    def busy(self) -> bool:
        """Whether it has a non-terminal run."""
        return self.run != ""

    @property
    def pending(self) -> int:
        """Callbacks neither delivered nor dead."""
        return self.launched - self.delivered - self.dead


@dataclass(frozen=True, kw_only=True)
class Try:
    """One try of a run that ended without an answer."""

    #: failed: its agent raised; died: its worker process did; lost: its lease stood still; parked: it freed its slot.
    how: Literal["failed", "died", "lost", "parked"]
    reason: str  #: of bounded length
    traceback: str  #: likewise; empty where there is none
    attempt: int  #: how often the run had been claimed by then
    worker: str
    started_ms: int
    ended_ms: int
    again_ms: int  #: when the run could be tried again at the earliest; 0: it was the last try


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as the ledger has it."""

    id: str  #: begins with `run_`
    session: str  #: the session that it is a run of
    number: int  #: 1 for the first run of its session
    cause: Literal["start", "callbacks", "user"]  #: why it began
    state: RunState  #: where it stands
    claim: str  #: the random claim under which a worker holds it
    lease_version: int  #: how often the lease was renewed
    attempt: int  #: how often it was claimed
    lost: int  #: how often its worker was lost
    items: tuple[str, ...]  #: what it carries
    worker: str  #: the worker that took it last
    created_ms: int  #: when it was queued, in milliseconds since 1970
    started_ms: int  #: when a worker took it last; 0: none has
    ended_ms: int  #: 0 while it has not ended
    stop: str  #: reason for which it was asked to stop, or empty
    reason: str  #: why it failed or was stopped
    awaits: tuple[str, ...] = ()  #: items that it stands still for: the end of a child, or a reply
    overdue: tuple[
        str, ...
    ] = ()  #: groups of delegations whose deadline made this run, with children missing
    failures: int = 0  #: how often its agent raised
    allowed: int = 0  #: how often it may; 0 while it has not
    died: int = 0  #: how often its worker process died
    claimable_ms: int = 0  #: when it may be tried again at the earliest; 0: at any time
    tries: tuple[Try, ...] = ()  #: the last ones that ended without an answer
    steps: int = 0  #: durable steps that it has recorded
    version: str = ""  #: the version of the definition that took it last
    last_steps: str = ""  #: the last of them, once it has ended, as `read_headers` takes them

    @property
    def external(self) -> bool:
        """Whether a program outside of the stack has it, which holds no lease."""
        return self.claim == "external"


@dataclass(frozen=True, kw_only=True)
class Item:
    """A callback, question, message, reply or prompt in a session's records."""

    id: str
    kind: str  #: completion, query, blocker, clarification, error, message, reply, prompt, …
    state: ItemState
    child: str  #: the session it came from; empty for a prompt
    agent: str
    status: str  #: completed, partial-success or failed; empty while owed and for what is not a completion
    priority: str
    seq: int  #: the parent's sequence number, 0 while owed
    size: int  #: bytes of its text
    run: str  #: the run that carries or carried it
    reason: str  #: why it is dead
    title: str = ""
    callback: bool = True  #: False: a delegation that owes nothing
    at_ms: int = 0
    extra: JSON = field(default_factory=dict)

    @property
    def on_close(self) -> str:
        """What becomes of its child when the parent is closed: stop, abandon, heir:<session>; empty: as the parent says."""
        return str(self.extra.get("on_close") or "")

    @property
    def child_at_work(self) -> bool:
        """Whether it is that of a child that has not ended yet."""
        owed = self.state is ItemState.OWED
        return self.kind == "completion" and (owed or (not self.callback and not self.extra.get("over")))

    @property
    def large_texts(self) -> tuple[Mapping[str, JSON], ...]:
        """References to its text, if that is large, and to its attachments."""
        whole, attached = self.extra.get("whole"), self.extra.get("attachments") or {}
        return (*([whole] if whole else []), *attached.values())

"""Records of the ledger as frozen values: sessions, runs, and the items of a session's queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_type_hints

from orchestrator.display.text import counted
from orchestrator.machine import isoformat
from orchestrator.policy.budget import Cost, nano_of
from orchestrator.policy.moments import parse_past
from orchestrator.policy.versions import OnDeploy

JSON = Any
T = TypeVar("T")


@dataclass(frozen=True)
class Words:
    """The mark of a text field, which is encrypted in the ledger if its session is."""

    json: bool = False  #: the words are values of JSON


#: The type of a field that holds what somebody says.
Encrypted = Annotated[T, Words()]


@cache
def encrypted_fields(model: type) -> Mapping[str, Words]:
    """Return the marks of the fields of a model that are encrypted where their session is, by name."""
    hints = get_type_hints(model, include_extras=True)
    marks = {name: [m for m in get_args(hint)[1:] if isinstance(m, Words)] for name, hint in hints.items()}
    return {name: found[0] for name, found in marks.items() if found}


class SessionState(StrEnum):
    """State of a session."""

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
    """State of a run."""

    QUEUED = "queued"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    STOPPED = "stopped"


class ItemState(StrEnum):
    """State of a callback, or of another item of a session's queue."""

    OWED = "owed"
    QUEUED = "queued"
    CLAIMED = "claimed"
    DELIVERED = "delivered"
    DEAD = "dead"
    ASKED = "asked"  #: a question to the user that has no reply yet; it is in no queue


@dataclass(frozen=True, kw_only=True)
class Session:
    """A session as the ledger has it."""

    #: Its id.
    id: str
    #: The agent that has it.
    agent: str
    #: The session that launched it; empty: it is a root.
    parent: str
    #: The root of its tree.
    root: str
    #: Its generation; a root has 0.
    depth: int
    #: Where it stands: `scheduled`, `pending`, `running`, `idle`, `finished`, `failed`, `stopped` or `deleted`;
    #: `damaged`: its record cannot be read.
    state: SessionState
    #: What people call it.
    title: Encrypted[str]
    #: Its run that is queued or running; else empty.
    run: str
    #: Delegations that bring it a callback.
    launched: int
    #: Callbacks that were delivered to it.
    delivered: int
    #: Callbacks that will not be delivered, each with a reason.
    dead: int
    #: Children whose callbacks are outstanding.
    owed: int
    #: Runs so far.
    runs: int
    #: When it was launched.
    created_ms: int
    #: When it last changed.
    updated_ms: int
    #: When it ended; 0 or null: it has not.
    ended_ms: int
    #: Its conversation.
    correlation: str
    #: The message that launched it.
    message: str
    #: Message-ids from its launch back to the root's, nearest first.
    chain: tuple[str, ...]
    #: Whether its end is a callback to its parent.
    callback: bool
    #: Why it failed, was stopped or deleted; else empty.
    reason: Encrypted[str]
    #: Per cent done, as its agent says; null: it does not say.
    progress: int
    #: What it does now, as its agent says; else empty.
    activity: Encrypted[str]
    #: The priority of its task.
    priority: str
    #: The Celery task under which a root's result is stored; else empty.
    task: str
    #: Its waiting policies by group of delegations; `""` is the default group.
    waiting: JSON
    #: Ids of its questions that have no reply yet, approvals included.
    questions: tuple[str, ...]
    #: What becomes of its children when it ends: `stop`, `abandon`, `heir:SESSION`.
    close_policy: str
    #: Why its start waits, in words; else empty.
    parked: str = ""
    #: Where its launch stands in the streams, `type:priority:entry`; else empty.
    entry: str = ""
    #: When it was to begin; 0 or null: it was not scheduled.
    due_ms: int = 0
    #: The agent or program that gave it its task; empty: a user did.
    delegator: str = ""
    #: All its delegations, also those without a callback.
    children: int = 0
    #: How the last try of its present run ended, while that is to be tried again; else empty.
    trouble: Encrypted[str] = ""
    #: The task-id under which an external program gave it its task; empty: its own id is that.
    task_id: str = ""
    #: Whether its prompt is an encrypted message from outside.
    sealed: bool = False
    #: Whether its texts are encrypted in messages and sealed in the ledger.
    encrypted: bool = False
    caller: str = (
        ""  #: who hears of it instead of the session that launched it; `none`: nobody; empty: that session
    )
    planned: bool = False  #: whether its prompt is a plan that the operator gave it to carry out
    #: What it was launched with beside its task, as a JSON object; empty: nothing.
    options: str = ""
    #: What cannot be read of its record in the ledger.
    damage: tuple[str, ...] = ()
    #: Durable steps that its runs recorded.
    steps: int = 0
    #: The durable step that was recorded last; else empty.
    step: str = ""
    last_said: str = ""  #: message-id of its latest status-update
    report: str = ""  #: message-id of the envelope that reports its latest end
    proof: str = ""  #: of who reports its latest end; empty while it has not ended
    task_proof: str = ""  #: of who gave it its task
    #: Sessions whose budgets its calls of models count against, the root first; itself, if it has one.
    budgets: tuple[str, ...] = ()
    #: What its own calls of models have cost so far.
    used: Cost = field(default_factory=Cost)
    #: The session that it is a fork of; else empty.
    forked_from: str = ""
    #: The run of that session at which it begins; else empty.
    forked_at: str = ""
    #: The version of its agent's definition that it began with, or of its latest run if `on_deploy` is
    #: `latest`; empty before its first run.
    version: str = ""
    #: What becomes of it when its agent has another version: any worker takes it, or it fails.
    on_deploy: OnDeploy = "latest"

    def policy_for(self, on_close: str) -> str:
        """Return what to do with a child when this session is closed: its own ``on_close``, else this session's
        policy.
        """
        return on_close or self.close_policy or "stop"

    @property
    def reported_as(self) -> str:
        """The task-id that its reports name: the one under which it was given its task."""
        return self.task_id or self.id

    @property
    def approvals(self) -> tuple[str, ...]:
        """Those of its open questions that only a person answers."""
        return tuple(one for one in self.questions if one.startswith("apr_"))

    def doing(self, awaits_person: str = "waits for a person's yes or no") -> str:
        """Return what it does or waits for, or why it ended, as its own record says; ``awaits_person`` names the wait
        for an approval.
        """
        step = f"step {self.step} ({counted(self.steps, 'step')} so far)" if self.step else ""
        is_open = self.state not in CLOSED
        return (
            (f"damaged: {self.damage[0]}; see `orchestra doctor`" if self.damage else "")
            or self.reason
            or (f"begins {isoformat(self.due_ms)}" if self.state is SessionState.SCHEDULED else "")
            or self.parked
            or (awaits_person if self.approvals and is_open else "")
            or ("waits for a reply to its question" if self.questions and is_open else "")
            or self.trouble
            or " - ".join(
                filter(None, [self.activity, step] if self.state is not SessionState.FINISHED else [])
            )
        )

    @property
    def busy(self) -> bool:
        """True if the session has a run that has not ended."""
        return self.run != ""

    @property
    def pending(self) -> int:
        """Callbacks neither delivered nor dead."""
        return self.launched - self.delivered - self.dead


@dataclass(frozen=True, kw_only=True)
class SessionFilter:
    """The conditions under which a session is shown; an empty condition holds for all."""

    states: frozenset[str] = frozenset()
    agents: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None
    #: The least and the most that its own calls of models may have cost, in billionths of a US dollar.
    least_nano: int | None = None
    most_nano: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any], now_ms: int) -> SessionFilter:
        """Return the conditions that somebody gave in words: states and agents, since and until, cost_from and cost_to.

        Raises:
            InputError: a time or an amount is not valid.
        """
        since, until, least, most = map(given.get, ("since", "until", "cost_from", "cost_to"))
        return cls(
            states=frozenset(given.get("states", ())),
            agents=frozenset(given.get("agents", ())),
            since_ms=parse_past(since, now_ms=now_ms) if since else None,
            until_ms=parse_past(until, now_ms=now_ms) if until else None,
            least_nano=nano_of(least) if least else None,
            most_nano=nano_of(most) if most else None,
        )

    def fits(self, session: Session) -> bool:
        """Return True if the session is shown."""
        return (
            (not self.states or session.state.value in self.states)
            and (not self.agents or session.agent in self.agents)
            and (self.since_ms is None or session.created_ms >= self.since_ms)
            and (self.until_ms is None or session.created_ms <= self.until_ms)
            and (self.least_nano is None or session.used.nano_usd >= self.least_nano)
            and (self.most_nano is None or session.used.nano_usd <= self.most_nano)
        )

    def __bool__(self) -> bool:
        return self != SessionFilter()


@dataclass(frozen=True, kw_only=True)
class Tally:
    """Counts of callbacks over many sessions: launched = delivered + pending + dead."""

    #: Sessions.
    sessions: int
    #: Delegations with a callback.
    launched: int
    #: Callbacks that were delivered.
    delivered: int
    #: Callbacks that are neither delivered nor dead.
    pending: int
    #: Callbacks that will not be delivered, each with a reason.
    dead: int

    @classmethod
    def of(cls, members: Iterable[Any]) -> Tally:
        """Return the sum over sessions, or outlines of them."""
        counts = [(1, one.launched, one.delivered, one.pending, one.dead) for one in members]
        sums = map(sum, zip(*counts, strict=True)) if counts else (0,) * 5
        return cls(**dict(zip(("sessions", "launched", "delivered", "pending", "dead"), sums, strict=True)))

    def __str__(self) -> str:
        return f"{self.launched} launched = {self.delivered} delivered + {self.pending} pending + {self.dead} dead"


def with_those_above(members: Sequence[Any], fits: Callable[[Any], bool]) -> list[Any]:
    """Return those of a tree that fit, with the sessions above them."""
    parents = {one.id: one.parent for one in members}
    kept: set[str] = set()
    for one in filter(fits, members):
        above = one.id
        while above in parents and above not in kept:
            kept.add(above)
            above = parents[above]
    return [one for one in members if one.id in kept]


@dataclass(frozen=True, kw_only=True)
class Try:
    """A try of a run that ended without an answer."""

    #: failed: its agent raised; died: its worker process did; lost: its lease stood still; parked: it freed its slot.
    how: Literal["failed", "died", "lost", "parked"]
    reason: Encrypted[str]  #: of bounded length
    traceback: Encrypted[str]  #: likewise; empty where there is none
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
    stop: Encrypted[str]  #: reason for which it was asked to stop, or empty
    reason: Encrypted[str]  #: why it failed or was stopped
    awaits: tuple[str, ...] = ()  #: items that it stands still for: the end of a child, or a reply
    #: Groups of delegations whose deadline made this run, with children missing.
    overdue: tuple[str, ...] = ()
    failures: int = 0  #: how often its agent raised
    allowed: int = 0  #: how often it may; 0 while it has not
    died: int = 0  #: how often its worker process died
    claimable_ms: int = 0  #: when it may be tried again at the earliest; 0: at any time
    tries: tuple[Try, ...] = ()  #: the last ones that ended without an answer
    steps: int = 0  #: durable steps that it has recorded
    version: str = ""  #: the version of the definition that took it last
    #: The last of them, once it has ended, as `read_headers` takes them.
    last_steps: Annotated[str, Words(json=True)] = ""

    @property
    def external(self) -> bool:
        """True if a program outside the stack has the run and holds no lease."""
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
    reason: Encrypted[str]  #: why it is dead
    title: Encrypted[str] = ""
    callback: bool = True  #: False: a delegation that owes nothing
    at_ms: int = 0
    extra: JSON = field(default_factory=dict)

    @property
    def on_close(self) -> str:
        """Policy for its child when the parent is closed: stop, abandon, heir:<session>; empty: the parent's."""
        return str(self.extra.get("on_close") or "")

    @property
    def child_at_work(self) -> bool:
        """True if it is the item of a child that has not ended yet."""
        owed = self.state is ItemState.OWED
        return self.kind == "completion" and (owed or (not self.callback and not self.extra.get("over")))

    @property
    def large_texts(self) -> tuple[Mapping[str, JSON], ...]:
        """References to its text, if that is large, and to its attachments."""
        whole, attached = self.extra.get("whole"), self.extra.get("attachments") or {}
        return (*([whole] if whole else []), *attached.values())

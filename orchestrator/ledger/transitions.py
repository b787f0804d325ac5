"""Values that the ledger's transitions take and return: bounds, envelopes, launches, claims, outcomes, verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

from orchestrator.ledger.decode import Statement
from orchestrator.ledger.large_text import Seal
from orchestrator.ledger.model import JSON, Item, Run, Session, SessionState
from orchestrator.policy.budget import Budget


@dataclass(frozen=True, kw_only=True)
class JournalLimits:
    """Bounds of the durable steps of one run."""

    steps: int = 10_000
    bytes: int = 64 * 1024 * 1024  #: of all values together
    #: Values of more bytes are stored once beside the journal and referred to.
    inline_bytes: int = 16 * 1024


@dataclass(frozen=True, kw_only=True)
class TreeLimits:
    """Bounds that the ledger's transitions keep; some are settings of the same names."""

    max_children: int = 100_000
    max_depth: int = 50  #: generations of a tree, the root being the first
    max_tree_sessions: int = 1_000_000
    max_tree_runs: int = 10_000_000  #: then a tree may only finish what it has started
    open_questions: int = 50  #: of one session, approvals included, so that no agent floods who answers
    conversation_messages: int = 1_000_000
    resume_max_items: int = 500
    resume_max_bytes: int = 1_048_576
    #: Texts of more bytes are stored once and referred to.
    inline_bytes: int = 1_048_576
    max_lost_workers: int = 20
    max_process_deaths: int = 3
    redispatch_ms: int = 10_000
    redispatch_cap_ms: int = 600_000
    #: Runs of each session that keep what they found, so that it can be forked there.
    fork_runs: int = 10
    #: How long a question may stay open; 0: as long as it takes.
    question_ms: int = 0
    tree_ttl_ms: int = 7 * 86_400_000
    #: Replicas that must have a claim or a commit before it counts, and how long to wait for them.
    replicas: int = 0
    replica_timeout_ms: int = 1_000
    journal: JournalLimits = field(default_factory=JournalLimits)


@dataclass(frozen=True, kw_only=True)
class Outgoing:
    """A signed envelope that a transition publishes in the same atomic step."""

    data: bytes
    type: str
    priority: str
    message_id: str
    encrypted: bool = False  #: whether its body is encrypted, and so what it says is sealed in the ledger


#: Makes the envelopes that report the end of a session which its own run does not report: given the session, the
#: reason, and the part of the system that ends it. All are of one type and priority.
Report = Callable[[Session, str, str], Sequence[Outgoing]]


@dataclass(frozen=True, kw_only=True)
class Start:
    """A launch that the router takes, of a session that the ledger knows."""

    session: str
    message: str  #: id of the message that launched it
    sender: str  #: who signed it
    digest: str  #: of what was signed
    recipient: str  #: the agent
    conversation: str
    stream: str  #: key of the stream that the message stands in
    entry: str
    mark_ms: int  #: how long its duplicate mark is kept
    review_due_ms: int = 0  #: when it has to be done, if it is a review


@dataclass(frozen=True, kw_only=True)
class RunRef:
    """A run that is ready for a worker."""

    run: str
    session: str
    agent: str
    cause: str
    #: whether workers are to be told of it: they are not told again and again while all are busy
    wake: bool = field(default=True, compare=False)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """A running run as an observer sees it."""

    run: str
    session: str
    claim: str
    lease_version: str
    worker: str
    agent: str = ""


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
    #: The session of the same tree that hears of it and that it asks, instead of its parent; `none`: nobody.
    caller: str = ""
    caller_agent: str = ""  #: the agent of that session
    #: What it and everything below it may spend.
    budget: Budget | None = None
    task: str = ""  #: what is said of its task beside the description, as JSON; empty: nothing
    time_limit_ms: int = 0  #: how long it may take until it has ended; 0: as long as it takes
    after: Sequence[
        str
    ] = ()  #: sessions that must be completed before, which an encrypted envelope does not tell
    options: str = ""  #: what the session keeps of how it was launched, as JSON


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A root that was submitted, now or earlier under the same key."""

    session: str
    created: bool
    state: SessionState
    agent: str  #: of the session that is there
    other_prompt: bool = False  #: whether the session that is there was given another prompt


@dataclass(frozen=True, kw_only=True)
class Delegated:
    """A child that was launched, now or by an earlier try of the same run."""

    child: str
    created: bool


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to act for a run: valid until the run ends or its lease is lost."""

    run: str
    claim: str
    session: str
    parent: str
    root: str
    agent: str = ""  #: of the session
    seal: Seal | None = None  #: for whom its words are sealed; None: they are not

    @property
    def own_seal(self) -> Seal | None:
        """For whom is sealed what only the session itself reads."""
        return self.seal and self.seal.reading()


@dataclass(frozen=True, kw_only=True)
class ClaimedRun:
    """A run that is now held: everything its worker needs to know."""

    claim: Claim
    session: Session
    run: Run
    prompt: str
    state: JSON  #: what the agent saved in its last committed run
    items: tuple[Item, ...]
    texts: dict[str, str]  #: item id → text
    task: str = ""  #: what was said of its task beside the prompt, as JSON
    #: What is to be attested beside the items: what it is, the statement, the proof.
    own: tuple[tuple[str, Statement, str], ...] = ()
    damage: tuple[str, ...] = ()  #: what cannot be read of its records, a sentence each


@dataclass(frozen=True, kw_only=True)
class Slot:
    """A place of a worker that executes one run at a time, and what it serves."""

    name: str  #: no other slot has it: host, process, thread
    worker: str
    agents: tuple[
        str, ...
    ]  #: in an order that is fair: the first of two equally urgent runs' agents is served
    #: Of each of these the definition's version and what it says of deploys: `<version> <on_deploy>`.
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class PollRequest:
    """A slot's request for its next run, which may be answered in one round trip with the commit before it."""

    slot: Slot
    claim: str  #: a claim id of its own
    woken: bool = False  #: whether a message told the slot that there is work
    rank: int | None = None  #: 0 to 3: whether it is this priority's turn, which would starve otherwise
    asked: bool = False  #: whether it was asked for
    held: ClaimedRun | None = None
    more: tuple[str, ...] = ()  #: agents whose workers are to be told that they have more


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """Result of a lease renewal."""

    held: bool
    stop: str  #: why the run is asked to stop, or empty


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The end of a run, as its worker reports it."""

    status: Literal["completed", "failed", "stopped", "parked"]
    text: str  #: the answer, or what went wrong
    traceback: str = ""  #: of what the agent raised
    state: JSON = None  #: new saved state, or None to leave it as it is
    waiting: JSON = None  #: new waiting policy, or None to leave it as it is
    parked_ms: int = 0  #: how long a parked run waits before it is tried again
    attempts: int = 1  #: how often the agent may fail in all
    retry_ms: int = 0  #: how long a run that failed waits then before it may be claimed again
    provider: str = ""  #: the provider whose limits a parked run waits for, in one word
    steps_left_out: tuple[str, ...] = ()  #: recorded steps that this try did not ask for
    steps_failed: tuple[str, ...] = ()  #: steps whose errors the run failed with
    memory: str | None = None  #: what the executor keeps of the conversation, or None to leave it as it is
    told: Literal["completed", "partial-success"] = "completed"  #: how the parent is told of an answer
    body: str = ""  #: what the report of the end says beside the text, as JSON
    once: bool = False  #: whether the parent is not to get an answer again that it had in a message
    #: The key of the last effect that the ledger has acknowledged: it is there still, or the commit is refused.
    last_effect: str = ""
    #: The last item that was taken into the run, which likewise is there still.
    last_taken: str = ""
    #: What is attached to the answer, by name; dropped where the run does not end the session with an answer.
    attachments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class EndedRun:
    """A run whose agent has ended, for the commit."""

    claim: Claim
    outcome: Outcome
    _: KW_ONLY
    #: Makes the envelope that reports the end of the session; called when it has ended, at once with ``expect_over``.
    make_envelope: Callable[[], Outgoing]
    #: The session as it was when the run was claimed: its agent attests the end.
    about: Session | None = None
    expect_over: bool = False
    #: Answers the questions of these ids with the failure, if the run fails and carries any: the session then goes on
    #: without them. Returns False if that cannot be done.
    answer_questions: Callable[[Sequence[str]], bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Committed:
    """Result of a commit."""

    session_state: SessionState
    over: bool  #: the session has ended and its parent's callback queued
    first: bool  #: False when this very commit had been made before
    result_unpublished: bool  #: a root whose Celery result is to be settled now
    wake: tuple[
        str, ...
    ] = ()  #: agents whose workers are to be told: this end lets another run of its tree begin


@dataclass(frozen=True, kw_only=True)
class RetryLater:
    """A failed run that has attempts left: it is queued again."""

    failures: int


@dataclass(frozen=True, kw_only=True)
class TooLate:
    """The session's time had passed when its run answered: nothing was changed, and it has failed."""

    reason: str


#: What became of a run that was committed.
Settled = Committed | RetryLater | TooLate


@dataclass(frozen=True, kw_only=True)
class Flushed:
    """Result of a flush."""

    #: run: a resume was made; busy, empty, waits, closed: nothing to do now, and why; damaged: it cannot be read.
    outcome: Literal["run", "busy", "empty", "waits", "closed", "damaged"]
    dispatch: RunRef | None = None
    more: bool = False
    detail: str = ""  #: the busy run, the due time in ms, the session's state


@dataclass(frozen=True, kw_only=True)
class StopVerdict:
    """Result of a request to end a session."""

    #: ended: it has ended now; asked: a running run was asked; over: it had ended before; unknown: no such session.
    outcome: Literal["ended", "asked", "over", "unknown"]
    #: ended: the run that was queued and never starts, if there was one; asked: the run; over: the session's state.
    detail: str = ""
    #: Of a session that had finished before: how many below it were still at work, and are ended or asked to.
    below: int = 0

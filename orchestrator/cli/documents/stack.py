"""The documents about a stack: its agents, its keys, its health, its folders."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from orchestrator.cli.documents.base import Document, FindingDocument, Time


class DeadNotificationDocument(Document):
    """A notification that was given up."""

    notification: str = Field(validation_alias="id", description="Its id, for `retry` and `drop`.")
    target: str = Field(description="The target: `webhook` or `command`.")
    attempts: int = Field(description="Attempts that were made.")
    reason: str = Field(description="How the last one failed.")
    event: dict[str, Any] = Field(description="The CloudEvent.")


class DeadNotifications(Document):
    """Notifications that were given up."""

    notifications: tuple[DeadNotificationDocument, ...] = Field(description="The notifications.")


class DeliveredNotification(Document):
    """One attempt to deliver an event to a target by hand."""

    notification: str = Field(description="The dead notification; empty: a test event.")
    target: str = Field(description="The target.")
    delivered: bool = Field(description="Whether it was taken.")
    reason: str = Field(description="Why not; else empty.")


class DeliveredNotifications(Document):
    """Attempts to deliver events by hand."""

    deliveries: tuple[DeliveredNotification, ...] = Field(description="The attempts.")


class DroppedNotifications(Document):
    """Dead notifications that were dropped."""

    notifications: tuple[str, ...] = Field(description="Their ids.")


class Address(Document):
    """Where a stack is reached; passwords are ``***`` without ``--show-password``."""

    redis_url: str = Field(description="Redis or Valkey of the ledger.")
    broker_url: str = Field(description="The broker of Celery; the same where none is set.")


class AgentDocument(Document):
    """A registered agent."""

    agent: str = Field(validation_alias="name", description="Its name.")
    role: str = Field(description="`coordinator`, `specialist` or `orchestrator`.")
    tier: str | None = Field(description="`opus`, `sonnet` or `haiku`; null: none.")
    executor: str = Field(description="What runs it; `foreign`: an external program.")
    queue: str = Field(description="The Celery queue of its runs.")
    attempts: int = Field(description="How often a run may fail before its session fails.")
    backoff: str = Field(description="How the wait between two tries grows: `exponential` or `linear`.")
    backoff_s: float = Field(description="Seconds of the first wait.")
    backoff_max_s: float = Field(description="Seconds of the longest wait.")
    time_limit_s: float | None = Field(
        description="Seconds that one run may take; null: as the settings say."
    )
    runs_at_once: int | None = Field(
        description="How many of its runs are executed at once by its definition; null: as the settings say."
    )
    escalates_to: str = Field(description="Who its errors and escalations go to; empty: its parent.")
    may_send_to: tuple[str, ...] | None = Field(
        description="Only to these it may send; null: as the rules say."
    )
    accepts_from: tuple[str, ...] | None = Field(
        description="Only from these it accepts; null: as the rules say."
    )
    tags: tuple[str, ...] = Field(description="What it is found by.")
    description: str = Field(description="What it is for.")
    version: str = Field(
        description="The version of its definition, as a worker announced it last; empty: it has none."
    )
    on_deploy: Literal["latest", "pin", "refuse"] = Field(
        description="What becomes of its sessions when its definition has another version."
    )
    encrypt: bool = Field(description="Whether all its messages are encrypted, sent and received.")
    versions: dict[str, int] = Field(
        default_factory=dict,
        description="Each version that living workers have, and how many workers that are.",
    )
    served: bool | None = Field(
        default=None,
        description="Whether a living worker serves it now; null: not known, as of a program from outside.",
    )
    seen_ms: int | None = Field(
        default=None,
        description="When a worker announced it last, in milliseconds since the epoch; null: a program from outside.",
    )
    at_work: int | None = Field(
        default=None, description="How many of its runs are at work; null: not asked."
    )
    limit: int | None = Field(default=None, description="How many may be at once; null: any number.")
    paused: Literal["agent", "queue"] | None = Field(
        default=None, description="Whether the agent or its queue is paused; null: neither is."
    )


class Agents(Document):
    """The registered agents."""

    agents: tuple[AgentDocument, ...] = Field(description="The agents by name.")


class AgentLimitDocument(Document):
    """How many runs of an agent may be at work at once."""

    agent: str = Field(description="The agent.")
    at_work: int = Field(description="How many are.")
    limit: int | None = Field(description="How many may be; null: any number.")
    set_by: str = Field(
        description="`operator`: by `orchestra limit`; `definition`: by the agent or the settings; empty: nobody."
    )
    paused: Literal["agent", "queue"] | None = Field(
        description="Whether the agent or its queue is paused; null: neither is."
    )


class TreeLimitDocument(Document):
    """How many runs of a tree may be at work at once."""

    root: str = Field(description="The root session of the tree.")
    at_work: int = Field(description="How many are.")
    limit: int | None = Field(description="How many may be; null: any number.")
    blocked: int = Field(description="Ready runs that wait for one of these to end.")


class LimitsDocument(Document):
    """The limits of runs at once, and what is paused."""

    agents: tuple[AgentLimitDocument, ...] = Field(description="The agents that have a limit or are paused.")
    each_tree: int | None = Field(
        description="How many runs of a tree without a limit of its own may be at work at once; null: any number."
    )
    trees: tuple[TreeLimitDocument, ...] = Field(
        description="The trees that have a limit of their own, or blocked runs."
    )
    paused_queues: tuple[str, ...] = Field(description="The queues that are paused.")


class Paused(Document):
    """What became of an agent or a queue that was to be paused or to go on."""

    kind: Literal["agent", "queue"] = Field(description="What it is.")
    name: str = Field(description="Its name.")
    paused: bool = Field(description="Whether it is paused now.")
    changed: bool = Field(description="Whether it was not so before.")
    agents: tuple[str, ...] = Field(description="The agents whose runs this concerns.")


class Withdrawn(Document):
    """An agent that is no longer registered."""

    agent: str = Field(description="Its name.")
    registered: bool = Field(description="False.")


class KeyDocument(Document):
    """A key of an agent."""

    key_id: str = Field(description="Its id.")
    agent: str = Field(description="Whose key it is.")
    use: str = Field(description="What it is for: `sign` or `encrypt`.")
    algorithm: str = Field(description="Its algorithm.")
    state: str = Field(description="`current`, `rotated` or `revoked`.")
    private: bool = Field(description="Whether the private half is in this data folder.")
    created: Time = Field(validation_alias="created_ms", description="When it was made.")
    retired: Time = Field(
        validation_alias="retired_ms", description="When it was rotated out; null: it was not."
    )
    revoked: Time = Field(validation_alias="revoked_ms", description="When it was revoked; null: it was not.")


class Keys(Document):
    """Keys of agents."""

    keys: tuple[KeyDocument, ...] = Field(
        description="The keys: of `list` all, else those that were changed."
    )


class DoctorFinding(FindingDocument):
    """Something that the doctor found."""

    session: str = Field(description="The session concerned; empty: the stack as a whole.")
    subject: str = Field(description="The callback, run or service concerned; else empty.")


class BlockerDocument(Document):
    """What one pending thing waits for."""

    session: str = Field(description="The session concerned.")
    subject: str = Field(description="The callback or other item that is pending, or the session itself.")
    waits_for: str = Field(description="What it waits for, in words.")
    mover: str = Field(description="What will move it: a worker, a timer, an entry, a policy, a person.")
    by: str = Field(description="By when, in words; empty: only an agent's own work decides.")


class TallyDocument(Document):
    """The promise in numbers: launched = delivered + pending + dead."""

    sessions: int = Field(description="Sessions.")
    launched: int = Field(description="Delegations with a callback.")
    delivered: int = Field(description="Callbacks that were delivered.")
    pending: int = Field(description="Callbacks that are neither delivered nor dead.")
    dead: int = Field(description="Callbacks that will not be delivered, each with a reason.")


class DiagnosisDocument(Document):
    """What the doctor found."""

    holds: bool = Field(description="Whether the promise holds.")
    promise: str = Field(description="The promise in numbers, as one line.")
    tally: TallyDocument = Field(description="The promise in numbers.")
    trees: int = Field(description="Trees that were looked at.")
    full: bool = Field(description="Whether everything was looked at, and not only what changed.")
    at_rest: int = Field(description="Trees at rest that were not looked at.")
    audited: bool = Field(description="Whether launches were compared with the audit trail.")
    findings: tuple[DoctorFinding, ...] = Field(
        description="What breaks the promise, is stuck or deserves a look."
    )
    waits: tuple[BlockerDocument, ...] = Field(description="What is pending, and what will move it.")


class HeldUpBy(Document):
    """A session that another one waits for."""

    session: str = Field(description="The session.")
    agent: str = Field(description="The agent that has it.")
    state: str = Field(description="Where it stands.")
    wait: BlockerDocument | None = Field(description="What it waits for itself; null: nothing.")


class Why(Document):
    """What a session waits for."""

    session: str = Field(description="The session.")
    agent: str = Field(description="The agent that has it.")
    state: str = Field(description="Where it stands.")
    reason: str = Field(description="Why it failed, was stopped or deleted; else empty.")
    wait: BlockerDocument | None = Field(description="What it waits for; null: nothing.")
    held_up_by: tuple[HeldUpBy, ...] = Field(
        description="The way down to the session that holds everything up, which is the last."
    )
    findings: tuple[DoctorFinding, ...] = Field(description="What breaks the promise in it.")


class PromptDocument(Document):
    """What a model reads before its task."""

    agent: str = Field(description="The agent.")
    prompt: str = Field(description="The text.")


class ProjectDocument(Document):
    """A project that was written."""

    folder: str = Field(description="Where it is.")
    kind: str = Field(description="What its agents are: `python`, `model` or `command`.")
    files: tuple[str, ...] = Field(description="Its files, by name.")
    next: tuple[str, ...] = Field(description="The commands to run next, in order.")


class WorktreeDocument(Document):
    """The worktree of a session."""

    session: str = Field(description="The session.")
    agent: str = Field(description="Its agent.")
    path: str = Field(description="Where the files are.")
    branch: str = Field(description="The branch.")
    base: str = Field(description="The commit that it began at.")
    changed_files: int | None = Field(
        description="How many files differ from the base, committed or not; null: git does not say."
    )
    kept_because: str = Field(description="Why it stays; empty: it may go.")
    created_at: Time = Field(description="When it was made.")


class WorktreeList(Document):
    """The worktrees of a data folder."""

    worktrees: tuple[WorktreeDocument, ...] = Field(description="The worktrees, the oldest first.")


class RemovedWorktree(Document):
    """A worktree that is gone."""

    session: str = Field(description="The session.")
    branch: str = Field(description="The branch that has everything; empty: it was removed, too.")

"""The documents about a stack: its agents, its keys, its health, its folders, the doctor's findings."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from orchestrator.agents.registry import AgentRecord
from orchestrator.cli.documents.base import Document, prints, show_as_text
from orchestrator.doctor.findings import Blocker, Diagnosis, Problem
from orchestrator.keyring.certificates import KeyCertificate, Use
from orchestrator.ledger.concurrency import AgentLimit, TreeLimit
from orchestrator.ledger.model import Session, Tally
from orchestrator.worker.worktrees import Worktree

show_as_text(Path)
show_as_text(Use)


@prints(AgentRecord, without="answer", name="agent")
class AgentDocument(Document):
    """A registered agent."""

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


@prints(AgentLimit, without="since_ms")
class AgentLimitDocument(Document):
    """Limit on the runs of an agent that execute at once."""


@prints(TreeLimit)
class TreeLimitDocument(Document):
    """Limit on the runs of a tree that execute at once."""


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
    """Result of pausing or unpausing an agent or a queue."""

    kind: Literal["agent", "queue"] = Field(description="What it is.")
    name: str = Field(description="Its name.")
    paused: bool = Field(description="Whether it is paused now.")
    changed: bool = Field(description="Whether it was not so before.")
    agents: tuple[str, ...] = Field(description="The agents whose runs this concerns.")


class Withdrawn(Document):
    """An agent that is no longer registered."""

    agent: str = Field(description="Its name.")
    registered: bool = Field(description="False.")


@prints(KeyCertificate, only="key_id agent use algorithm state created_ms retired_ms revoked_ms")
class KeyDocument(Document):
    """A key of an agent."""

    private: bool = Field(description="Whether the private half is in this data folder.")


class Keys(Document):
    """Keys of agents."""

    keys: tuple[KeyDocument, ...] = Field(
        description="The keys: of `list` all, else those that were changed."
    )


class PromptDocument(Document):
    """Text that a model reads before its task."""

    agent: str = Field(description="The agent.")
    prompt: str = Field(description="The text.")


class ConsoleAddress(Document):
    """The address of the console that runs."""

    address: str = Field(description="Its address, with a token that lets its bearer in once.")


class ProjectDocument(Document):
    """A project that was written."""

    folder: str = Field(description="Where it is.")
    kind: str = Field(description="What its agents are: `python`, `model` or `command`.")
    files: tuple[str, ...] = Field(description="Its files, by name.")
    next: tuple[str, ...] = Field(description="The commands to run next, in order.")


@prints(Worktree, only="session agent path branch base created_ms", created_ms="created_at")
class WorktreeDocument(Document):
    """The worktree of a session."""

    changed_files: int | None = Field(
        description="How many files differ from the base, committed or not; null: git does not say."
    )
    kept_because: str = Field(description="Why it stays; empty: it may go.")


class WorktreeList(Document):
    """The worktrees of a data folder."""

    worktrees: tuple[WorktreeDocument, ...] = Field(description="The worktrees, the oldest first.")


class RemovedWorktree(Document):
    """A worktree that is gone."""

    session: str = Field(description="The session.")
    branch: str = Field(description="The branch that has everything; empty: it was removed, too.")


@prints(Problem)
class DoctorFinding(Document):
    """Something that the doctor found."""


@prints(Blocker)
class BlockerDocument(Document):
    """The thing for which something pending waits."""


@prints(Tally)
class TallyDocument(Document):
    """Counts of callbacks: launched = delivered + pending + dead."""


@prints(Diagnosis, only="holds promise tally trees full at_rest audited findings waits")
class DiagnosisDocument(Document):
    """Findings of the doctor."""


@prints(Session, only="id agent state", id="session")
class SessionPlace(Document):
    """A session, and where it stands."""


class HeldUpBy(SessionPlace):
    """A session that another one waits for."""

    wait: BlockerDocument | None = Field(description="What it waits for itself; null: nothing.")


class Why(SessionPlace):
    """The thing for which a session waits."""

    reason: str = Field(description="Why it failed, was stopped or deleted; else empty.")
    wait: BlockerDocument | None = Field(description="What it waits for; null: nothing.")
    held_up_by: tuple[HeldUpBy, ...] = Field(
        description="The way down to the session that holds everything up, which is the last."
    )
    findings: tuple[DoctorFinding, ...] = Field(description="What is wrong with it.")

"""The documents about sessions: what was submitted, how it stands, what became of it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from orchestrator.cli.documents.base import Document, Time
from orchestrator.cli.documents.budgets import CostDocument


class Submitted(Document):
    """A session that was submitted."""

    session: str = Field(description="Its id.")
    agent: str = Field(description="The agent that has it.")
    new: bool = Field(description="False: the key was used before, and this is the session that it made.")


class Answer(Document):
    """The answer of a session, or its state."""

    session: str = Field(description="Its id.")
    state: str = Field(
        description="Where it stands: `scheduled`, `pending`, `running`, `idle`, `finished`, `failed`, `stopped` or `deleted`; `damaged`: its record cannot be read."
    )
    result: str | None = Field(default=None, description="Its final answer; null: it has none.")
    incomplete: str | None = Field(
        default=None,
        description="What is missing of the answer: it was cut off at a limit, or its agent reports a partial success; null: nothing.",
    )
    error: str | None = Field(
        default=None, description="Why there is no answer, or none yet; null: nothing is wrong."
    )


class LiveText(Document):
    """One piece of what a session is writing."""

    position: str = Field(description="Where it is; `--after` reads on behind it.")
    kind: Literal["begin", "text", "call", "result", "replaced"] = Field(
        description="`begin`: an answer of the model begins; `text`: more of it; `call`, `result`: of a tool; `replaced`: the run is tried again, and what came since `since` is void."
    )
    run: str = Field(description="The run that writes it.")
    text: str = Field(description="Of `text`: the piece; of `result`: its beginning.")
    tool: str = Field(description="Of `call` and `result`: the tool.")
    since: str = Field(description="Of `replaced`: the position of the first piece that is void.")


class Resumed(Document):
    """A prompt that was given to a session."""

    session: str = Field(description="The session.")
    item: str = Field(description="The id of the prompt in its queue.")


class Unpinned(Document):
    """A session that workers with any version of its agent may go on with."""

    session: str = Field(description="The session.")
    changed: bool = Field(description="False: it was bound to no version.")


class Ended(Document):
    """What became of a session that was to be stopped or deleted."""

    session: str = Field(description="The session.")
    outcome: str = Field(
        description="`ended`: at once; `asked`: its running agent was asked to stop; `over`: it had ended before."
    )
    run: str = Field(
        description="The run that was asked to stop, or that was queued and never starts; else empty."
    )
    below: int = Field(description="Sessions below a finished session that are asked to stop.")
    stopping: int = Field(description="Sessions below it that are still at work and stop, too.")
    state: str = Field(description="Where the session stands now.")
    reason: str = Field(description="Why it failed, was stopped or deleted; else empty.")
    agent_ended: Literal["by itself", "by force", "lost", "done"] | None = Field(
        description="How an agent ended that was asked to stop: as it was asked to, killed, with its worker, or it was "
        "done before; null: not known, or not waited for."
    )


class SessionDocument(Document):
    """A session."""

    session: str = Field(validation_alias="id", description="Its id.")
    agent: str = Field(description="The agent that has it.")
    state: str = Field(
        description="Where it stands: `scheduled`, `pending`, `running`, `idle`, `finished`, `failed`, `stopped` or `deleted`; `damaged`: its record cannot be read."
    )
    title: str = Field(description="What people call it.")
    parent: str = Field(description="The session that launched it; empty: it is a root.")
    root: str = Field(description="The root of its tree.")
    depth: int = Field(description="Its generation; a root has 0.")
    run: str = Field(description="Its run that is queued or running; else empty.")
    busy: bool = Field(description="Whether it has a run that is queued or running.")
    runs: int = Field(description="Runs so far.")
    launched: int = Field(description="Delegations that bring it a callback.")
    delivered: int = Field(description="Callbacks that were delivered to it.")
    pending: int = Field(description="Callbacks that are neither delivered nor dead.")
    dead: int = Field(description="Callbacks that will not be delivered, each with a reason.")
    owed: int = Field(description="Children whose callbacks are outstanding.")
    children: int = Field(description="All its delegations, also those without a callback.")
    progress: int | None = Field(description="Per cent done, as its agent says; null: it does not say.")
    activity: str = Field(description="What it does now, as its agent says; else empty.")
    reason: str = Field(description="Why it failed, was stopped or deleted; else empty.")
    priority: str = Field(description="The priority of its task.")
    created: Time = Field(validation_alias="created_ms", description="When it was launched.")
    updated: Time = Field(validation_alias="updated_ms", description="When it last changed.")
    ended: Time = Field(validation_alias="ended_ms", description="When it ended; null: it has not.")
    due: Time = Field(
        validation_alias="due_ms", description="When it was to begin; null: it was not scheduled."
    )
    correlation_id: str = Field(validation_alias="correlation", description="Its conversation.")
    message_id: str = Field(validation_alias="message", description="The message that launched it.")
    chain: tuple[str, ...] = Field(
        description="Message-ids from its launch back to the root's, nearest first."
    )
    callback: bool = Field(description="Whether its end is a callback to its parent.")
    task_id: str = Field(
        validation_alias="task",
        description="The Celery task under which a root's result is stored; else empty.",
    )
    delegator: str = Field(description="The agent or program that gave it its task; empty: a user did.")
    waiting: dict[str, Any] = Field(
        description='Its waiting policies by group of delegations; `""` is the default group.'
    )
    questions: tuple[str, ...] = Field(
        description="Ids of its questions that have no reply yet, approvals included."
    )
    approvals: tuple[str, ...] = Field(description="Those of them that only a person answers.")
    close_policy: str = Field(
        description="What becomes of its children when it ends: `stop`, `abandon`, `heir:SESSION`."
    )
    parked: str = Field(description="Why its start waits, in words; else empty.")
    entry: str = Field(
        description="Where its launch stands in the streams, `type:priority:entry`; else empty."
    )
    trouble: str = Field(
        description="How the last try of its present run ended, while that is to be tried again; else empty."
    )
    steps: int = Field(description="Durable steps that its runs recorded.")
    step: str = Field(description="The durable step that was recorded last; else empty.")
    budgets: tuple[str, ...] = Field(
        description="Sessions whose budgets its calls of models count against, the root first; itself, if it has one."
    )
    used: CostDocument = Field(description="What its own calls of models have cost so far.")
    forked_from: str = Field(description="The session that it is a fork of; else empty.")
    forked_at: str = Field(description="The run of that session at which it begins; else empty.")
    version: str = Field(
        description="The version of its agent's definition that it began with, or of its latest run if `on_deploy` is `latest`; empty before its first run."
    )
    on_deploy: Literal["latest", "pin", "refuse"] = Field(
        description="What becomes of it when its agent has another version: any worker takes it, only one that has its version does, or it fails."
    )
    sealed: bool = Field(description="Whether its prompt is an encrypted message from outside.")
    encrypted: bool = Field(
        description="Whether its texts are encrypted in messages and sealed in the ledger."
    )
    damage: tuple[str, ...] = Field(description="What cannot be read of its record in the ledger.")

    @field_validator("progress", mode="before")
    @classmethod
    def _known(cls, value: int | None) -> int | None:
        return None if value is None or value < 0 else value


class Sessions(Document):
    """Sessions: of `tree` and `watch`, each after its parent."""

    sessions: tuple[SessionDocument, ...] = Field(description="The sessions.")


class EventDocument(Document):
    """Something that happened in a session."""

    at: str = Field(description="When, ISO 8601, UTC.")
    what: str = Field(
        description="`launched`, `run`, `attempt` (one that gave no answer), `step` (a durable step, without what it gave), `run ended`, `delegated`, `callback`, `prompt`, `answer` (with `--text`), `ended`, …."
    )
    text: str = Field(description="What happened, in words.")
    run: str = Field(description="The run concerned; else empty.")
    about: str = Field(description="The other session concerned; else empty.")
    detail: str = Field(
        description="More lines, such as the traceback of a failed attempt, or with `--text` the text; else empty."
    )


class Events(Document):
    """What happened in a session."""

    session: str = Field(description="The session.")
    events: tuple[EventDocument, ...] = Field(description="What happened, oldest first.")


class Delegated(Document):
    """A session that was launched."""

    session: str = Field(description="Its id.")
    status: str | None = Field(
        default=None,
        description="How it ended: `completed` or `failed`; null: it has not, or was not waited for.",
    )
    text: str | None = Field(default=None, description="Its answer or why it failed; null: as for `status`.")


class AssignmentDocument(Document):
    """A task of a plan."""

    role: str = Field(description="The agent that gets it.")
    task: str = Field(description="What the agent is to do.")
    sequence: int = Field(description="Its place in the order.")
    caller: str | None = Field(description="The agent that gets its callbacks; null: nobody does.")


class WaveDocument(Document):
    """Assignments that run at the same time, after those of the wave before."""

    sequence: int = Field(description="Their place in the order.")
    assignments: tuple[AssignmentDocument, ...] = Field(
        description="The assignments, in the order of the plan."
    )


class PlanDocument(Document):
    """A plan that was read and not carried out."""

    waves: tuple[WaveDocument, ...] = Field(description="Its waves, the first one first.")

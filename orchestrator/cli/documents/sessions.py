"""The documents about sessions: what was submitted, how it stands, what it asks and costs, what became of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, field_validator

from orchestrator.cli.documents.base import Document, prints
from orchestrator.client.approvals import Approval
from orchestrator.client.history import Event
from orchestrator.ledger.live_text import LiveEvent
from orchestrator.ledger.model import Session
from orchestrator.policy.budget import NANO, BudgetState, Cost
from orchestrator.policy.callback import Callback
from orchestrator.policy.plan import Assignment, Wave


@prints(Cost, without="nano_usd", also="usd")
class CostDocument(Document):
    """Cost of calls of models."""


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


@prints(LiveEvent)
class LiveText(Document):
    """A piece of the text that a session is writing."""


class Resumed(Document):
    """A prompt that was given to a session."""

    session: str = Field(description="The session.")
    item: str = Field(description="The id of the prompt in its queue.")


class Ended(Document):
    """Result of stopping or deleting a session."""

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


@prints(
    Session,
    without="task_id planned caller last_said report proof task_proof",
    also="busy pending approvals",
    id="session",
    correlation="correlation_id",
    message="message_id",
    task="task_id",
    options="launched_with",
)
class SessionDocument(Document):
    """A session."""

    progress: int | None = Field(description="Per cent done, as its agent says; null: it does not say.")
    launched_with: dict[str, Any] = Field(
        validation_alias="options",
        description="What it was launched with beside its task, such as `group` and `time_limit_s`, as it was given.",
    )

    @field_validator("progress", mode="before")
    @classmethod
    def _known(cls, value: int | None) -> int | None:
        return None if value is None or value < 0 else value

    @field_validator("launched_with", mode="before")
    @classmethod
    def _options(cls, value: Any) -> Any:
        return (json.loads(value) if value else {}) if isinstance(value, str) else value


class Sessions(Document):
    """Sessions: of `tree` and `watch`, each after its parent."""

    sessions: tuple[SessionDocument, ...] = Field(description="The sessions.")


@prints(Event)
class EventDocument(Document):
    """Something that happened in a session."""


class Events(Document):
    """Events of a session."""

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


@prints(Assignment)
class AssignmentDocument(Document):
    """A task of a plan."""


@prints(Wave)
class WaveDocument(Document):
    """Assignments that run at the same time, after those of the wave before."""


class PlanDocument(Document):
    """A plan that was read and not carried out."""

    waves: tuple[WaveDocument, ...] = Field(description="Its waves, the first one first.")


class ResourceDocument(Document):
    """A limit of a budget."""

    limit: float = Field(description="The most that may be spent.")
    spent: float = Field(description="What was spent.")
    reserved: float = Field(description="What is set aside for calls that are not finished.")
    left: float = Field(description="What further calls may take.")


class BudgetDocument(Document):
    """Budget of a session and everything below it, or of all sessions of an agent together."""

    session: str = Field(description="The session; `agent NAME` for the budget of an agent.")
    limits: dict[Literal["requests", "tokens", "usd"], ResourceDocument] = Field(
        description="What is limited, and how it stands."
    )
    agents: dict[str, dict[Literal["requests", "tokens", "usd"], float]] = Field(
        description="What each agent spent of it."
    )


class BudgetsDocument(Document):
    """The budgets that a session counts against."""

    session: str = Field(description="The session.")
    budgets: tuple[BudgetDocument, ...] = Field(
        description="The budgets, the root's first, the agent's last."
    )

    @classmethod
    def of_states(cls, session: str, states: Mapping[str, BudgetState]) -> Self:
        """Return the document of budgets as they stand."""
        return cls.of(
            {"session": session, "budgets": [_budget(whose, state) for whose, state in states.items()]}
        )


def _budget(session: str, state: BudgetState) -> dict[str, Any]:
    def number(resource: str, value: int | None) -> float:
        return (value or 0) / (NANO if resource == "nano" else 1)

    names = {"requests": "requests", "tokens": "tokens", "nano": "usd"}
    return {
        "session": session,
        "limits": {
            names[resource]: {
                "limit": number(resource, limit),
                "spent": number(resource, state.spent.get(resource)),
                "reserved": number(resource, state.reserved.get(resource)),
                "left": number(resource, state.left(resource)),
            }
            for resource, limit in state.limits.items()
        },
        "agents": {
            agent: {names[resource]: number(resource, used) for resource, used in spent.items()}
            for agent, spent in state.users.items()
        },
    }


@prints(Callback, only="id session agent title kind priority text context", id="question")
class QuestionDocument(Document):
    """A question that has no reply yet."""


class Replied(Document):
    """A question that was answered."""

    session: str = Field(description="The session that asked.")
    question: str = Field(description="The question.")


@prints(Approval)
class ApprovalDocument(Document):
    """Something that waits for a person's yes or no."""


class Questions(Document):
    """Questions and approvals that wait for a person, oldest first."""

    questions: tuple[QuestionDocument, ...] = Field(description="The open questions.")
    approvals: tuple[ApprovalDocument, ...] = Field(description="The open approvals.")


class Decided(Document):
    """Approvals that were answered."""

    decided: tuple[ApprovalDocument, ...] = Field(description="The approvals, as they were asked.")
    approved: bool = Field(description="Whether they were approved.")
    comment: str = Field(description="The comment; else empty.")


class Raised(Document):
    """Something that was raised or asked."""

    reply: str | None = Field(description="The reply; null: none came, or it was not waited for.")

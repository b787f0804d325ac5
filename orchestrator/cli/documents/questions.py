"""The documents about what agents ask."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from orchestrator.cli.documents.base import Document, Time


class QuestionDocument(Document):
    """A question that has no reply yet."""

    question: str = Field(validation_alias="id", description="Its id, for `orchestra reply`.")
    session: str = Field(description="The session that asked.")
    agent: str = Field(description="Its agent.")
    title: str = Field(description="What people call that session.")
    kind: str = Field(
        description="`query`, `blocker`, `clarification`, `error`, or a word of the agent's own."
    )
    priority: str = Field(description="Its priority.")
    text: str = Field(description="What is asked.")
    context: Any = Field(description="What the agent added to it, as JSON; null: nothing.")


class Questions(Document):
    """The open questions, oldest first."""

    questions: tuple[QuestionDocument, ...] = Field(description="The questions.")


class Replied(Document):
    """A question that was answered."""

    session: str = Field(description="The session that asked.")
    question: str = Field(description="The question.")


class ApprovalDocument(Document):
    """Something that waits for a person's yes or no."""

    id: str = Field(description="Its id, for `approve` and `deny`.")
    session: str = Field(description="The session that asks.")
    root: str = Field(description="The root of its tree.")
    depth: int = Field(description="The session's generation; a root has 0.")
    agent: str = Field(description="The agent that asks.")
    title: str = Field(description="What people call the session.")
    run: str = Field(description="The run that asked.")
    tool: str = Field(description="What is to be called or done.")
    arguments: dict[str, Any] = Field(description="With what.")
    digest: str = Field(description="SHA-256 of tool and arguments: an answer is for nothing else.")
    reason: str = Field(description="Why it asks, in its own words; else empty.")
    asked: Time = Field(validation_alias="asked_ms", description="When it was asked.")
    expires: Time = Field(validation_alias="expires_ms", description="When the default counts; null: never.")
    default: Literal["deny", "approve"] = Field(description="What counts when nobody has answered by then.")
    fault: str = Field(description="Why it cannot be approved: its agent does not vouch for it; else empty.")


class ApprovalList(Document):
    """What waits for a person, oldest first."""

    approvals: tuple[ApprovalDocument, ...] = Field(description="The approvals.")


class Decided(Document):
    """Approvals that were answered."""

    decided: tuple[ApprovalDocument, ...] = Field(description="The approvals, as they were asked.")
    approved: bool = Field(description="Whether they were approved.")
    comment: str = Field(description="The comment; else empty.")


class Raised(Document):
    """Something that was raised or asked."""

    reply: str | None = Field(description="The reply; null: none came, or it was not waited for.")

"""The documents of commands that a program runs for its session."""

from __future__ import annotations

from pydantic import Field

from orchestrator.cli.documents.base import Document


class Raised(Document):
    """Something that was raised or asked."""

    reply: str | None = Field(description="The reply; null: none came, or it was not waited for.")


class PromptDocument(Document):
    """What a model is told before its task."""

    agent: str = Field(description="The agent.")
    prompt: str = Field(description="The text.")


class Delegated(Document):
    """A session that was launched."""

    session: str = Field(description="Its id.")
    status: str | None = Field(
        default=None,
        description="How it ended: `completed` or `failed`; null: it has not, or was not waited for.",
    )
    text: str | None = Field(default=None, description="Its answer or why it failed; null: as for `status`.")

"""The document about a plan: its waves, as they would be carried out."""

from __future__ import annotations

from pydantic import Field

from orchestrator.cli.documents.base import Document


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

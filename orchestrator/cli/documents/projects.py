"""The document about a new project."""

from __future__ import annotations

from pydantic import Field

from orchestrator.cli.documents.base import Document


class ProjectDocument(Document):
    """A project that was written."""

    folder: str = Field(description="Where it is.")
    kind: str = Field(description="What its agents are: `python`, `model` or `command`.")
    files: tuple[str, ...] = Field(description="Its files, by name.")
    next: tuple[str, ...] = Field(description="The commands to run next, in order.")

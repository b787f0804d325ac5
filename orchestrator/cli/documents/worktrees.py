"""The documents about the git worktrees of sessions."""

from __future__ import annotations

from pydantic import Field

from orchestrator.cli.documents.base import Document, Time


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

"""The documents of the doctor: what it found, and what a session waits for."""

from __future__ import annotations

from pydantic import Field

from orchestrator.cli.documents.base import Document, prints
from orchestrator.doctor.findings import Blocker, Diagnosis, Problem, Tally


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


class HeldUpBy(Document):
    """A session that another one waits for."""

    session: str = Field(description="The session.")
    agent: str = Field(description="The agent that has it.")
    state: str = Field(description="Where it stands.")
    wait: BlockerDocument | None = Field(description="What it waits for itself; null: nothing.")


class Why(Document):
    """The thing for which a session waits."""

    session: str = Field(description="The session.")
    agent: str = Field(description="The agent that has it.")
    state: str = Field(description="Where it stands.")
    reason: str = Field(description="Why it failed, was stopped or deleted; else empty.")
    wait: BlockerDocument | None = Field(description="What it waits for; null: nothing.")
    held_up_by: tuple[HeldUpBy, ...] = Field(
        description="The way down to the session that holds everything up, which is the last."
    )
    findings: tuple[DoctorFinding, ...] = Field(description="What is wrong with it.")

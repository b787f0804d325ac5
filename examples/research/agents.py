"""A question is split into sub-questions, each is researched in a folder of sources, a critic reads what was found.

lead ── researcher (one for each sub-question; reads the folder `sources/`)
     └─ critic     (says what is not supported by a source)
"""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, Field

from orchestrator import model_agent

SOURCES = Path(__file__).parent / "sources"


class Finding(BaseModel):
    """One thing that a source says."""

    claim: str
    source: str = Field(description="the name of the file that says so")


class Report(BaseModel):
    """What the lead answers with."""

    question: str
    answer: str
    findings: list[Finding]
    doubts: list[str] = Field(description="what the critic found unsupported")


def list_sources() -> list[str]:
    """List the names of the sources."""
    return sorted(path.name for path in SOURCES.glob("*.md"))


def read_source(name: str) -> str:
    """Read one source.

    Args:
        name: its name, as list_sources gives it.
    """
    if name not in list_sources():
        raise ValueError(f"there is no source {name!r}; list_sources names them")
    return (SOURCES / name).read_text(encoding="utf-8")


lead = model_agent(
    "lead",
    role="coordinator",
    tier="opus",
    description="Answers a question with a report.",
    instructions=(
        "You lead research. Split the question into two or three sub-questions and delegate each to `researcher`, "
        "all at once, with wait=true. Give what they found to `critic`. Then write the report."
    ),
    output=Report,
)
researcher = model_agent(
    "researcher",
    tier="sonnet",
    description="Answers one sub-question from the folder of sources.",
    instructions="You research. Read the sources, answer the sub-question in one paragraph, name the source of each claim.",
    tools=[list_sources, read_source],
)
critic = model_agent(
    "critic",
    tier="haiku",
    description="Says which claims no source supports.",
    instructions="You criticise. Compare each claim with its source. List, one a line, what is not supported; or say: none.",
    tools=[read_source],
)

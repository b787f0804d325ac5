"""A model judges what the agents of the demo find in a source tree.

judge (a model) ── lead (the demo's coordinator) ── reviewer (one for each module)
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from orchestrator import model_agent


class Verdict(BaseModel):
    """What the judge answers with."""

    verdict: Literal["accept", "change"]
    reason: str
    worst: list[str] = Field(description="the modules to begin with, worst first")


judge = model_agent(
    "judge",
    role="coordinator",
    tier="opus",
    description="Judges a source tree by what the review of its modules finds.",
    instructions=(
        "You judge code reviews. Delegate the folder that you are given, as it stands, to `lead` with wait=true. "
        "It has each module reviewed. If its report was cut, read on with read_result. Then give your verdict."
    ),
    output=Verdict,
)

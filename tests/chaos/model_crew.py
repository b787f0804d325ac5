"""Model agents to be killed: a lead that has a tool with an effect and two helpers, and experts that are asked again."""

from __future__ import annotations

import os
import time
from pathlib import Path

from orchestrator import agent, model_agent
from orchestrator.worker.context.context import Context

MARKS = Path(os.environ.get("CHAOS_MARKS", "."))


def note(ctx: Context, text: str) -> str:
    """Write something down, once for each step: its key is the name of the file."""
    (MARKS / f"note-{ctx.step_key.replace('/', '_')}").write_text(text)
    with (MARKS / f"noted-{ctx.session}").open("a") as file:
        file.write("x")
    return "noted"


def ship(ctx: Context, version: str) -> str:
    """Ship a version; one mark for each call."""
    with (MARKS / f"shipped-{ctx.root}").open("a") as file:
        file.write(f"{version} ")
    return f"shipped {version}"


def announce(ctx: Context, to: str) -> str:
    """Announce it; one mark for each call."""
    with (MARKS / f"announced-{ctx.root}").open("a") as file:
        file.write(f"{to} ")
    return f"announced to {to}"


async def hold() -> str:
    """Block the event loop, as a tool does that waits without saying so."""
    time.sleep(600)  # noqa: ASYNC251
    return "held"


HOLDER = model_agent("model-holder", queue="chaos", instructions="You hold.", tools=[hold], time_limit_s=1)
LEAD = model_agent(
    "model-lead", role="coordinator", queue="chaos", instructions="You lead.", tools=[note], backoff_s=0.05
)
HELPER = model_agent(
    "model-helper",
    queue="chaos",
    instructions="You help.",
    settings={"max_tokens": 500},
    protocol=False,
    tree_tools=[],
    backoff_s=0.05,
)
EXPERT = model_agent("model-expert", queue="chaos", instructions="You know.", backoff_s=0.05)
CHIEF = model_agent("model-chief", role="coordinator", queue="chaos", instructions="You ask.", backoff_s=0.05)
TELLER = model_agent("model-teller", queue="chaos", instructions="You tell.", tools=[note], backoff_s=0.05)
BRANCH = model_agent(
    "model-branch", role="coordinator", queue="chaos", instructions="You branch.", backoff_s=0.05
)
LEAF = model_agent("model-leaf", queue="chaos", instructions="You count.", tools=[note], backoff_s=0.05)
CREW = [
    model_agent(
        f"model-{name}", role="coordinator", queue="chaos", instructions="You pass on.", backoff_s=0.05
    )
    for name in ("captain", "mate", "bosun")
]
SHIPPER = model_agent(
    "model-shipper",
    queue="chaos",
    instructions="You ship.",
    tools=[ship, announce],
    approve=["ship", "announce"],
    backoff_s=0.05,
)


@agent("model-treasurer", role="coordinator", queue="chaos")
def treasurer(ctx: Context) -> str:
    """Prompt ``200 model-helper``: so many of these; the answer says how many completed and how many failed."""
    if ctx.cause == "start":
        ctx.wait_for("all")
        many, _, name = ctx.prompt.partition(" ")
        ctx.delegate_all(name, [f"child {number}" for number in range(int(many))])
        return "launched"
    ends = [callback.status for callback in ctx.all_results]
    return f"{ends.count('completed')} completed, {ends.count('failed')} failed"

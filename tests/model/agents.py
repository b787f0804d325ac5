"""Agents on a real model: a lead that is a function, and children that answer in text or in a form that is forced."""

from __future__ import annotations

import os
from collections import Counter

from pydantic import BaseModel

from orchestrator import Context, agent, define_agent, model_agent

SERVER = {"model": "openai-chat:smollm2", "base_url": os.environ["MODEL_URL"]}
#: What keeps a small model short.
SHORT = {"tree_tools": [], "protocol": "compact", "backoff_s": 0.2}


class Verdict(BaseModel):
    """A form that a grammar forces."""

    good: bool


@agent("lead", role="coordinator")
def lead(ctx: Context) -> str:
    """`AGENT N`: gives N sentences to the agent; says how many of them it judged, and how many it did not."""
    if ctx.cause == "start":
        name, count = ctx.prompt.split()
        for number in range(int(count)):
            ctx.delegate(name, f"The sea is {number} metres deep.")
        ctx.wait_for("all")
        return ""
    ends = Counter(callback.status for callback in ctx.all_results)
    return f"{ends['completed']} answered, {ends['failed']} failed"


judge = model_agent(
    "judge",
    instructions="Is it true?",
    output=Verdict,
    output_mode="native",
    settings={"max_tokens": 120},
    **SERVER,
    **SHORT,
)
writer = model_agent(
    "writer", instructions="Comment on it.", settings={"max_tokens": 12}, attempts=1, **SERVER, **SHORT
)
teller = model_agent(
    "teller", instructions="You tell stories.", settings={"max_tokens": 50}, **SERVER, **SHORT
)
talker = model_agent("talker", instructions="You talk.", settings={"max_tokens": 24}, **SERVER, **SHORT)
patient = model_agent(
    "patient",
    instructions="Is it true?",
    output=Verdict,
    output_mode="native",
    settings={"max_tokens": 120},
    **SERVER | {"base_url": os.environ["ONE_SLOT_URL"]},
    **SHORT,
)
interrupted = model_agent(
    "interrupted",
    instructions="You tell stories.",
    settings={"max_tokens": 30},
    **SERVER | {"base_url": os.environ["CUT_URL"]},
    **SHORT,
)
#: One database of `llm` for each session, and in it the one conversation that goes on.
DATABASE = ("-d", f"{os.environ['LLM_USER_PATH']}/{{session}}.db")
remembers = define_agent(
    "remembers",
    source=__file__,
    executor="command",
    options={
        "command": [os.environ["LLM_PROGRAM"], "-m", "local", "--no-stream", "-o", "max_tokens", "12"],
        "start": DATABASE,
        "resume": (*DATABASE, "--continue"),
        "env": ("LLM_USER_PATH", "LLM_LOAD_PLUGINS"),
        "protocol": False,
    },
)

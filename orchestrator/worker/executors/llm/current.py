"""The run that a model agent is in: what its tools and its durable steps find there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.options import LlmOptions
from orchestrator.ledger.live_text import Earlier
from orchestrator.worker.context.context import Context


class Pending(BaseModel):
    """The event for which a tool call of an ended run waits."""

    #: `wait`: callbacks of any child; `child`: the end of one; `reply`: the reply to a question; `approval`: a person's yes
    #: or no, before the call is made.
    kind: Literal["wait", "child", "reply", "approval"]
    #: The child's session, or the id of the question or the approval; empty for `wait`.
    target: str = ""
    tool: str = ""
    #: Why nobody was asked: the call is denied with it.
    refused: str = ""
    #: Of `wait`: the policy, as `Context.wait_for` takes it.
    mode: Literal["any", "all", "quorum"] = "all"
    k: int | None = None
    timeout_s: float | None = None


@dataclass
class ModelRun:
    """State of one try of a run of a model agent."""

    definition: AgentDefinition
    options: LlmOptions
    context: Context
    #: Model requests so far, those whose answers were recorded by an earlier try included.
    requests: int = 0
    #: What earlier tries of the run showed while they wrote; None until it is read.
    earlier_live: Earlier | None = None


_current: ContextVar[ModelRun | None] = ContextVar("orchestra_model_run", default=None)


def current() -> ModelRun:
    """The run of the model agent that calls.

    Raises:
        LookupError: no model agent runs here.
    """
    run = _current.get()
    if run is None:
        raise LookupError("no model agent runs here")
    return run


def current_context() -> Context | None:
    """The context of the run of the model agent that calls; None where no model agent runs."""
    run = _current.get()
    return None if run is None else run.context


@contextmanager
def entered(run: ModelRun) -> Iterator[ModelRun]:
    """Make ``run`` the current one in the block."""
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)

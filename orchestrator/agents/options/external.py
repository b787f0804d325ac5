"""The options of an agent that is an external program: it has none, as nothing of the stack runs it."""

from __future__ import annotations

from orchestrator.agents.options.base import ExecutorOptions


class ExternalOptions(ExecutorOptions):
    """An external program reads its work from its inbox itself."""

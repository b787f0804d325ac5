"""Runs an agent that is a Python function."""

from __future__ import annotations

import asyncio
import inspect
import json
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from orchestrator.agents import AgentDefinition
from orchestrator.errors import InputError
from workers.context import Context

_OURS = Path(__file__).parent.parent


def execute(definition: AgentDefinition, context: Context) -> str:
    """Call the agent; what it returns, as text. Nothing is the empty text, other values are JSON.

    Raises:
        Exception: whatever the agent raises.
        InputError: it returned something that is no text and has no form as JSON.
    """
    if definition.function is None:
        raise InputError(f"agent {definition.name!r} is not run by workers")
    answer = definition.function(context)
    if inspect.iscoroutine(answer):
        answer = asyncio.run(_await(answer))
    if answer is None:
        return ""
    if isinstance(answer, str):
        return answer
    try:
        return json.dumps(answer, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"agent {definition.name!r} returned a value of type {type(answer).__name__}, "
            f"which is neither text nor JSON: {error}"
        ) from error


async def _await(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return await coroutine


def explain(error: BaseException) -> str:
    """One line for the agent's delegator: the error, and the agent's own line that raised it."""
    said = str(error).strip()
    text = f"{type(error).__name__}: {said}" if said else type(error).__name__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _OURS not in Path(f.filename).parents]
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text

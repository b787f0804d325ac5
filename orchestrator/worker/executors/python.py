"""Runs an agent that is a Python function."""

from __future__ import annotations

import asyncio
import inspect
import json
import sysconfig
import traceback
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import orchestrator
from orchestrator.agents.definition import AgentDefinition
from orchestrator.envelope.bodies import ErrorReport, TaskCompletion
from orchestrator.errors import InputError, TaskFailed
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.printing import leaves

#: Where code is that belongs to no agent: ours, Python's own, and installed packages.
_OURS: Final = (Path(orchestrator.__file__).parent,)
_INSTALLED: Final = tuple(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
_PYTHONS: Final = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
_LIBRARIES: Final = (*_OURS, *_INSTALLED, *_PYTHONS)

#: Errors of a group that are named.
_SHOWN_ERRORS: Final = 5


def execute(definition: AgentDefinition, context: Context) -> str:
    """Call the agent; return its result as text. None is the empty text, other values are JSON.

    A completion or an error report also says how the session ended.

    Raises:
        Exception: whatever the agent raises.
        TaskFailed: the agent returned that its task has failed.
        InputError: it returned something that is no text and has no form as JSON.
    """
    if definition.function is None:
        raise InputError(f"agent {definition.name!r} is not run by workers")
    answer = definition.function(context)
    if inspect.iscoroutine(answer):
        answer = asyncio.run(_await(answer, context))
    if isinstance(answer, TaskCompletion | ErrorReport):
        return context.end_with(answer)
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


async def _await(coroutine: Coroutine[Any, Any, Any], context: Context) -> Any:
    context.steps.follow_task()
    return await coroutine


def explain(error: BaseException, definition: AgentDefinition) -> str:
    """Return a line for the agent's delegator: the error, and the innermost line of the agent's own code that led to
    it.
    """
    message = str(error).strip()
    if isinstance(error, TaskFailed):  # its own words, wherever they were written
        return message or "its agent reported that the task has failed"
    if isinstance(error, BaseExceptionGroup):
        message += f": {'; '.join(_named(leaf) for leaf in leaves(error)[:_SHOWN_ERRORS])}"
    text = _named(error, message)
    home = _home(definition)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if _is_own(f.filename, home)]
    return f"{text} ({frames[-1].filename}:{frames[-1].lineno})" if frames else text


def _named(error: BaseException, message: str | None = None) -> str:
    message = str(error).strip() if message is None else message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _home(definition: AgentDefinition) -> Path | None:
    """Return the path of an agent's code: its folder, or its file if other code shares the folder; None if unknown."""
    code = getattr(inspect.unwrap(definition.function), "__code__", None) if definition.function else None
    if code is None or code.co_filename.startswith("<"):
        return None
    file = Path(code.co_filename)
    return file if file.parent in (*_OURS, *_INSTALLED) else file.parent


def _is_own(filename: str, home: Path | None) -> bool:
    """Return True if a file is the agent's: its innermost enclosing root is ``home`` and not a library, or it has
    none.
    """
    if filename.startswith("<"):  # made by exec, or frozen into the interpreter
        return False
    file = Path(filename)
    around = [
        root for root in (*_LIBRARIES, home) if root is not None and (root == file or root in file.parents)
    ]
    return not around or max(around, key=lambda root: len(root.parts)) == home

"""Functions of an agent's author as tools of its model, with or without the context."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import pydantic_core
from pydantic_ai import ModelRetry, Tool
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.tools import RunContext

from orchestrator.errors import (
    ClaimLost,
    InputError,
    OrchestraError,
    Retry,
    ServerUnavailable,
    SessionStopped,
)
from orchestrator.worker.context.context import Context
from orchestrator.worker.executors.llm.current import current
from orchestrator.worker.executors.llm.secrets import redact

#: What is no failure of the tool.
_PASSING = (
    ModelRetry,
    ToolFailed,
    CallDeferred,
    ApprovalRequired,
    ClaimLost,
    SessionStopped,
    ServerUnavailable,
    Retry,
)


def tool_of(function: Callable[..., Any] | Tool[Any], *, max_retries: int) -> Tool[Any]:
    """A function as a tool. What it raises is told to the model in one sentence, and the conversation goes on."""
    if isinstance(function, Tool):
        return function
    parameters = list(inspect.signature(function).parameters.values())
    hints = _hints(function)
    wants_context = bool(parameters) and (
        hints.get(parameters[0].name) is Context
        or (parameters[0].name == "ctx" and parameters[0].annotation is inspect.Parameter.empty)
    )
    takes_run = bool(parameters) and not wants_context and _is_run_context(hints.get(parameters[0].name))
    called = _guarded(function, with_context=wants_context)
    if wants_context:
        name = parameters[0].name
        called.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
        called.__annotations__ = {key: value for key, value in hints.items() if key != name}
    return Tool(called, takes_ctx=takes_run, max_retries=max_retries)


def _guarded(function: Callable[..., Any], *, with_context: bool) -> Callable[..., Any]:
    def first() -> tuple[Any, ...]:
        return (current().context,) if with_context else ()

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            try:
                return _checked(await function(*first(), *args, **kwargs))
            except _PASSING:
                raise
            except Exception as error:
                raise _failure(function, error) from error

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return _checked(function(*first(), *args, **kwargs))
        except _PASSING:
            raise
        except Exception as error:
            raise _failure(function, error) from error

    return call


def _checked(value: Any) -> Any:
    """The value, if it has a form that can be recorded and shown to the model."""
    try:
        pydantic_core.to_jsonable_python(value)
    except pydantic_core.PydanticSerializationError as error:
        raise InputError(
            f"it returned a value of type {type(value).__name__}, which has no form as JSON"
        ) from error
    return value


def _failure(function: Callable[..., Any], error: Exception) -> ToolFailed:
    said = redact(" ".join(str(error).split()))
    what = said if isinstance(error, OrchestraError) else f"{type(error).__name__}: {said}"
    return ToolFailed(f"The tool {getattr(function, '__name__', 'tool')} failed: {what}")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        return dict(getattr(function, "__annotations__", {}))


def _is_run_context(hint: Any) -> bool:
    return hint is RunContext or getattr(hint, "__origin__", None) is RunContext

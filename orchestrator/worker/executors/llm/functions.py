"""Functions of an agent's author as tools of its model, with or without the context."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, get_type_hints

import pydantic_core
from pydantic_ai import ModelRetry, Tool
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ToolFailed
from pydantic_ai.tools import RunContext

from orchestrator.errors import (
    ClaimLost,
    InputError,
    OrchestraError,
    Retry,
    RunParked,
    ServerUnavailable,
    SessionStopped,
    StepMismatch,
)
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.printing import cause_of
from orchestrator.worker.executors.llm.current import current
from orchestrator.worker.executors.llm.failures import one_line

#: What ends the run, and is no failure of the tool that raises it.
ENDS_RUN: Final = (ClaimLost, SessionStopped, ServerUnavailable, Retry, RunParked, StepMismatch)
_PASSING: Final = (ModelRetry, ToolFailed, CallDeferred, ApprovalRequired, *ENDS_RUN)


def tool_of(function: Callable[..., Any] | Tool[Any], *, max_retries: int) -> Tool[Any]:
    """A function as a tool. The model reads what it raises in one sentence, and the conversation goes on."""
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
            with _failures_of(function):
                return _checked(await function(*first(), *args, **kwargs))

        return call_async

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _failures_of(function):
            return _checked(function(*first(), *args, **kwargs))

    return call


@contextmanager
def _failures_of(function: Callable[..., Any]) -> Iterator[None]:
    """Tell the model what a function raises in the block."""
    try:
        yield
    except _PASSING:
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as raised:  # a parser of arguments exits, for example
        error = cause_of(raised) if isinstance(raised, BaseExceptionGroup) else raised
        if isinstance(error, _PASSING):
            raise error from None
        text = one_line(error)
        what = text if isinstance(error, OrchestraError) else f"{type(error).__name__}: {text}"
        raise ToolFailed(f"The tool {getattr(function, '__name__', 'tool')} failed: {what}") from raised


def _checked(value: Any) -> Any:
    """The value, if it has a form that can be recorded and shown to the model."""
    if inspect.isgenerator(value):
        value = list(value)  # to look at it uses it up
    try:
        pydantic_core.to_jsonable_python(value)
    except pydantic_core.PydanticSerializationError as error:
        raise InputError(
            f"it returned a value of type {type(value).__name__}, which has no form as JSON"
        ) from error
    return value


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function)
    except (NameError, TypeError):
        return dict(getattr(function, "__annotations__", {}))


def _is_run_context(hint: Any) -> bool:
    return hint is RunContext or getattr(hint, "__origin__", None) is RunContext

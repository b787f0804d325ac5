"""Answers as values: an agent answers in text, which may be JSON of a type."""

from __future__ import annotations

import json
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from orchestrator.errors import InputError

T = TypeVar("T")


def value_of(text: str) -> Any:
    """Return the JSON value that an answer is; the text itself, if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def typed(text: str, type: type[T], *, what: str) -> T:
    """Return an answer as a value of a type; ``str`` takes every text.

    Args:
        text: the answer.
        type: a pydantic model, a dataclass, or any other type that pydantic can check.
        what: whose answer it is, for the error.

    Raises:
        InputError: the answer does not fit the type.
    """
    if type is str:
        return text  # type: ignore[return-value]
    adapter: TypeAdapter[T] = TypeAdapter(type)
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        where = f"{place}: " if place else ""
        name = getattr(type, "__name__", str(type))
        raise InputError(f"the answer of {what} is not a {name}: {where}{first['msg']}") from None

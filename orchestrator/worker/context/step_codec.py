"""Encoding of the values of durable steps: JSON, bytes, pydantic models, and values of annotated types.

Each value has a tag that says how it is read again. Nothing is imported by a name that stands in the ledger.
"""

from __future__ import annotations

import json
import sys
import typing
from collections.abc import Callable
from typing import Any, Final

from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from orchestrator.errors import DamagedRecord, InputError

JSON: Final = "json"
BYTES: Final = "bytes"
TYPED: Final = "typed"
_MODEL: Final = "model:"


def encode(step: str, value: Any, *, type: Any = None, function: Callable[..., Any]) -> tuple[str, bytes]:
    """Return the tag and the bytes of a step's result.

    Args:
        step: its key, for the error.
        value: what it gave.
        type: what the caller says that it is; None: nothing.
        function: what gave it; its return annotation tells what has no form as JSON by itself.

    Raises:
        InputError: the value has no form that can be read again.
    """
    if type is not None:
        return TYPED, _dump(step, value, type)
    if isinstance(value, bytes | bytearray | memoryview):
        return BYTES, bytes(value)
    if isinstance(value, BaseModel):
        name = f"{value.__class__.__module__}:{value.__class__.__qualname__}"
        if _loaded(name) is not value.__class__:
            raise InputError(
                f"step {step!r} gave a {value.__class__.__qualname__}, which no module holds under that name; "
                f"give the step type={value.__class__.__name__}"
            )
        return _MODEL + name, value.model_dump_json().encode()
    try:
        return JSON, json.dumps(value).encode()
    except (TypeError, ValueError) as error:
        annotation = return_type(function)
        if annotation is None:
            raise InputError(
                f"step {step!r} gave a {value.__class__.__name__}, which is no JSON value ({error}); give the step "
                "type=…, or annotate what its function returns"
            ) from error
        return TYPED, _dump(step, value, annotation)


def decode(step: str, tag: str, octets: bytes, *, type: Any = None, function: Callable[..., Any]) -> Any:
    """Return the value that :func:`encode` was given.

    Raises:
        DamagedRecord: it cannot be read as what it is to be.
    """
    try:
        if tag == BYTES:
            return octets
        if tag == JSON and type is None:
            return json.loads(octets)
        known = type
        if known is None and tag == TYPED:
            known = return_type(function)
        if known is None and tag.startswith(_MODEL):
            known = _loaded(tag.removeprefix(_MODEL))
        if known is None:
            raise DamagedRecord(
                f"step {step!r}", f"{tag!r} is no type that this worker knows; give the step type=…"
            )
        return TypeAdapter(known).validate_json(octets)
    except (ValueError, ValidationError) as error:
        raise DamagedRecord(f"step {step!r}", f"its value is not what the agent expects: {error}") from None


def return_type(function: Callable[..., Any]) -> Any:
    """Return the annotated return type of a function; None if it has none, or it cannot be resolved."""
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):
        return None


def _dump(step: str, value: Any, type: Any) -> bytes:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(type)
        return adapter.dump_json(adapter.validate_python(value))
    except (ValueError, PydanticSchemaGenerationError) as error:
        raise InputError(f"step {step!r} gave a value that is not of its type {type!r}: {error}") from error


def _loaded(name: str) -> type[BaseModel] | None:
    """Return a model that a loaded module holds; modules are never imported for it."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None

"""Base of all JSON documents of the commands."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from orchestrator.machine import isoformat


def _time(value: Any) -> Any:
    if isinstance(value, int):
        return isoformat(value) if value else None
    return value


#: A time in ISO 8601, UTC, made of milliseconds since the epoch; null while there is none.
Time = Annotated[str | None, BeforeValidator(_time)]


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


#: The text of bytes; what is not UTF-8 is replaced.
Octets = Annotated[str, BeforeValidator(_text)]


class Source(NamedTuple):
    """The model of ours that a document prints, and of each field of the document its name there."""

    model: type
    fields: Mapping[str, str]


class Document(BaseModel):
    """An object that a command prints with ``--json``; its fields are all there, always."""

    # Built when it is first printed: a command that prints for people builds none.
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, defer_build=True)

    #: Where the fields come from that it does not declare itself.
    source: ClassVar[Source | None] = None

    @classmethod
    def of(cls, value: object, **more: object) -> Self:
        """The document about a value of ours: what it has and the document does not name is left out.

        ``more`` are the fields that the document has beside those of the value.
        """
        if more and cls.source is not None:
            value = {name: getattr(value, name) for name in cls.source.fields.values()} | more
        return cls.model_validate(value, from_attributes=True)


D = TypeVar("D", bound=Document)
#: How the values of a type stand in documents; a model of ours as the document that prints it.
_SHOWN: dict[Any, Any] = {}


def prints(
    model: type, /, *, only: str = "", without: str = "", also: str = "", numbers: str = "", **names: str
) -> Callable[[type[D]], type[D]]:
    """Give a document the fields of a model of ours, whose comments say what they mean.

    A field ``<name>_ms`` holds a time and is printed as ``<name>``.

    Args:
        model: a dataclass, a named tuple or a pydantic model.
        only: names of the fields and properties that are printed, in this order; empty: all fields.
        without: names of fields that are not printed.
        also: names of properties that are printed, too.
        numbers: names of fields ``<name>_ms`` that are durations, and stay numbers.
        names: what the document calls a field otherwise.
    """
    own = getattr(model, "model_fields", None) or getattr(model, "__dataclass_fields__", None)
    fields_of = {*(own or model._fields)} - {*without.split()}  # type: ignore[attr-defined]
    hints = {name: kind for name, kind in get_type_hints(model).items() if name in fields_of}
    kinds = {
        name: hints[name] if name in hints else get_type_hints(getattr(model, name).fget)["return"]
        for name in only.split() or [*hints, *also.split()]
    }

    def decorate(document: type[D]) -> type[D]:
        fields: dict[str, Any] = {}
        source: dict[str, str] = {}
        for name, kind in kinds.items():
            is_time = name.endswith("_ms") and name not in numbers.split()
            printed = names.get(name, name.removesuffix("_ms") if is_time else name)
            source[printed] = name
            if printed not in document.model_fields:
                fields[printed] = (Time if is_time else shown(kind), Field(validation_alias=name))
        made = create_model(
            document.__name__,
            __base__=document,
            __module__=document.__module__,
            __doc__=document.__doc__,
            **fields,
        )
        made.source = Source(model, source)
        if not only:
            _SHOWN[model] = made
        return made

    return decorate


def shown(kind: Any) -> Any:
    """Return the type that values of a type have in a document."""
    origin, inner = get_origin(kind), get_args(kind)
    if kind in _SHOWN:
        return _SHOWN[kind]
    if origin in (tuple, list):
        return tuple[shown(inner[0]), ...]  # type: ignore[misc]
    if origin in (Union, types.UnionType):
        return Union[tuple(map(shown, inner))]  # noqa: UP007
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[str, shown(inner[1])]  # type: ignore[misc]
    return str if isinstance(kind, type) and issubclass(kind, StrEnum) else kind


def show_as_text(kind: Any) -> None:
    """Print values of a type as text."""
    _SHOWN[kind] = Annotated[str, BeforeValidator(str)]

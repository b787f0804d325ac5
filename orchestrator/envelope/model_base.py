"""Base of all parts of the model, and the marks that say how a field stands in XML."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, model_validator

from orchestrator.envelope.model_values import Kind, Text


@dataclass(frozen=True)
class Attribute:
    """The field is an attribute of its element."""


@dataclass(frozen=True)
class Supplied:
    """The schema demands the field, and the stack supplies what its sender leaves out: the default says so.

    It is put beside the mark or kind of a field. A document must have the element all the same.
    """


@dataclass(frozen=True)
class Content:
    """The field is the text content of its element."""


@dataclass(frozen=True)
class Items:
    """The field is a list: one element ``name`` for each item, inside an element named after the field.

    An empty list and an absent one mean the same and are written the same: not at all.
    """

    name: str


@dataclass(frozen=True)
class Numbered:
    """As :class:`Items`, with the item's position in an attribute ``index``, from 0."""

    name: str


@dataclass(frozen=True)
class Repeated:
    """The field is a list: the element ``name`` repeated where it stands, with nothing around it."""

    name: str


class Part(BaseModel):
    """A part of an envelope. Frozen; the fields stand in the order of the schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Leaf(Part):
    """A part that is mainly text. A plain string can be given in its place."""

    text: Annotated[Text, Content()]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


Mark = Attribute | Content | Items | Numbered | Repeated


class Binding(NamedTuple):
    """Binding of a model's field: its mark, and the kind of scalar or the model that it holds."""

    name: str
    mark: Mark | None
    kind: Kind | None
    model: type[Part] | None

    @property
    def tag(self) -> str:
        """The name of its element or attribute."""
        return self.name.replace("_", "-")


def demands(model: type[Part], field: str) -> bool:
    """Return True if a document must have the element of a field of ``model``."""
    info = model.model_fields[field]
    return info.is_required() or any(isinstance(m, Supplied) for m in info.metadata)


def bindings(model: type[Part]) -> list[Binding]:
    """Return the fields of ``model`` that stand in its XML, in their order."""
    bound = []
    for name, info in model.model_fields.items():
        mark = next((m for m in info.metadata if isinstance(m, Mark)), None)
        kind = next((m for m in info.metadata if isinstance(m, Kind)), None)
        inner = None
        if kind is None:
            kind, inner = _held(info.annotation)
        if kind is not None or inner is not None:
            bound.append(Binding(name, mark, kind, inner))
    return bound


def _held(annotation: Any) -> tuple[Kind | None, type[Part] | None]:
    """Return the kind or the model inside ``annotation``, through Optional, tuple and Annotated."""
    if get_origin(annotation) is Annotated:
        base, *marks = get_args(annotation)
        kind = next((m for m in marks if isinstance(m, Kind)), None)
        return (kind, None) if kind is not None else _held(base)
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        return _held(next(a for a in get_args(annotation) if a not in (type(None), Ellipsis)))
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return None, annotation
    return None, None

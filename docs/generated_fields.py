"""Fields of dataclasses and models in the reference, with their types and the comments that explain them."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel


class Undocumented(Exception):
    """A public name has no docstring, or a public field no comment."""


def field_table(value: type, linked: frozenset[str], *, needed: bool = True) -> Iterator[str]:
    """A row for each public field, and nothing for a class without fields.

    Args:
        value: a dataclass or a model.
        linked: classes that have a section of their own.
        needed: whether each field of a dataclass needs a comment; else those that have one are listed beside the signature.

    Raises:
        Undocumented: a field of a dataclass has no comment and needs one.
    """
    if dataclasses.is_dataclass(value):
        shown = [f for f in dataclasses.fields(value) if not f.name.startswith("_")]
        rows = [(f.name, f"`{_escaped(str(f.type))}`", meaning(value, f.name, needed=needed)) for f in shown]
    elif issubclass(value, BaseModel):
        rows = [(name, _kind(f.annotation, linked), _default(f)) for name, f in value.model_fields.items()]
    else:
        return
    if not needed:  # the signature has the types
        rows = [row for row in rows if row[2]]
        yield from (f"- `{name}`: {text}" for name, _, text in rows)
        yield from [""] * bool(rows)
        return
    yield f"| field | type | {'meaning' if dataclasses.is_dataclass(value) else 'default'} |\n| --- | --- | --- |"
    yield from (f"| `{name}` | {kind} | {text} |" for name, kind, text in rows)
    yield ""


def meaning(value: type, name: str, *, needed: bool = True) -> str:
    """What the comment of a field says, in the class that defines it.

    Raises:
        Undocumented: there is none and it needs one.
    """
    for owner in value.__mro__:
        if owner is not object and name in (found := _comments(owner)):
            return _escaped(found[name])
    if not needed:
        return ""
    raise Undocumented(f"{value.__module__}.{value.__qualname__}.{name}")


@cache
def _comments(owner: type) -> dict[str, str]:
    """The comments of a class that begin with ``#:``, above a field or behind it."""
    lines, first = inspect.getsourcelines(owner)
    said = {}
    for token in tokenize.generate_tokens(
        io.StringIO(inspect.getsource(sys.modules[owner.__module__])).readline
    ):
        if token.type == tokenize.COMMENT and token.string.startswith("#:"):
            said[token.start[0]] = token.string.removeprefix("#:").strip()
    tree = ast.parse(inspect.getsource(sys.modules[owner.__module__]))
    [node] = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.ClassDef) and first <= n.lineno < first + len(lines) and n.name == owner.__name__
    ]
    found = {}
    for statement in node.body:
        if not (isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)):
            continue
        last = statement.end_lineno or statement.lineno
        behind = next((said[n] for n in range(statement.lineno, last + 1) if n in said), "")
        above: list[str] = []
        line = statement.lineno - 1
        source = _source_line(owner, line)
        while line in said and source.startswith("#:"):
            above.insert(0, said[line])
            line -= 1
            source = _source_line(owner, line)
        if text := " ".join(above) or behind:
            found[statement.target.id] = text
    return found


def _source_line(owner: type, number: int) -> str:
    return inspect.getsource(sys.modules[owner.__module__]).splitlines()[number - 1].strip()


def _kind(annotation: Any, linked: frozenset[str]) -> str:
    """A type as a reader writes it: without what checks its values."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0], linked)
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin is tuple:
        return f"several {_kind(inner[0], linked)}"
    if inner:
        return " or ".join(_kind(one, linked) for one in inner if one is not type(None))
    name = getattr(annotation, "__name__", str(annotation))
    return f"[`{name}`](#{name.lower()})" if name in linked else f"`{name}`"


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    return "" if field.default in (None, (), "") else f"`{field.default}`"


def _escaped(text: str) -> str:
    return re.sub(r"``", "`", text).replace("|", "\\|")

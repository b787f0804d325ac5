"""The reference of the Python surface, from the docstrings and signatures of what `orchestrator` exports."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from pydantic import BaseModel


class Undocumented(Exception):
    """A public name has no docstring."""


def python_reference() -> str:
    """Every public name: agents first, then the client, values and errors.

    Raises:
        Undocumented: a public name, or a public method of one, has no docstring.
    """
    import orchestrator

    exported = {name: getattr(orchestrator, name) for name in orchestrator.__all__}
    errors = {n: v for n, v in exported.items() if isinstance(v, type) and issubclass(v, BaseException)}
    out = ["## Functions\n"]
    for name, value in exported.items():
        if inspect.isfunction(value):
            out += _function(name, value, level=3)
    out.append("## Classes\n")
    for name, value in exported.items():
        if isinstance(value, type) and name not in errors:
            out += _class(name, value)
    out += ["## Errors\n", "| error | kind of | raised when |", "| --- | --- | --- |"]
    for name, error in errors.items():
        parent = error.__mro__[1].__name__
        out.append(f"| `{name}` | `{parent}` | {' '.join(_doc(error, name).split())} |")
    return "\n".join(out)


def _class(name: str, value: type) -> Iterator[str]:
    yield f"### {name}\n"
    yield _text(_doc(value, name))
    fields = _fields(value)
    if fields:
        yield "| field | type |\n| --- | --- |"
        yield from (f"| `{field}` | `{_shown(kind)}` |" for field, kind in fields)
        yield ""
    if issubclass(value, Enum):
        yield ", ".join(f"`{member.value}`" for member in value) + "\n"
        return
    for method, found in _members(value):
        if isinstance(found, property):
            yield f"#### `{name}.{method}`\n"
            yield _text(_doc(found.fget, f"{name}.{method}"))
        else:
            yield from _function(f"{name}.{method}", found, level=4)


def _fields(value: type) -> list[tuple[str, Any]]:
    if dataclasses.is_dataclass(value):
        return [(f.name, f.type) for f in dataclasses.fields(value) if not f.name.startswith("_")]
    if issubclass(value, BaseModel):
        return []  # settings have a page of their own
    return []


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, those of bases of ours included, in the order of their definition."""
    seen: set[str] = set()
    for owner in value.__mro__:
        if not owner.__module__.startswith("orchestrator"):
            continue
        for name, found in vars(owner).items():
            plain = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            if (
                name.startswith("_")
                or name in seen
                or not (inspect.isfunction(plain) or isinstance(plain, property))
            ):
                continue
            seen.add(name)
            yield name, plain


def _function(name: str, value: Any, *, level: int) -> Iterator[str]:
    signature = inspect.signature(value)
    kept = [
        p.replace(annotation=_plain(p.annotation))
        for p in signature.parameters.values()
        if p.name not in {"self", "cls"}
    ]
    text = str(signature.replace(parameters=kept, return_annotation=_plain(signature.return_annotation)))
    word = "await " if inspect.iscoroutinefunction(value) else ""
    yield f"{'#' * level} `{name}`\n"
    yield f"```python\n{word}{name}{text}\n```\n"
    yield _text(_doc(value, name))


class _Plain(str):
    """An annotation that a signature shows without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _plain(annotation: Any) -> Any:
    return _Plain(annotation) if isinstance(annotation, str) else annotation


def _doc(value: Any, name: str) -> str:
    found = inspect.getdoc(value)
    if not found or (isinstance(value, type) and value.__doc__ is None):
        raise Undocumented(name)
    return found


def _text(doc: str) -> str:
    """A docstring as Markdown: its sections are lists, its roles code."""
    doc = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", doc).replace("``", "`")
    doc = re.sub(r"^(Args|Raises|Returns|Yields):$", r"**\1**\n", doc, flags=re.MULTILINE)
    doc = re.sub(r"^ {4}(\w[\w, .*]*): ", r"- `\1`: ", doc, flags=re.MULTILINE)
    doc = re.sub(r"^ {8}(?=\S)", "  ", doc, flags=re.MULTILINE)
    return doc + "\n"


def _shown(kind: Any) -> str:
    return str(kind).replace("|", "\\|")

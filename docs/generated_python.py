"""The reference of the Python surface, from docstrings, signatures and the comments of fields."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

from generated_fields import Undocumented, field_table

#: A signature that is longer gets a line for each parameter.
_WIDTH = 88
_OURS = "orchestrator"


def python_reference() -> str:
    """Every public name of `orchestrator`, what their methods return, and all errors.

    Raises:
        Undocumented: a public name, a public method or a field of one has no words of its own.
    """
    import orchestrator
    import orchestrator.errors

    exported = {name: getattr(orchestrator, name) for name in orchestrator.__all__}
    classes = {n: v for n, v in exported.items() if isinstance(v, type) and not issubclass(v, BaseException)}
    returned = {v.__name__: v for v in _returned(exported.values()) if v.__name__ not in exported}
    linked = frozenset(classes) | frozenset(returned)
    out = ["## Functions\n"]
    for name, value in exported.items():
        if inspect.isfunction(value):
            out += _function(name, value, level=3)
    out.append("## Classes\n")
    for name, value in classes.items():
        out += _class(name, value, linked)
    out += ["## What these return\n", "Nobody makes them; there is nothing to import.\n"]
    for name, value in sorted(returned.items()):
        out += _class(name, value, linked)
    out += ["## Options\n", "What `**options` of the methods above may be. None is as if it was left out.\n"]
    for name, value in _option_types():
        out += _options(name, value)
    out += ["## Errors\n"]
    out.append(
        "All can be imported from `orchestrator.errors`, those with a ✓ from `orchestrator` as well.\n"
    )
    out += ["| error | ✓ | kind of | raised when |", "| --- | --- | --- | --- |"]
    for name, error in sorted(vars(orchestrator.errors).items()):
        if isinstance(error, type) and issubclass(error, BaseException):
            mark, parent = "✓" if name in exported else "", error.__mro__[1].__name__
            out.append(
                f"| `{name}` | {mark} | `{parent}` | {_escaped(' '.join(_doc(error, name).split()))} |"
            )
    return "\n".join(out)


def _option_types() -> Iterator[tuple[str, Any]]:
    """The TypedDicts of options, by name."""
    from orchestrator.operations import requests

    for name, value in vars(requests).items():
        if (
            name.endswith("Options")
            and hasattr(value, "__required_keys__")
            and name not in ("LaunchOptions", "ReferralOptions", "RootOptions")
        ):
            yield name, value


def _options(name: str, value: Any) -> Iterator[str]:
    """A row for each option."""
    from orchestrator.operations.table import Operation

    yield f"### {name}\n"
    yield _text(_doc(value, name))
    yield "| option | meaning |\n| --- | --- |"
    for option, schema in Operation(name, value).schema["properties"].items():
        if not schema["description"]:
            raise Undocumented(f"{name}.{option}")
        choices = f" One of {', '.join(f'`{one}`' for one in schema['enum'])}." if "enum" in schema else ""
        yield f"| `{option}` | {_escaped(schema['description'])}{choices} |"
    yield ""


def testing_reference() -> str:
    """Every public name of `orchestrator.testing`.

    Raises:
        Undocumented: as for `python_reference`.
    """
    import orchestrator.testing

    exported = {name: getattr(orchestrator.testing, name) for name in orchestrator.testing.__all__}
    out: list[str] = []
    for name, value in exported.items():
        if isinstance(value, type):
            out += _class(name, value, frozenset(exported), needed=False)
        elif inspect.isfunction(value):
            out += _function(name, value, level=3)
        else:
            out.append(f"### {name}\n\nOne of {_union(value)}.\n")
    return "\n".join(out)


def _union(value: Any) -> str:
    return ", ".join(f"`{getattr(one, '__name__', str(one))}`" for one in typing.get_args(value))


def _returned(values: typing.Iterable[Any]) -> Iterator[type]:
    """Classes of ours that public functions and methods return, and those that these return."""
    seen: set[type] = set()
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        functions = [value] if inspect.isfunction(value) else []
        if isinstance(value, type):
            functions = [f.fget if isinstance(f, property) else f for _, f in _members(value)]
        for function in functions:
            for found in _classes_in(_hint(function)):
                if found not in seen and not hasattr(found, "model_fields"):
                    seen.add(found)
                    waiting.append(found)
                    yield found


def _hint(function: Any) -> Any:
    module = inspect.getmodule(function)
    text = inspect.signature(function).return_annotation
    try:
        return eval(text, _names_of(module)) if isinstance(text, str) else text  # noqa: S307  (an annotation of ours)
    except NameError:
        return None


@functools.cache
def _names_of(module: types.ModuleType) -> dict[str, Any]:
    """The names of a module, those included that it imports for its annotations alone."""
    found = dict(vars(module))
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for one in node.body:
                if isinstance(one, ast.ImportFrom) and one.module:
                    there = importlib.import_module(one.module)
                    found |= {name.asname or name.name: getattr(there, name.name) for name in one.names}
    return found


def _classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, types.GenericAlias | types.UnionType) or typing.get_args(hint):
        for inner in typing.get_args(hint):
            yield from _classes_in(inner)
    elif isinstance(hint, type) and hint.__module__.startswith(_OURS) and not issubclass(hint, Enum):
        yield hint


def _class(name: str, value: type, linked: frozenset[str], *, needed: bool = True) -> Iterator[str]:
    yield f"### {name}\n"
    yield _text(_doc(value, name))
    if name != "Settings":  # they have a page of their own
        yield from field_table(value, linked, needed=needed)
    if issubclass(value, Enum):
        yield ", ".join(f"`{member.value}`" for member in value) + "\n"
        return
    made = "__init__" in vars(value) and not (needed and dataclasses.is_dataclass(value))
    if made and name != "Context":
        yield from _signature(name, value.__init__, "")
    twin = _twin(value)
    for method, found in _members(value):
        if method in twin:
            continue
        if isinstance(found, property):
            yield f"#### `{name}.{method}`\n"
            yield _text(_doc(found.fget, f"{name}.{method}"))
        else:
            yield from _function(f"{name}.{method}", found, level=4)
    if twin:
        listed = ", ".join(f"`{method}`" for method in twin)
        yield f"Awaited, and else as in [Client](#client): {listed}.\n"


def _twin(value: type) -> list[str]:
    """Return the coroutine methods that have the parameters and the words of those of `Client`."""
    from orchestrator import AsyncClient, Client

    if value is not AsyncClient:
        return []
    same = dict(_members(Client))
    return [
        name
        for name, found in _members(value)
        if inspect.iscoroutinefunction(found)
        and inspect.getdoc(found) == inspect.getdoc(same.get(name))
        and inspect.signature(found).parameters.keys() == inspect.signature(same[name]).parameters.keys()
    ]


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties, those of bases of ours included, in the order of their definition."""
    seen: set[str] = set()
    for owner in value.__mro__:
        if not owner.__module__.startswith(_OURS):
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
    yield f"{'#' * level} `{name}`\n"
    yield from _signature(name, value, "await " if inspect.iscoroutinefunction(value) else "")
    yield _text(_doc(value, name))


def _signature(name: str, value: Any, word: str) -> Iterator[str]:
    signature = inspect.signature(value)
    kept = [
        p.replace(annotation=_plain(p.annotation))
        for p in signature.parameters.values()
        if p.name not in {"self", "cls"}
    ]
    end = _plain(signature.return_annotation)
    short = signature.replace(parameters=kept, return_annotation=end)
    text = f"{word}{name}{short}"
    if len(text) > _WIDTH and kept:
        given = "".join(f"    {one},\n" for one in _parameters(kept))
        returns = "" if end is inspect.Signature.empty else f" -> {end}"
        text = f"{word}{name}(\n{given}){returns}"
    text = re.sub(r"<class '(\w+)'>", r"\1", text)
    yield f"```python\n{text.replace(' -> None', '') if name[0].isupper() and '.' not in name else text}\n```\n"


def _parameters(kept: list[inspect.Parameter]) -> Iterator[str]:
    """Each parameter as a signature shows it, and a star before the first that is given by name only."""
    starred = False
    for parameter in kept:
        starred = starred or parameter.kind is inspect.Parameter.VAR_POSITIONAL
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        yield str(parameter)


class _Plain(str):
    """An annotation that a signature shows without quotation marks."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _plain(annotation: Any) -> Any:
    return _Plain(annotation.replace("requests.", "")) if isinstance(annotation, str) else annotation


def _doc(value: Any, name: str) -> str:
    found = inspect.getdoc(value)
    if not found or (isinstance(value, type) and value.__doc__ is None):
        raise Undocumented(name)
    return found


def _text(doc: str) -> str:
    """A docstring as Markdown: its sections are lists, its roles code, its examples blocks."""
    doc = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", doc).replace("``", "`")
    parts = re.split(r"^(Args|Raises|Returns|Yields):$", doc, flags=re.MULTILINE)
    out = [re.sub(r"((?:^ {4}.*\n?)+)", _block, parts[0], flags=re.MULTILINE)]
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        if heading in {"Args", "Raises"}:
            body = re.sub(r"^ {4}(\*{0,2}\w[\w, .*]*): ", r"- `\1`: ", body, flags=re.MULTILINE)
            body = re.sub(r"^ {8}(?=\S)", "  ", body, flags=re.MULTILINE)
        else:
            body = re.sub(r"^ {4}", "", body, flags=re.MULTILINE)
        out.append(f"**{heading}**\n\n{body.lstrip(chr(10))}")
    return "".join(out) + "\n"


def _block(found: re.Match[str]) -> str:
    code = re.sub(r"^ {4}", "", found[1], flags=re.MULTILINE).rstrip("\n")
    return f"```python\n{code}\n```\n"


def _escaped(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")

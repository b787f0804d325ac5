"""The version of an agent's definition: the same for the same definition, on every host and after every restart.

It is made from what decides how the agent works: its role, tier and executor, the executor's settings, the text of its
functions and of the files that it names. What only decides where, when and how often it runs does not count, nor do
secrets. What a function calls is not looked into: an author who changes that names a version.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

#: Hexadecimal digits of a version that nobody has named.
DIGITS: Final = 12


def version_of(facts: Mapping[str, Any], *, source: str) -> str:
    """Return a digest of an agent's definition; ``source`` is its file and line."""
    module = source.rpartition(":")[0]
    form = json.dumps(_form(facts, module), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(form.encode()).hexdigest()[:DIGITS]


def _form(value: Any, module: str) -> Any:
    """Return a value as JSON that says the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Path):
        return _text_of_file(value) or value.name
    if isinstance(value, BaseModel):
        return {
            name: _form(getattr(value, name), module)
            for name, field in type(value).model_fields.items()
            # A default may change with a release of this package, and what is not shown is a secret.
            if field.repr and name in value.model_fields_set
        }
    if isinstance(value, Mapping):
        return {str(name): _form(one, module) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_form(one, module) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(json.dumps(_form(one, module), sort_keys=True) for one in value)
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value.model_json_schema()
    if inspect.isroutine(value) or isinstance(value, type):
        return _text_of_code(value)
    # An object that was made elsewhere, such as an agent of another library: the text of the module that made it.
    return _text_of_file(Path(module)) or f"{type(value).__module__}.{type(value).__qualname__}"


def _text_of_code(value: Any) -> str:
    """Return the text of a function or class without its decorators; its name where there is no text."""
    try:
        text = textwrap.dedent(inspect.getsource(inspect.unwrap(value)))
        first = ast.parse(text).body[0]
    except (OSError, TypeError, ValueError, SyntaxError, IndexError):
        return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(type(value)))}"
    # The decorator that makes it an agent holds settings, of which some count and some do not.
    return "\n".join(line.rstrip() for line in text.splitlines()[getattr(first, "lineno", 1) - 1 :])


def _text_of_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""

"""Lines of settings in a file of agents, so that an error names the line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def line_of(name: str, text: str, key: str = "") -> int:
    """Return the line of ``[agents.name]``, or of a key in that table or below it; 1 if it is spelt in a way that is
    not found.
    """
    parts = [part for part in key.split(".") if part and not part.isdigit()]
    lines = text.splitlines()
    for depth in reversed(range(len(parts))):
        # [agents.name.read] and in it `answer = …`, or [agents.name] and in it `read.answer = …` or `read = { … }`
        found = _key_below(lines, ("agents", name, *parts[:depth]), parts[depth])
        if found:
            return found
    if found := _heading_line(lines, ("agents", name)):
        return found
    # [agents] and in it `name.key = …`, or `name = { … }`
    return _key_below(lines, ("agents",), name, *parts[:1]) or _key_below(lines, ("agents",), name) or 1


def _dotted(parts: Iterable[str]) -> str:
    """Return the pattern of a dotted key, each of its parts quoted or not."""
    return r"\s*\.\s*".join(f"[\"']?{re.escape(part)}[\"']?" for part in parts)


def _heading_line(lines: Sequence[str], path: tuple[str, ...]) -> int:
    heading = re.compile(rf"\s*\[\s*{_dotted(path)}\s*\]")
    return next((number for number, line in enumerate(lines, 1) if heading.match(line)), 0)


def _key_below(lines: Sequence[str], path: tuple[str, ...], *key: str) -> int:
    """Return the line of a key in the table of that path; 0: it is not found there."""
    first = _heading_line(lines, path)
    entry = re.compile(rf"\s*{_dotted(key)}\s*[=.]")
    for number, line in enumerate(lines[first:], first + 1):
        if first and entry.match(line):
            return number
        if line.lstrip().startswith("["):
            break
    return 0

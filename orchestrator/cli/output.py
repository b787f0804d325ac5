"""Output of the commands. Nothing else in this package writes to standard output or standard error.

What people read is made visible first: text comes from agents, programs and messages, and none of them may act on
the reader's terminal. Bytes go out as they are only to a file or a pipe. JSON keeps every value, with escapes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from orchestrator.display.text import acts, visible

if TYPE_CHECKING:
    from orchestrator.cli.documents.base import Document


def say(
    text: str = "",
    *,
    err: bool = False,
    lines: bool = False,
    mark: str = "",
    colour: str = "",
    newline: bool = True,
) -> None:
    """Print one line of text, made visible; with ``lines``, text of several lines.

    ``mark`` is a word of our own in front of it, in ``colour`` on a terminal.
    """
    shown = visible(text, lines=lines)
    text = click.style(mark, fg=colour) + shown if mark else shown
    click.echo(text, err=err, nl=newline, color=_colour())


def say_cells(cells: Sequence[tuple[str, str]]) -> None:
    """Print one line of pieces of text, made visible, each in its style: ``bold``, ``dim`` and a colour.

    Styles are for terminals only, and not where ``NO_COLOR`` is set.
    """
    click.echo("".join(_styled(visible(text), style) for text, style in cells), color=_colour())


def _styled(text: str, style: str) -> str:
    words = set(style.split())
    if not words:
        return text
    colours = words - {"bold", "dim"}
    return click.style(
        text, fg=next(iter(colours), None), bold="bold" in words or None, dim="dim" in words or None
    )


def _colour() -> bool | None:
    """Return the colour setting for click: none, or by the kind of output."""
    return False if os.environ.get("NO_COLOR") else None


def write_raw(content: bytes | str, *, newline: bool = True) -> None:
    """Print content byte for byte, so that it can be stored and compared; on a terminal, made visible."""
    if sys.stdout.isatty():
        say(
            content.decode("utf-8", "backslashreplace") if isinstance(content, bytes) else content, lines=True
        )
        return
    octets = content if isinstance(content, bytes) else content.encode()
    # As bytes: from text that does not go to a terminal, click takes the colours out.
    click.echo(octets + (b"\n" if newline else b""), nl=False)


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Return a JSON document that is readable and safe on a terminal: what could act on one is escaped, and no value
    changes.
    """
    # A newline within a value is escaped already.
    lines = json.dumps(value, ensure_ascii=False, indent=indent).split("\n")
    return "\n".join(line if line.isprintable() else "".join(map(_in_json, line)) for line in lines)


def _in_json(character: str) -> str:
    return json.dumps(character)[1:-1] if acts(character) else character


def print_json(document: Document) -> None:
    """Print one JSON document."""
    click.echo(json_text(document.model_dump(mode="json")))


def print_answer(document: Document, sentence: str, *, as_json: bool) -> None:
    """Print a JSON document, or for people a sentence that says the same."""
    if as_json:
        print_json(document)
    else:
        say(sentence)


def print_json_line(document: Document) -> None:
    """Print one JSON document on one line, for a command that prints many."""
    click.echo(json_text(document.model_dump(mode="json"), indent=None))

"""Replies of a scripted provider: a text, tool calls, or one of the ways in which a provider fails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class Call:
    """A tool call: ``Call("search", query="leases")``."""

    def __init__(self, tool: str, /, **arguments: Any) -> None:
        self.tool = tool
        self.arguments = arguments

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"Call({self.tool!r}{', ' if given else ''}{given})"


@dataclass(frozen=True)
class Say:
    """An answer: a text, tool calls, or both."""

    text: str = ""
    calls: Sequence[Call] = ()
    input_tokens: int = 100
    output_tokens: int = 20
    #: Seconds between two pieces of a stream.
    pace_s: float = 0
    #: Whether the answer tells what it took.
    usage: bool = True


@dataclass(frozen=True)
class Fail:
    """An HTTP error, such as 429 with ``retry_after_s``, 529 (overloaded), 500, 401."""

    status: int
    message: str = "scripted failure"
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Hang:
    """No answer for so many seconds, then the connection is closed."""

    seconds: float


@dataclass(frozen=True)
class Cut:
    """The connection breaks in the middle of the answer."""

    text: str = "this is where the connection"
    calls: Sequence[Call] = ()
    #: A stream that ends in good order all the same: nothing but the missing reason tells that it is half an answer.
    in_order: bool = False


@dataclass(frozen=True)
class Malformed:
    """A tool call whose arguments are no JSON."""

    tool: str
    arguments: str = '{"never": "closed'


@dataclass(frozen=True)
class Empty:
    """An answer without any content."""


@dataclass(frozen=True)
class Truncated:
    """An answer that was cut by the token limit."""

    text: str = ""
    calls: Sequence[Call] = ()
    input_tokens: int = 100
    output_tokens: int = 20


#: What a script may say.
Reply = Say | Fail | Hang | Cut | Malformed | Empty | Truncated


@dataclass(frozen=True)
class Answer:
    """A reply in the terms that both formats share."""

    text: str = ""
    #: Of each tool call: its id, the tool, the arguments as JSON text.
    calls: tuple[tuple[str, str, str], ...] = ()
    stop: str = "end"  #: end, tool, length, or `none`: the stream does not say why it ends
    input_tokens: int = 100
    output_tokens: int = 20
    pace_s: float = 0
    cut: bool = False
    usage: bool = True

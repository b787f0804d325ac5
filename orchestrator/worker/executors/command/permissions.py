"""A program's question whether it may use a tool, as a question to the parent, and the reply as its choice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar

_YES: Final = frozenset({"allow", "yes", "y", "ok", "okay", "approve", "approved", "allowed", "true"})


class Option(Protocol):
    """One way to answer."""

    @property
    def option_id(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str: ...


OptionT = TypeVar("OptionT", bound=Option)


def question(tool: str, options: Sequence[Option]) -> str:
    """The question to the parent."""
    names = ", ".join(f"{option.name!r}" for option in options)
    return f"May I use {tool}? Reply with one of: {names}; or with allow or deny."


def choose(reply: str, options: Sequence[OptionT]) -> OptionT | None:
    """The option that a reply names: by name, by id, or by its first word. None: the request is cancelled.

    A reply that names no option and does not begin with consent is no consent. "Always" counts right after it.
    """
    words = reply.strip().casefold()
    for option in options:
        if words in (option.name.casefold(), option.option_id.casefold()):
            return option
    first = re.match(r"(\w+)([\s,]+always\b)?", words)
    wanted = ["reject_once", "reject_always"]
    if first is not None and first[1] in _YES:
        wanted = ["allow_always", "allow_once"] if first[2] else ["allow_once"]
    for kind in wanted:
        for option in options:
            if option.kind == kind:
                return option
    return None

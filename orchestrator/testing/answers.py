"""Answers of others in a scripted session: the children, the parent, the user and the person who approves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any


class NotScripted(AssertionError):
    """The agent waits for something, and the script does not say what comes."""


@dataclass(frozen=True)
class Failed:
    """A child fails, or a question gets no reply, with this reason."""

    reason: str


@dataclass(frozen=True)
class Done:
    """A child ends with a text and attachments."""

    text: str
    attachments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Asks:
    """A child asks its parent first, and ends when it has the reply."""

    question: str
    then: str | Done | Failed | Callable[[str], str]  #: how it ends; a function is called with the reply


@dataclass(frozen=True)
class Never:
    """Nothing comes: a wait with a time limit reaches it, and no real time passes."""


#: What one other party says: a text, one of the above, or a function of the task or the question.
Answer = str | Done | Failed | Asks | Never | Callable[[str], Any]
#: What a person says to an approval; a function gets the tool and its arguments.
Verdict = bool | Failed | Never | Callable[[str, dict[str, Any]], bool]
#: By agent; a list is used up in its order.
Answers = Mapping[str, Answer | Sequence[Answer]]


class Lines:
    """The lines of one party, as they come one after the other."""

    def __init__(self, lines: Answer | Verdict | Sequence[Answer] | Sequence[Verdict] | None) -> None:
        several = isinstance(lines, Sequence) and not isinstance(lines, str)
        self._lines: Iterator[Any] = iter(lines) if several else repeat(lines)  # type: ignore[arg-type]

    def next(self, *given: Any) -> Any:
        """Return the next answer; None if nothing is scripted (any more)."""
        line = next(self._lines, None)
        return line(*given) if callable(line) else line

"""What others say in a scripted session: the children, the parent, the user and whoever approves."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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


#: What one other party says: a text, one of the above, or a function of what it was told.
Answer = str | Done | Failed | Asks | Never | Callable[[str], Any]
#: What a person says to an approval; a function gets the tool and its arguments.
Verdict = bool | Failed | Never | Callable[[str, dict[str, Any]], bool]
#: By agent; of several in a list each is said once, in their order.
Answers = Mapping[str, Answer | Sequence[Answer]]


class Lines:
    """The lines of one party, as they are said one after the other."""

    def __init__(self, said: Answer | Verdict | Sequence[Answer] | Sequence[Verdict] | None) -> None:
        self._always: Any = None
        self._left: deque[Any] | None = None
        if isinstance(said, Sequence) and not isinstance(said, str):
            self._left = deque(said)
        else:
            self._always = said

    def next(self, *told: Any) -> Any:
        """What comes now; None: nothing is scripted (any more)."""
        said = self._always
        if self._left is not None:
            said = self._left.popleft() if self._left else None
        return said(*told) if callable(said) else said

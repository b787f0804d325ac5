"""Durable steps of a run: how they are named, and whether a later try asks for the same ones. Pure decisions."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Collection, Iterable
from typing import Final

#: Characters of a step's name at most.
MAX_NAME_CHARS: Final = 200
#: Between an effect's own key and the key of the step that had it.
EFFECT_MARK: Final = "|step:"

# `#` separates the count, `|` the step of an effect; control characters would act on terminals.
_NAME = re.compile(r"[^#|\x00-\x1f\x7f]+")


def is_step_name(name: object) -> bool:
    """Return True if a step may have this name."""
    if not isinstance(name, str) or len(name) > MAX_NAME_CHARS:
        return False
    return bool(_NAME.fullmatch(name)) and name.strip() == name


def step_key(name: str, count: int, *, within: str = "") -> str:
    """Return the key of a step in its run: its name, how often the try asked for it, and the step around it."""
    key = f"{name}#{count}"
    return f"{within}/{key}" if within else key


def is_within(key: str, other: str) -> bool:
    """Return True if the function of the step ``other`` asks for the step ``key``."""
    return key.startswith(f"{other}/")


def effect_key(kind: str, what: str, step: str) -> str:
    """Return the key of an effect of a step: ``what`` distinguishes it from others of its kind in that step."""
    return f"{kind}:{what}{EFFECT_MARK}{step}"


class Sequence:
    """The steps that an earlier try recorded in order, as a later try comes to ask for them.

    Only steps that are asked for by the agent itself, one after the other, have an order (0 and up); those of its
    threads and tasks have -1.
    """

    def __init__(self, recorded: Iterable[tuple[int, str]]) -> None:
        ordered = sorted((order, key) for order, key in recorded if order >= 0)
        self._waiting = deque(key for _, key in ordered)

    def expected(self, asked: Collection[str]) -> str | None:
        """Return the step that has to come next after ``asked``; None if any may come."""
        while self._waiting and self._waiting[0] in asked:
            self._waiting.popleft()
        return self._waiting[0] if self._waiting else None


def unasked_steps(recorded: Collection[str], asked: Collection[str]) -> list[str]:
    """Return the recorded steps that a try did not ask for, nor for one around them."""
    return sorted(
        key for key in recorded if key not in asked and not any(is_within(key, one) for one in asked)
    )

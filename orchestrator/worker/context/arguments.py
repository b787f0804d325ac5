"""Checks of the values that an agent gives: a wrong one is named before it has any effect."""

from __future__ import annotations

import math

from orchestrator.errors import InputError
from orchestrator.policy.moments import wait_ms


def check_list(name: str, value: object) -> None:
    """See that a value is no single text: it would be taken for a list of its characters.

    Raises:
        InputError: it is.
    """
    if isinstance(value, str):
        raise InputError(f"{name} = {value!r} is one text; give a list: {name}=[{value!r}]")


def check_timeout(value: object) -> None:
    """See that a value is a number of seconds, or None.

    Raises:
        InputError: it is neither.
    """
    if value is not None and (not isinstance(value, int | float) or math.isnan(value)):
        raise InputError(f"timeout_s = {value!r} is not a number of seconds")


def limit_of(timeout_s: float) -> int:
    """Return a time limit in milliseconds, at least one.

    Raises:
        InputError: it is longer than a century.
    """
    return max(1, wait_ms(max(0.0, timeout_s), what="timeout_s"))

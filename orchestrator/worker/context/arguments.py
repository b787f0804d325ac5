"""Checks of the values that an agent gives: a wrong one is named before it has any effect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

from orchestrator.envelope.bodies.work import EscalationReason
from orchestrator.envelope.model import RetryPolicy
from orchestrator.envelope.model_values import Priority
from orchestrator.envelope.structured import part_of
from orchestrator.errors import InputError
from orchestrator.policy.moments import wait_ms
from orchestrator.policy.routing import MAX_TIMEOUT_S

#: What the failure of a child means for its parent.
OnFailure = Literal["deliver", "fail", "ignore"]
#: What becomes of a child whose parent is closed; `heir:<session>` hands its callback on.
OnClose = Literal["stop", "abandon"]

PRIORITIES: Final[tuple[str, ...]] = get_args(get_args(Priority)[0])
REASONS: Final[tuple[str, ...]] = get_args(get_args(EscalationReason)[0])
ON_FAILURE: Final[tuple[str, ...]] = get_args(OnFailure)
ON_CLOSE: Final[tuple[str, ...]] = get_args(OnClose)


def check_list(name: str, value: object) -> None:
    """See that a value is no single text: it would be taken for a list of its characters.

    Raises:
        InputError: it is.
    """
    if isinstance(value, str):
        raise InputError(f"{name} = {value!r} is one text; give a list: {name}=[{value!r}]")


def check_choice(name: str, value: object, allowed: tuple[str, ...], *, optional: bool = True) -> None:
    """See that a value is one of those allowed, or None if it is optional: a misspelt one would silently do nothing.

    Raises:
        InputError: it is not.
    """
    if value not in allowed and not (optional and value is None):
        raise InputError(f"{name} = {value!r}: choose from {', '.join(map(repr, allowed))}")


def check_timeout(value: object) -> None:
    """See that a value is a number of seconds, or None.

    Raises:
        InputError: it is neither.
    """
    if value is not None and (not isinstance(value, int | float) or math.isnan(value)):
        raise InputError(f"timeout_s = {value!r} is not a number of seconds")


def check_seconds(name: str, value: object) -> None:
    """See that a value is a number of seconds above 0, or None.

    Raises:
        InputError: it is neither.
    """
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_TIMEOUT_S
    if value is not None and not fits:
        raise InputError(f"{name} = {value!r} is not a number of seconds above 0")


def check_progress(value: object) -> None:
    """See that a value is a whole percentage, or None.

    Raises:
        InputError: it is neither.
    """
    if value is not None and not (isinstance(value, int) and 0 <= value <= 100):
        raise InputError(f"status({value}): progress is a whole percentage, 0 to 100")


def limit_of(timeout_s: float) -> int:
    """A time limit in milliseconds, at least one.

    Raises:
        InputError: it is longer than a century.
    """
    return max(1, wait_ms(max(0.0, timeout_s), what="timeout_s"))


def policy_of(value: RetryPolicy | Mapping[str, Any] | None) -> RetryPolicy | None:
    """A retry policy, or None.

    Raises:
        InputError: it is neither.
    """
    return None if value is None else part_of(RetryPolicy, value, name="retry_policy")

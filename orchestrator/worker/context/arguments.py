"""What an agent hands in, checked where it does: a wrong value is named before anything comes of it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any, Final, get_args

from orchestrator.envelope.bodies.work import EscalationReason
from orchestrator.envelope.model import RetryPolicy
from orchestrator.envelope.model_values import Priority
from orchestrator.envelope.structured import part_of
from orchestrator.errors import InputError
from orchestrator.policy.routing import MAX_TIMEOUT_S
from orchestrator.worker.context.effects import OnClose, OnFailure

_PRIORITIES: Final[tuple[str, ...]] = get_args(get_args(Priority)[0])
_REASONS: Final[tuple[str, ...]] = get_args(get_args(EscalationReason)[0])


def check_text(name: str, value: object) -> None:
    """See that it is text.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, str):
        raise InputError(f"{name} = {value!r} is not text; give a str")


def check_timeout(value: object) -> None:
    """See that it is a number of seconds, or None.

    Raises:
        InputError: it is neither.
    """
    if value is not None and (not isinstance(value, int | float) or math.isnan(value)):
        raise InputError(f"timeout_s = {value!r} is not a number of seconds")


def check_seconds(name: str, value: object) -> None:
    """See that it is a number of seconds above 0, or None.

    Raises:
        InputError: it is neither.
    """
    fits = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MAX_TIMEOUT_S
    if value is not None and not fits:
        raise InputError(f"{name} = {value!r} is not a number of seconds above 0")


def policy_of(value: RetryPolicy | Mapping[str, Any] | None) -> RetryPolicy | None:
    """A retry policy, or None.

    Raises:
        InputError: it is neither.
    """
    return None if value is None else part_of(RetryPolicy, value, name="retry_policy")


def check_priority(value: object) -> None:
    """See that it is a priority, or None.

    Raises:
        InputError: it is neither.
    """
    if value is not None:
        _check_choice("priority", value, _PRIORITIES)


def check_reason(value: object) -> None:
    """See that it is a reason to escalate, or None.

    Raises:
        InputError: it is neither.
    """
    if value is not None:
        _check_choice("reason", value, _REASONS)


def check_policies(*, on_failure: object, on_close: object) -> None:
    """See that the policies of a delegation are some; misspelt ones would silently do nothing.

    Raises:
        InputError: they are not.
    """
    _check_choice("on_failure", on_failure, get_args(OnFailure))
    if on_close is not None:
        _check_choice("on_close", on_close, get_args(OnClose))


def _check_choice(name: str, value: object, allowed: Collection[str]) -> None:
    if value not in allowed:
        raise InputError(f"{name} = {value!r}: choose from {', '.join(map(repr, allowed))}")

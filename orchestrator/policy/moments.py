"""Moments and durations as people and programs write them, in milliseconds since the epoch. Pure functions."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from orchestrator.errors import InputError

#: The longest time from now until something happens: a larger one is a mistake in the unit.
MAX_AHEAD_S: Final = 100 * 366 * 86_400.0

_DURATION: Final = re.compile(
    "(?:([0-9]{1,10})w)?(?:([0-9]{1,10})d)?(?:([0-9]{1,10})h)?(?:([0-9]{1,10})m)?(?:([0-9]{1,10})s)?"
    "|([0-9]{1,10})"
)
#: Seconds of the units of :data:`_DURATION`, and of a number alone.
_UNITS_S: Final = (604_800, 86_400, 3_600, 60, 1, 1)


def moment_ms(when: object, *, now_ms: int, what: str = "when") -> int:
    """Return a moment in milliseconds since the epoch.

    Args:
        when: a `datetime` with a time zone, or seconds since the epoch.
        now_ms: the present time.
        what: how the caller names it, for the error.

    Raises:
        InputError: it is neither, or it is more than a century ahead.
    """
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InputError(
                f"{what} = {when.isoformat()} has no time zone; give one, such as tzinfo=datetime.UTC"
            )
        seconds: float = when.timestamp()
    elif isinstance(when, int | float) and not isinstance(when, bool) and -math.inf < when < math.inf:
        seconds = when
    else:
        raise InputError(f"{what} = {when!r} is neither a datetime nor a number of seconds since the epoch")
    if seconds > now_ms / 1000 + MAX_AHEAD_S:
        raise InputError(f"{what} = {when!r} is more than a century ahead; a number is in seconds")
    return max(0, round(seconds * 1000))


def wait_ms(seconds: object, *, what: str = "seconds") -> int:
    """Return a time to wait in milliseconds.

    Raises:
        InputError: it is no number of seconds from 0 to a century.
    """
    if isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= MAX_AHEAD_S:
        return round(seconds * 1000)
    raise InputError(f"{what} = {seconds!r} is not a number of seconds from 0 to a century")


def check_timeout(value: object) -> None:
    """See that a value is a number of seconds, or None.

    Raises:
        InputError: it is neither.
    """
    if value is not None and (not isinstance(value, int | float) or math.isnan(value)):
        raise InputError(f"timeout_s = {value!r} is not a number of seconds")


def limit_ms(timeout_s: float) -> int:
    """Return a time limit in milliseconds, at least one.

    Raises:
        InputError: it is longer than a century.
    """
    return max(1, wait_ms(max(0.0, timeout_s), what="timeout_s"))


def parse_moment(text: str) -> datetime:
    """Return a moment in ISO 8601, such as `2026-12-01T09:00`; without a time zone it is in that of this machine.

    Raises:
        InputError: it is none.
    """
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise InputError(
            f"{text!r} is not a moment in ISO 8601; write for example 2026-12-01T09:00 or 2026-12-01T09:00Z"
        ) from None


def parse_duration(text: str) -> timedelta:
    """Return a duration such as `90s`, `2h30m`, `1d` or `2w`; a number alone is in seconds.

    Raises:
        InputError: it is none, or longer than a century.
    """
    parts = _DURATION.fullmatch(text) if text else None
    seconds = (
        sum(int(part or 0) * unit for part, unit in zip(parts.groups(), _UNITS_S, strict=True))
        if parts
        else 0
    )
    if parts is None or seconds > MAX_AHEAD_S:
        raise InputError(f"{text!r} is not a duration; write for example 90s, 30m, 2h30m or 1d")
    return timedelta(seconds=seconds)


def parse_past(text: str, *, now_ms: int) -> int:
    """Return a time, or how long ago it was (`90s`, `2h30m`, `7d`), in milliseconds since the epoch.

    Raises:
        InputError: it is neither.
    """
    with suppress(InputError):
        return round(parse_moment(text).timestamp() * 1000)
    with suppress(InputError):
        return now_ms - round(parse_duration(text).total_seconds() * 1000)
    raise InputError(f"{text!r} is neither how long ago (90s, 15m, 2h, 7d) nor a time (2026-01-31T08:00:00Z)")

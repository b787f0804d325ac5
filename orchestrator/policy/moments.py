"""Moments and durations as people and programs write them, in milliseconds since the epoch. Pure functions."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Final

from orchestrator.errors import InputError

#: The longest time from now until something happens: a larger one is a mistake in the unit.
MAX_AHEAD_S: Final = 100 * 366 * 86_400.0

_UNITS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}
_DURATION: Final = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def moment_ms(when: object, *, now_ms: int, what: str = "when") -> int:
    """A moment in milliseconds since the epoch.

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
        seconds = when.timestamp()
    elif isinstance(when, int | float) and not isinstance(when, bool) and math.isfinite(when):
        seconds = float(when)
    else:
        raise InputError(f"{what} = {when!r} is neither a datetime nor a number of seconds since the epoch")
    if seconds - now_ms / 1000 > MAX_AHEAD_S:
        raise InputError(f"{what} = {when!r} is more than a century ahead; a number is in seconds")
    return max(0, round(seconds * 1000))


def wait_ms(seconds: object, *, what: str = "seconds") -> int:
    """A time to wait in milliseconds.

    Raises:
        InputError: it is no number of seconds from 0 to a century.
    """
    fine = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= MAX_AHEAD_S
    if not fine:
        raise InputError(f"{what} = {seconds!r} is not a number of seconds from 0 to a century")
    assert isinstance(seconds, int | float)
    return round(seconds * 1000)


def parse_moment(text: str) -> datetime:
    """A moment in ISO 8601, such as `2026-12-01T09:00`; without a time zone it is in that of this machine.

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
    """A duration such as `90s`, `2h30m` or `1d`; a number alone is in seconds.

    Raises:
        InputError: it is none, or longer than a century.
    """
    found = re.fullmatch(r"\d+", text)
    parts = [0, 0, 0, int(text)] if found else []
    if not found and text and (match := _DURATION.fullmatch(text)):
        parts = [int(part or 0) for part in match.groups()]
    seconds = sum(part * unit for part, unit in zip(parts, _UNITS.values(), strict=False))
    if not parts or seconds > MAX_AHEAD_S:
        raise InputError(f"{text!r} is not a duration; write for example 90s, 30m, 2h30m or 1d")
    return timedelta(seconds=seconds)


def utc(ms: int) -> datetime:
    """Milliseconds since the epoch as a moment in UTC."""
    return datetime.fromtimestamp(ms / 1000, UTC)

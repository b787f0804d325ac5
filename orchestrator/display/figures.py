"""Figures for people: numbers, durations, sizes, shares and money, short enough for a column."""

from __future__ import annotations

from typing import Final

_SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000))
_SIZES: Final = (("GB", 10**9), ("MB", 10**6), ("kB", 10**3))


def number(count: int) -> str:
    """Return a number with its thousands apart."""
    return f"{count:,}"


def span(ms: float | None) -> str:
    """Return a duration in the largest unit that it fills; a dash if there is none."""
    if ms is None:
        return "–"
    for unit, size in _SPANS:
        if ms >= size:
            return f"{ms / size:.1f} {unit}" if ms < 10 * size else f"{ms / size:.0f} {unit}"
    return f"{ms:.0f} ms"


def size(octets: int) -> str:
    """Bytes in the largest unit that they fill."""
    for unit, whole in _SIZES:
        if octets >= whole:
            return f"{octets / whole:.1f} {unit}"
    return f"{octets} B"


def share(part: float | None) -> str:
    """Return a part of a whole in percent; only the whole is 100 %."""
    if part is None:
        return "–"
    if part in (0, 1):
        return f"{part:.0%}".replace("%", " %")
    return f"{min(99.99, max(0.01, part * 100)):.2f} %"


def money(usd: float) -> str:
    """US dollars; what is less than a cent, exactly enough to be seen."""
    return f"${usd:,.2f}" if usd >= 1 or not usd else f"${usd:.4f}"

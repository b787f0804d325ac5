"""Counters and histograms by label values, as JSON and back."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from orchestrator.telemetry.catalogue import BUCKETS, BY_NAME, MOST_VALUES, OTHER

Labels = tuple[str, ...]


class Totals:
    """Everything that was counted and measured. The number of values of a label is bounded."""

    def __init__(self) -> None:
        self._counters: dict[str, dict[Labels, float]] = defaultdict(dict)
        #: Of each histogram the sum, then how many fell into each bucket, the last one without an upper bound.
        self._histograms: dict[str, dict[Labels, list[float]]] = defaultdict(dict)
        self._values: dict[str, set[str]] = defaultdict(set)
        #: Metrics with label values that stand for themselves.
        self._known: set[tuple[str, Labels]] = set()

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Count so many more."""
        key = self._bounded(name, labels)
        counted = self._counters[name]
        counted[key] = counted.get(key, 0) + by

    def observe(self, name: str, ms: float, *labels: str) -> None:
        """Note a duration in milliseconds; what a clock that was set back makes negative is 0."""
        key, seconds = self._bounded(name, labels), max(0.0, ms / 1000)
        row = self._histograms[name].setdefault(key, [0.0] * (len(BUCKETS) + 2))
        row[0] += seconds
        row[1 + bisect_left(BUCKETS, seconds)] += 1

    def at_least(self, name: str, value: float, *labels: str) -> None:
        """Set a counter that is counted elsewhere; it never goes back."""
        key = self._bounded(name, labels)
        counted = self._counters[name]
        counted[key] = max(value, counted.get(key, 0))

    def of(self, name: str, *labels: str) -> float:
        """Return what was counted."""
        return self._counters.get(name, {}).get(labels, 0)

    def counters(self, name: str) -> Iterator[tuple[Labels, float]]:
        """Yield the label values of a counter with what was counted."""
        yield from list(self._counters.get(name, {}).items())

    def histograms(self, name: str) -> Iterator[tuple[Labels, float, list[float]]]:
        """Yield the label values of a histogram, its sum, and how many fell into each bucket."""
        for labels, row in list(self._histograms.get(name, {}).items()):
            yield labels, row[0], row[1:]

    def _bounded(self, name: str, labels: Labels) -> Labels:
        if (name, labels) in self._known:
            return labels
        bounded = tuple(
            self._value(label, value) for label, value in zip(BY_NAME[name].labels, labels, strict=True)
        )
        if bounded == labels:
            self._known.add((name, labels))
        return bounded

    def _value(self, label: str, value: str) -> str:
        known = self._values[label]
        if value not in known:
            if len(known) >= MOST_VALUES:
                return OTHER
            known.add(value)
        return value

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON has it."""
        return {
            "counters": {
                name: [[*key, value] for key, value in of.items()] for name, of in self._counters.items()
            },
            "histograms": {
                name: [[list(key), row] for key, row in of.items()] for name, of in self._histograms.items()
            },
        }

    @classmethod
    def from_json(cls, document: Any) -> Totals:
        """Return the inverse of :meth:`to_json`; metrics that this version does not have are left out.

        Raises:
            ValueError: the buckets are those of another version.
            TypeError, KeyError, IndexError, AttributeError: it is something else.
        """
        found = cls()
        for name, rows in document["counters"].items():
            if name in BY_NAME:
                for *key, value in rows:
                    found.count(name, *key, by=float(value))
        for name, rows in document["histograms"].items():
            if name in BY_NAME:
                for key, row in rows:
                    if len(row) != len(BUCKETS) + 2:
                        raise ValueError(f"{name} has other buckets")
                    found._histograms[name][found._bounded(name, tuple(key))] = [float(n) for n in row]
        return found

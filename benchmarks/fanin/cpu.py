"""CPU time of processes, from /proc; nothing where there is none."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def children() -> dict[int, list[int]]:
    """The children of every process."""
    found: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        stat = _stat(int(entry.name))
        if stat is not None:
            found.setdefault(stat[0], []).append(int(entry.name))
    return found


def by_process(labels: Mapping[int, str]) -> dict[str, float]:
    """CPU milliseconds so far, by label; a child of a labelled process counts as `<label> children`."""
    times: dict[str, float] = {}
    below = children()
    for pid, label in labels.items():
        _add(times, label, pid)
        waiting = [child for child in below.get(pid, []) if child not in labels]
        while waiting:
            child = waiting.pop()
            _add(times, f"{label} children", child)
            waiting += below.get(child, [])
    return times


def difference(before: Mapping[str, float], after: Mapping[str, float], size: int) -> dict[str, float]:
    """CPU milliseconds for each child between two looks."""
    return {label: (ms - before.get(label, 0)) / size for label, ms in after.items()}


def medians(differences: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each label, and of the sums."""
    labels = sorted({label for d in differences for label in d})
    found = {label: round(statistics.median(d.get(label, 0) for d in differences), 3) for label in labels}
    return {**found, "all": round(statistics.median(sum(d.values()) for d in differences), 3)}


def _add(times: dict[str, float], label: str, pid: int) -> None:
    stat = _stat(pid)
    if stat is not None:
        times[label] = times.get(label, 0) + stat[1]


def _stat(pid: int) -> tuple[int, float] | None:
    """Parent and CPU milliseconds of a process."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return int(fields[1]), (int(fields[11]) + int(fields[12])) * _TICK_MS

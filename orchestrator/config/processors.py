"""Processors that this process may use: those of the machine, less what its container or its affinity forbids."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def processors(root: Path = Path("/")) -> int:
    """Their number, at least 1; a share of one counts as one. ``root`` is where `/proc` and `/sys` are."""
    affinity = getattr(os, "sched_getaffinity", None)
    there = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, math.ceil(min([there, *_quotas(root)])))


def _quotas(root: Path) -> Iterator[float]:
    """Yield the limits of the control groups that this process is in, version 2 and version 1."""
    groups = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # In a container the path may be the host's, and the group be mounted at the top.
        within = Path(path.lstrip("/"))
        for group in dict.fromkeys([within, *within.parents, Path()]):
            folder = groups / group if not controllers else groups / "cpu" / group
            quota, _, period = _read(folder / "cpu.max").partition(" ")
            if controllers:
                quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
            with suppress(ValueError, ZeroDivisionError):  # "max", or no such file
                if int(quota) > 0:
                    yield int(quota) / int(period)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""

"""The default of the concurrency heeds what a container may use, not what its host has."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.config import processors as module
from orchestrator.config.processors import processors
from orchestrator.config.settings import load_settings


@pytest.fixture(autouse=True)
def host_of_64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 64),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, 64),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "250000 100000"}, 3),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "10000 100000"}, 1),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "what is this"}, 64),
        # The limit of a group above it.
        (
            {
                "proc/self/cgroup": "0::/a.slice/b.scope",
                "sys/fs/cgroup/a.slice/b.scope/cpu.max": "max 100000",
                "sys/fs/cgroup/a.slice/cpu.max": "600000 100000",
            },
            6,
        ),
        # The path is the host's, the mount is the container's.
        ({"proc/self/cgroup": "0::/docker/5f", "sys/fs/cgroup/cpu.max": "800000 100000"}, 8),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/docker/5f\n4:memory:/docker/5f",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "500000",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": "5:cpu,cpuacct:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            64,
        ),
    ],
)
def test_the_least_limit_counts(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert processors(tmp_path) == expected


@pytest.mark.parametrize(("limit", "expected"), [(2, 4), (9, 9)])
def test_it_is_the_default_of_the_concurrency(
    monkeypatch: pytest.MonkeyPatch, limit: int, expected: int
) -> None:
    monkeypatch.setattr("orchestrator.config.settings.processors", lambda: limit)
    assert load_settings().concurrency == expected

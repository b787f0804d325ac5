"""The check of a container: well when this host's copy of the service gave a sign of life, else one line."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from orchestrator.healthcheck import check
from orchestrator.redisdb import keys


def register(client: redis.Redis, service: str, host: str, *, alive: bool = True) -> None:
    record = {"service": service, "instance": f"{service}@{host}", "host": host, "pid": 1, "started_ms": 1}
    record["alive_until_ms"] = 4_000_000_000_000 if alive else 2
    client.hset(keys.services(), f"{service}@{host}", json.dumps(record))


def test_only_a_living_copy_on_this_host_counts(
    redis_url: str, redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRA_REDIS_URL", redis_url)
    here = socket.gethostname()
    register(redis, "router", "elsewhere")
    register(redis, "reaper", here, alive=False)
    register(redis, "audit", here)
    assert check("router") == f"no router on {here} gave a sign of life"
    assert check("reaper") == f"no reaper on {here} gave a sign of life"
    assert check("audit") is None


def test_the_exit_code_says_it_whatever_lies_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "redis.py").write_text("raise RuntimeError('a module of the working directory')")
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator.healthcheck", "router"],
        env={"ORCHESTRA_DATA": str(tmp_path), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Error: no stack is running on")
    assert done.stderr.count("\n") == 1

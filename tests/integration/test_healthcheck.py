"""The check of a container: well when this host's copy of the service gave a sign of life, else one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.runtime.probe import Probe, complaint
from tests.waiting import wait_until

Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path, redis_url: str) -> Environment:
    given = {"ORCHESTRA_REDIS_URL": redis_url, "ORCHESTRA_DATA": str(tmp_path / "data")}
    return {**os.environ, **given, "TMPDIR": str(tmp_path)}


@pytest.fixture
def reaper(environment: Environment) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "service", "reaper"],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def check(environment: Environment, service: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-m", "orchestrator.healthcheck", service],
        env=environment,
        cwd=environment["TMPDIR"],
        capture_output=True,
        text=True,
        check=False,
    )


def said(environment: Environment) -> str:
    """What the check says of the reaper, without the name of the host."""
    done = check(environment, "reaper")
    assert done.returncode == (1 if done.stderr else 0)
    return " ".join(word for word in done.stderr.split() if word != os.uname().nodename)


def test_it_follows_a_service_from_its_start_to_its_loss(
    environment: Environment, reaper: subprocess.Popen[str]
) -> None:
    (Path(environment["TMPDIR"]) / "socket.py").write_text("raise RuntimeError('of the working directory')")
    wait_until(lambda: said(environment) == "", timeout_s=60)
    reaper.send_signal(signal.SIGSTOP)
    assert said(environment) == "Error: reaper on is hung: no answer for 2 s"
    reaper.send_signal(signal.SIGCONT)
    wait_until(lambda: said(environment) == "")
    assert check(environment, "router").stderr.startswith("Error: no router is running on ")
    reaper.kill()
    reaper.wait()
    assert said(environment) == "Error: no reaper is running on"


def test_it_imports_neither_settings_nor_redis(
    environment: Environment, reaper: subprocess.Popen[str]
) -> None:
    """Nine containers that are probed twice a minute cost more than the idle stack did."""
    wait_until(lambda: said(environment) == "", timeout_s=60)
    done = check(environment, "reaper", "-X", "importtime")
    assert done.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "orchestrator.runtime.probe" in imported
    ours = {name for name in imported if name.startswith("orchestrator.")}
    assert ours == {"orchestrator.runtime", "orchestrator.runtime.probe"}
    assert not imported & {"redis", "pydantic", "click", "asyncio", "subprocess", "tempfile", "inspect"}


def test_a_copy_whose_signs_of_life_stopped_is_hung_and_another_is_enough() -> None:
    service = f"toy{os.getpid()}"
    hung, well = Probe(service, "a", data="", late_s=-1), Probe(service, "b", data="", late_s=60)
    hung.open()
    answer = complaint(service)
    assert answer is not None
    assert "is hung: no sign of life for 0 s" in answer
    well.open()
    well.open()  # as after each outage
    assert complaint(service) is None
    well.close()
    hung.close()
    wait_until(lambda: complaint(service) == f"no {service} is running on {os.uname().nodename}")

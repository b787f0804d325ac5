"""The check of a container: well when this host's copy of the service gave a sign of life, else one line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.runtime.probe import Probe, complaint, folder
from tests.waiting import wait_until

Environment = dict[str, str]


@pytest.fixture
def environment(tmp_path: Path, redis_url: str) -> Environment:
    given = {"ORCHESTRA_REDIS_URL": redis_url, "ORCHESTRA_DATA": str(tmp_path / "data")}
    return {**os.environ, **given, "TMPDIR": str(tmp_path)}


@pytest.fixture
def reaper(environment: Environment) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "orchestrator", "reaper"], env=environment, stderr=subprocess.PIPE, text=True
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


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return Path(folder())


def test_a_copy_whose_signs_of_life_stopped_is_hung_and_another_is_enough(own_folder: Path) -> None:
    hung, well = Probe("toy", "a", late_s=-1), Probe("toy", "b", late_s=60)
    hung.open()
    answer = complaint("toy")
    assert answer is not None
    assert "is hung: no sign of life for 0 s" in answer
    well.open()
    well.open()  # as after each outage
    assert complaint("toy") is None
    well.close()
    hung.close()
    assert list(own_folder.iterdir()) == []


def test_what_a_killed_process_left_goes_and_a_folder_of_others_is_not_used(own_folder: Path) -> None:
    killed = "import os; from orchestrator.runtime.probe import Probe; Probe('toy', 'a', late_s=9).open(); os._exit(9)"
    subprocess.run([sys.executable, "-c", killed], check=False)
    assert [path.name for path in own_folder.iterdir()] == ["toy.a.sock"]
    probe = Probe("toy", "b", late_s=60)
    probe.open()
    assert [path.name for path in own_folder.iterdir()] == ["toy.b.sock"]
    probe.close()
    own_folder.chmod(0o777)
    with pytest.raises(PermissionError, match="open to others; remove it"):
        probe.open()

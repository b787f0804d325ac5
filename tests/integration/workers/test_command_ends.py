"""Nothing of a command-line agent outlives its run: stops, lost leases, limits, daemons, killed workers and guards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.runtime.process import is_alive
from tests.crew import FAKE, ROOT, Crew
from tests.waiting import wait_until

RETRY_FOR_S = 60.0


def pid_in(file: Path) -> int:
    wait_until(lambda: file.exists() and file.read_text(), str(file))
    return int(file.read_text())


@pytest.mark.parametrize("before", ["", "!ignore\n"], ids=["heeds", "ignores SIGTERM"])
def test_a_stopped_run_ends_its_program(
    crew: Crew, tmp_path: Path, playing: Callable[..., threading.Thread], before: str
) -> None:
    crew.agent()
    kit, file, daemon = crew.kit, tmp_path / "pid", tmp_path / "daemon"
    root = kit.submit("coder", f"{before}!fork {daemon}\n!touch {file}\n!hang")
    thread = playing(lambda: kit.play(root))
    pids = [pid_in(file), pid_in(daemon)]
    assert all(map(is_alive, pids))
    kit.ledger.stop(root, "enough")
    thread.join(RETRY_FOR_S)
    assert not any(map(is_alive, pids))
    assert kit.ledger.session(root).state == "stopped"


def test_a_run_past_its_time_limit_ends_its_program(crew: Crew, tmp_path: Path) -> None:
    crew.agent(time_limit_s=1.0)
    file = tmp_path / "pid"
    answer = crew.ask(f"!touch {file}\n!hang")
    assert "longer than its time limit of 1 s" in answer
    assert not is_alive(pid_in(file))


def test_a_program_that_falls_silent_is_ended(crew: Crew, tmp_path: Path) -> None:
    crew.agent(silence_limit_s=0.5)
    file = tmp_path / "pid"
    answer = crew.ask(f"!touch {file}\n!hang")
    assert "it printed nothing for 0.5 s (silence_limit_s)" in answer
    assert not is_alive(pid_in(file))


def test_a_program_that_only_logs_is_not_silent(crew: Crew) -> None:
    crew.agent(
        command=("sh", "-c", "for i in 1 2 3 4; do sleep 0.2; echo $i >&2; done; echo done"),
        silence_limit_s=0.6,
    )
    assert crew.ask("go") == "done\n"


def test_a_lost_claim_ends_the_program_at_once(
    crew: Crew, tmp_path: Path, playing: Callable[..., threading.Thread]
) -> None:
    crew.agent(stop_grace_s=600)
    kit, file = crew.kit, tmp_path / "pid"
    root = kit.submit("coder", f"!ignore\n!touch {file}\n!hang")
    dispatch = kit.start(root)
    verdicts: list[str] = []
    thread = playing(lambda: verdicts.append(kit.execute(dispatch)))
    pid = pid_in(file)
    # The holder lives and renews its lease, so an observer has to be as quick as it.
    wait_until(
        lambda: [kit.ledger.release(lease, by="coder") for lease in kit.ledger.sweep.leases(0)] == ["queued"],
        "the release of the lease",
    )
    thread.join(RETRY_FOR_S)
    assert verdicts == ["lost"]
    assert not is_alive(pid)


def test_what_a_program_leaves_behind_ends_with_it(crew: Crew, tmp_path: Path) -> None:
    crew.agent()
    file = tmp_path / "daemon"
    assert crew.ask(f"!fork {file}\n!result left").strip() == "<response>left</response>"
    assert not is_alive(pid_in(file))


WORKER = """
import sys
from pathlib import Path
from orchestrator.worker.executors.command.process import AgentProcess
with AgentProcess(sys.argv[1:], env={"PATH": "/usr/bin:/bin"}, folder=Path("/"), stop_grace_s=600) as process:
    process.talk(b"", on_output=lambda _: None, on_error=lambda _: None, look=lambda: None)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, list[int]]]:
    """A worker process that runs an agent with a daemon; the guard, and the processes of the agent."""
    file, daemon = tmp_path / "pid", tmp_path / "daemon"
    prompt = f"!ignore\n!fork {daemon}\n!touch {file}\n!hang"
    process = subprocess.Popen([sys.executable, "-c", WORKER, *FAKE, prompt], cwd=ROOT)
    pids = [pid_in(file), pid_in(daemon)]
    guard = int(Path(f"/proc/{pids[0]}/stat").read_text().rpartition(")")[2].split()[1])
    yield process, guard, pids
    process.kill()
    process.wait()
    for pid in pids:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)


def test_a_killed_worker_takes_everything_with_it(
    worker: tuple[subprocess.Popen[bytes], int, list[int]],
) -> None:
    process, guard, pids = worker
    assert all(map(is_alive, [guard, *pids]))
    process.kill()
    wait_until(
        lambda: not any(map(is_alive, [guard, *pids])), "the end of the guard, the agent and its daemon"
    )


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="the kernel kills by PR_SET_PDEATHSIG on Linux only"
)
def test_a_killed_guard_takes_the_program_with_it_but_not_a_daemon(
    worker: tuple[subprocess.Popen[bytes], int, list[int]],
) -> None:
    """How far it goes: only a sandbox ends what became a daemon before its guard was killed."""
    _, guard, (agent, daemon) = worker
    os.kill(guard, signal.SIGKILL)
    wait_until(lambda: not is_alive(agent), "the end of the agent")
    assert is_alive(daemon)

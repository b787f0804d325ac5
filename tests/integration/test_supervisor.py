"""The supervisor: readiness, restarts, giving up with a reason, stopping in order with nothing left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator.deployment.supervisor import ChildSpec
from orchestrator.errors import ConfigurationError
from orchestrator.runtime.process import is_alive
from tests.supervised import Supervised
from tests.waiting import wait_until

READY = "import os, signal, sys, time; os.write(int(os.environ['ORCHESTRA_READY_FD']), b'ready');"
SLEEP = READY + "time.sleep(600)"
STUBBORN = READY + "signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
WITH_CHILD = (
    "import subprocess, sys;"
    "p = subprocess.Popen([sys.executable, '-S', '-c', 'import time; time.sleep(600)']); print(p.pid, flush=True);"
    + SLEEP
)


def child(name: str, code: str, **fields: object) -> ChildSpec:
    return ChildSpec(name=name, command=(sys.executable, "-S", "-c", code), **fields)  # type: ignore[arg-type]


Supervise = Callable[..., Supervised]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    """Runs children."""
    with ExitStack() as leaving:

        def make(*specs: ChildSpec) -> Supervised:
            supervisor = Supervised(*specs, logs=tmp_path / "logs")
            leaving.callback(supervisor.stop_at_once)
            return supervisor

        yield make


def test_the_stack_is_ready_when_every_child_has_said_so(supervise: Supervise) -> None:
    supervisor = supervise(child("a", SLEEP), child("b", "import time; time.sleep(0.3);" + SLEEP))
    supervisor.until_told("ready")
    supervisor.until_ready()
    assert supervisor.told() == supervisor.told("b") == ["ready"]


def test_a_child_that_is_killed_is_started_again(supervise: Supervise) -> None:
    supervisor = supervise(child("a", SLEEP))
    supervisor.until_ready()
    first = supervisor.kill()
    supervisor.until_told("recovered")
    assert supervisor.told() == ["ready", "restarting", "recovered"]
    assert "killed by signal 9" in supervisor.notices[1].detail
    assert supervisor.pids["a"] != first


def test_one_that_is_killed_again_and_again_comes_back_at_once_each_time(supervise: Supervise) -> None:
    """A kill is no crash: it says nothing about what the next one will do."""
    supervisor = supervise(child("a", SLEEP))
    seen: set[int] = set()
    for _ in range(8):
        supervisor.until_ready()
        seen.add(supervisor.pids["a"])
        began = time.monotonic()
        supervisor.kill()
        supervisor.until(lambda: set(supervisor.pids.values()) - seen)
        assert time.monotonic() - began < 5


FINISHING = READY + (
    "signal.signal(signal.SIGTERM, lambda *_: print('asked', flush=True));"
    "import pathlib\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)"
)


@pytest.mark.parametrize(
    ("end", "detail"),
    [
        # What it logged last is not why it ended.
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed by signal 9"),
        ("sys.exit(3)", "exit code 3; run-failed: broken"),
    ],
)
def test_how_a_child_ended_is_said_in_words(supervise: Supervise, end: str, detail: str) -> None:
    line = """print('{"time": "2026", "level": "error", "event": "run-failed", "error": "broken"}', flush=True)"""
    supervisor = supervise(child("a", f"{READY}{line};{end}"))
    supervisor.until_told("restarting")
    assert next(notice.detail for notice in supervisor.notices if notice.kind == "restarting") == detail


def test_a_replaced_child_finishes_while_its_successor_works(supervise: Supervise, tmp_path: Path) -> None:
    supervisor = supervise(child("a", FINISHING.replace("sys.argv[1]", repr(str(tmp_path / "go")))))
    supervisor.until_ready()
    first, log = supervisor.pids["a"], supervisor.logs["a"]
    supervisor.replace(child("a", SLEEP))
    assert supervisor.pids["a"] == first  # until the other one is ready
    supervisor.until(lambda: supervisor.pids["a"] != first)
    supervisor.until(lambda: "asked" in log.read_text())
    assert is_alive(first)
    (tmp_path / "go").touch()
    supervisor.until_told("retired")
    assert supervisor.told() == ["ready", "replaced", "retired"]
    assert not is_alive(first)
    supervisor.kill()  # the successor is kept alive as any child
    supervisor.until_told("recovered")


def test_a_successor_that_does_not_get_ready_changes_nothing(supervise: Supervise) -> None:
    supervisor = supervise(child("a", SLEEP))
    supervisor.until_ready()
    first = supervisor.pids["a"]
    supervisor.replace(child("a", "print('Error: no such thing', flush=True); raise SystemExit(1)"))
    supervisor.until_told("kept")
    assert supervisor.notices[-1].detail == "no such thing"
    assert supervisor.pids["a"] == first
    assert is_alive(first)


def test_of_successors_the_last_one_counts_and_none_outlives_the_supervisor(supervise: Supervise) -> None:
    supervisor = supervise(child("a", STUBBORN, stop_with=((signal.SIGTERM, 0.1),)))
    supervisor.until(lambda: supervisor.ready and "deaf" in supervisor.logs["a"].read_text())
    first = supervisor.pids["a"]
    supervisor.replace(child("a", "import time; time.sleep(600)"))
    supervisor.replace(child("a", SLEEP + "#last"))
    supervisor.until(lambda: supervisor.pids["a"] != first)
    supervisor.until_told("retired")  # the one that never was ready
    supervisor.replace(child("a", "import time; time.sleep(600)"))
    assert is_alive(first)
    last = supervisor.pids["a"]
    supervisor.stop()
    assert not is_alive(first)
    assert not is_alive(last)
    assert "killed" in supervisor.told()


def test_a_child_that_asked_itself_to_end_is_started_again(supervise: Supervise) -> None:
    """As a worker does whose consumer stays silent: the exit is clean, and nobody else asked for it."""
    ends = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit());" + SLEEP
    supervisor = supervise(child("a", ends))
    supervisor.until_ready()
    os.kill(supervisor.pids["a"], signal.SIGTERM)
    supervisor.until_told("recovered")
    assert "exit code 0" in supervisor.notices[1].detail


def test_what_a_killed_child_had_started_goes_with_it(supervise: Supervise) -> None:
    """A worker's pool processes must not go on without their master."""
    supervisor = supervise(child("a", WITH_CHILD))
    supervisor.until_ready()
    grandchild = int(supervisor.logs["a"].read_text().split()[0])
    supervisor.kill()
    supervisor.until_told("recovered")
    supervisor.until(lambda: not is_alive(grandchild))


def test_a_child_that_says_why_it_cannot_start_is_given_up_at_once(supervise: Supervise) -> None:
    supervisor = supervise(child("a", "import sys; sys.exit('Error: the moon is not full')"))
    with pytest.raises(ConfigurationError, match=r"a does not start: the moon is not full \(log: .*a\.log\)"):
        supervisor.until(lambda: False)
    assert not supervisor.notices


def test_the_reason_is_found_in_a_traceback_of_ours(supervise: Supervise) -> None:
    """Celery prints what the import of the application raised, and its own words before it."""
    code = (
        "import sys; print('Error: Invalid value for \\'-A\\' / \\'--app\\':');"
        "print('Traceback'); sys.exit('orchestrator.errors.AgentsFileError: cannot load agents from x.py: no')"
    )
    supervisor = supervise(child("worker", code))
    with pytest.raises(ConfigurationError, match=r"worker does not start: cannot load agents from x\.py: no"):
        supervisor.until(lambda: False)


def test_a_child_that_keeps_crashing_before_it_is_ready_is_given_up(supervise: Supervise) -> None:
    supervisor = supervise(child("a", "import sys; sys.exit('boom')"))
    with pytest.raises(ConfigurationError, match="a does not start: boom"):
        supervisor.until(lambda: False)
    assert supervisor.told() == ["restarting", "restarting"]


def test_a_child_that_was_ready_once_is_never_given_up(supervise: Supervise, tmp_path: Path) -> None:
    flag = tmp_path / "broken"
    code = f"import os, sys; os.path.exists({str(flag)!r}) and sys.exit('Error: broken');" + SLEEP
    supervisor = supervise(child("a", code))
    supervisor.until_ready()
    flag.touch()
    supervisor.kill()
    supervisor.until(lambda: supervisor.told().count("restarting") >= 4)
    flag.unlink()
    supervisor.until_ready()


def test_children_are_stopped_stage_by_stage(supervise: Supervise, tmp_path: Path) -> None:
    """The worker may still finish what runs, because the services are stopped after it."""
    order = tmp_path / "order"
    code = (
        "import os, signal, sys, time\n"
        "def leave(*_):\n"
        "    time.sleep({pause})\n"
        f"    open({str(order)!r}, 'a').write('{{name}} ')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, leave)\n" + SLEEP
    )
    supervisor = supervise(
        child("service", code.format(name="service", pause=0), stage=2),
        child("worker", code.format(name="worker", pause=0.3), stage=1),
    )
    supervisor.until_ready()
    supervisor.stop()
    assert order.read_text() == "worker service "
    assert supervisor.pids == {}


def test_a_child_that_does_not_listen_is_killed_in_the_end(supervise: Supervise) -> None:
    spec = child("a", STUBBORN, stop_with=((signal.SIGTERM, 0.2), (signal.SIGTERM, 0.1)))
    supervisor = supervise(spec)
    supervisor.until(lambda: supervisor.ready and "deaf" in supervisor.logs["a"].read_text())
    pid = supervisor.pids["a"]
    supervisor.stop()
    assert not is_alive(pid)
    assert supervisor.told()[-1] == "killed"


def test_asking_twice_kills_at_once(supervise: Supervise) -> None:
    supervisor = supervise(child("a", STUBBORN, stop_with=((signal.SIGTERM, 60.0),)))
    supervisor.until_ready()
    pid = supervisor.pids["a"]
    began = time.monotonic()
    supervisor.stop(at_once=lambda: time.monotonic() > began + 0.2)
    assert time.monotonic() - began < 10
    assert not is_alive(pid)


def test_a_log_that_grew_too_long_is_kept_once_and_begun_anew(
    supervise: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.deployment.supervisor._LOG_LIMIT_BYTES", 1000)
    code = READY + "print('x' * 2000, flush=True); time.sleep(600)"
    supervisor = supervise(child("a", code))
    log = supervisor.logs["a"]
    supervisor.until(lambda: supervisor.ready and log.stat().st_size > 1000)
    supervisor.trim_logs()
    assert log.stat().st_size == 0
    assert "xxx" in log.with_suffix(".log.1").read_text()


def test_a_child_comes_back_although_somebody_has_removed_the_logs(supervise: Supervise) -> None:
    supervisor = supervise(child("a", SLEEP))
    supervisor.until_ready()
    shutil.rmtree(supervisor.logs["a"].parent)
    supervisor.kill()
    supervisor.until_told("recovered")
    assert supervisor.logs["a"].exists()


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells a process that its parent died"
)
def test_children_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from pathlib import Path
from orchestrator.deployment.supervisor import ChildSpec, Supervisor
spec = ChildSpec(name="a", command=(sys.executable, "-S", "-c", {SLEEP!r}))
supervisor = Supervisor([spec], env=os.environ, logs=Path({str(tmp_path)!r}))
while not supervisor.ready:
    supervisor.tick()
print(supervisor.pids["a"], flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        pid = int(process.stdout.readline())
        assert is_alive(pid)
        process.kill()
    wait_until(lambda: not is_alive(pid))

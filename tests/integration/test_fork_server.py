"""Processes that are forked: each is as if it had been started, ends as such, and outlives nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.config.settings import load_settings
from orchestrator.deployment.fork_server import PRELOAD
from orchestrator.deployment.forks import Forked, ForkServer
from orchestrator.deployment.local_stack import LocalStack
from orchestrator.deployment.supervisor import ChildSpec, Notice
from orchestrator.errors import ConfigurationError
from orchestrator.runtime.process import is_alive, python_module
from tests.supervised import Supervised
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only")

TOY = """
import atexit, gc, json, logging, os, random, signal, sys, threading, time
from orchestrator import crashpoints
from orchestrator import machine

def descriptors():
    found = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            found[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            pass
    return found

def facts():
    return {
        "arguments": sys.argv[1:],
        "program": os.path.basename(sys.argv[0]),
        "main": sys.modules["__main__"].__spec__.name,
        "leader": os.getsid(0) == os.getpid() == os.getpgid(0),
        "environment": dict(os.environ),
        "handlers": {n: str(signal.getsignal(n)).split(" at ")[0] for n in range(1, signal.NSIG)},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "wakeup": signal.set_wakeup_fd(-1),
        "logging": [str(handler) for handler in logging.root.handlers] + [logging.root.level],
        "threads": [thread.name for thread in threading.enumerate()],
        "descriptors": sorted(int(n) for n, to in descriptors().items() if "/fd" not in to),
        "input": descriptors()["0"],
        "path": sys.path,
        "folder": os.getcwd(),
        "collects": gc.isenabled(),
        "plan": crashpoints._plan.point,
        "warnings": len(__import__("warnings").filters),
        "chance": [random.random(), machine.own_mark()],
    }

what, *rest = sys.argv[1:]
if what == "facts":
    print(json.dumps(facts()), flush=True)
elif what == "end":
    atexit.register(lambda: print("at exit", flush=True))
    threading.Thread(target=lambda: (time.sleep(0.05), print("thread", flush=True))).start()
    sys.exit(eval(rest[0]))
elif what == "raise":
    raise ValueError("no luck")
elif what == "parent":
    import subprocess
    print(subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]).pid, flush=True)
if "ORCHESTRA_READY_FD" in os.environ:
    os.write(int(os.environ["ORCHESTRA_READY_FD"]), b"ready")
if what in ("sleep", "parent"):
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "toy.py").write_text(TOY)
    (folder / "threaded.py").write_text(
        "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    return folder


@pytest.fixture(scope="module")
def env(folder: Path) -> dict[str, str]:
    # Not measured: coverage handles SIGTERM where it is started, and not where it is forked.
    own = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
    return {**own, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}


@pytest.fixture(scope="module")
def forks(folder: Path, env: dict[str, str]) -> Iterator[ForkServer]:
    forks = ForkServer(env=env)
    forks.start()
    yield forks
    forks.close()


Fork = Callable[..., Forked]


@pytest.fixture
def fork(forks: ForkServer, env: dict[str, str], tmp_path: Path) -> Fork:
    """Fork the toy; what it prints is in `log`."""
    forks.wait_ready()

    def fork(*arguments: str, **more: str) -> Forked:
        with (tmp_path / "log").open("ab") as log:
            forked = forks.fork(["toy", *arguments], env={**env, **more}, log=log.fileno())
        assert forked is not None
        return forked

    return fork


def test_a_forked_process_is_as_one_that_was_started(fork: Fork, env: dict[str, str], tmp_path: Path) -> None:
    more = {"ORCHESTRA_CRASH_AT": "router.read:/nowhere", "A_LARGE_ONE": "x" * 100_000, "ODD": "\udcff"}
    assert fork("facts", "a b", **more).wait() == fork("facts", "a b", **more).wait() == 0
    first, second = map(json.loads, (tmp_path / "log").read_text().splitlines())
    with (tmp_path / "log").open("wb") as log:
        subprocess.run(
            [*python_module("toy"), "facts", "a b"],
            env={**env, **more},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )
    started = json.loads((tmp_path / "log").read_text())
    assert first["plan"] == "router.read"
    chances = [facts.pop("chance") for facts in (first, second, started)]
    assert first == second == started
    assert len({number for number, _ in chances}) == 3
    assert len({mark.partition(".")[0] for _, mark in chances}) == 3  # also where a process id comes again


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("end", "0"), 0, ["thread", "at exit"]),
        (("end", "3"), 3, ["thread", "at exit"]),
        (("end", "'Error: the moon is not full'"), 1, ["Error: the moon is not full", "thread", "at exit"]),
        (("raise",), 1, ["ValueError: no luck"]),
    ],
)
def test_it_ends_as_one_that_was_started(
    arguments: tuple[str, ...], code: int, words: list[str], fork: Fork, tmp_path: Path
) -> None:
    assert fork(*arguments).wait() == code
    assert (tmp_path / "log").read_text().splitlines()[-len(words) :] == words


def test_a_signal_ends_it_and_its_number_stays_its_own_until_that_is_heard(fork: Fork) -> None:
    forked = fork("sleep")
    os.kill(forked.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(forked.pid))
    os.kill(forked.pid, 0)  # nobody has asked yet
    assert forked.wait() == forked.poll() == -signal.SIGKILL
    forked.send_signal(signal.SIGTERM)  # no effect
    with pytest.raises(ProcessLookupError):
        wait_until(lambda: os.kill(forked.pid, 0))


def test_it_is_shown_by_its_name(fork: Fork) -> None:
    forked = fork("sleep", "and sleep")
    place = Path(f"/proc/{forked.pid}")
    assert wait_until(lambda: (place / "comm").read_text().startswith("orch:")) is True
    wait_until(lambda: (place / "cmdline").read_bytes().rstrip(b"\0") == b"orchestra toy sleep and sleep")
    forked.send_signal(signal.SIGTERM)
    assert forked.wait() == -signal.SIGTERM


Supervise = Callable[..., Supervised]


@pytest.fixture
def supervise(forks: ForkServer, env: dict[str, str], tmp_path: Path) -> Iterator[Supervise]:
    """Runs the toy."""
    with ExitStack() as leaving:

        def make(*arguments: str, by: ForkServer = forks) -> Supervised:
            spec = ChildSpec(name="a", module=("toy", *arguments))
            supervisor = Supervised(spec, env=env, logs=tmp_path / "logs", forks=by)
            leaving.callback(supervisor.stop_at_once)
            return supervisor

        yield make


def test_a_forked_child_that_is_killed_comes_back_and_leaves_nothing(supervise: Supervise) -> None:
    supervisor = supervise("parent")
    supervisor.until_ready()
    grandchild = int(supervisor.logs["a"].read_text().split()[0])
    supervisor.kill()
    supervisor.until_told("recovered")
    assert supervisor.told() == ["ready", "restarting", "recovered"]
    assert supervisor.notices[1].detail.startswith("killed by signal 9")
    wait_until(lambda: not is_alive(grandchild))
    last = int(supervisor.logs["a"].read_text().split()[-1])
    supervisor.stop()
    wait_until(lambda: not is_alive(last))


def test_a_forked_child_that_does_not_start_says_why(supervise: Supervise) -> None:
    supervisor = supervise("end", "'Error: the moon is not full'")
    with pytest.raises(ConfigurationError, match="a does not start: the moon is not full"):
        supervisor.until(lambda: False)


def test_a_forked_child_is_replaced(supervise: Supervise) -> None:
    supervisor = supervise("sleep")
    supervisor.until_ready()
    first = supervisor.pids["a"]
    supervisor.replace(ChildSpec(name="a", module=("toy", "sleep", "again")))
    supervisor.until_told("retired")
    assert supervisor.told() == ["ready", "replaced", "retired"]
    assert supervisor.pids["a"] != first
    wait_until(lambda: not is_alive(first))


def test_a_killed_fork_server_takes_its_children_along_and_another_one_goes_on(
    supervise: Supervise, forks: ForkServer
) -> None:
    supervisor = supervise("parent")
    supervisor.until_ready()
    before, child = forks.pid, supervisor.pids["a"]
    grandchild = int(supervisor.logs["a"].read_text().split()[0])
    assert before is not None
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: not is_alive(child))  # the kernel does it
    supervisor.until_told("recovered")
    assert forks.pid not in (None, before)
    assert forks.ready
    assert forks.pid == int(
        Path(f"/proc/{supervisor.pids['a']}/stat").read_text().rpartition(")")[2].split()[1]
    )
    assert not is_alive(grandchild)


def test_a_fork_server_that_does_not_answer_is_replaced(supervise: Supervise, forks: ForkServer) -> None:
    supervisor = supervise("sleep")
    supervisor.until_ready()
    assert forks.pid is not None
    os.kill(forks.pid, signal.SIGSTOP)
    patch = pytest.MonkeyPatch()
    patch.setattr("orchestrator.deployment.forks._ANSWER_WITHIN_S", 0.2)
    first = supervisor.pids["a"]
    supervisor.replace(ChildSpec(name="a", module=("toy", "sleep")))  # started, since it cannot be forked
    patch.undo()
    supervisor.until(lambda: supervisor.ready and supervisor.pids["a"] != first)
    assert not is_alive(first)


@pytest.mark.parametrize(("module", "deaths"), [("threaded", 0), ("no_such_module", 3)])
def test_where_a_fork_is_not_safe_or_not_possible_processes_are_started(
    module: str, deaths: int, supervise: Supervise, env: dict[str, str]
) -> None:
    died: list[str] = []
    other = ForkServer(env=env, modules=[module], on_death=died.append)
    other.start()
    supervisor = supervise("sleep", by=other)
    supervisor.until_ready()
    assert other.given_up
    assert other.pid is None
    words = "exit code 1; ModuleNotFoundError: No module named 'no_such_module'"
    assert died == [words, words, f"{words}; processes start without it"][:deaths]


def test_on_another_system_there_is_no_fork_server(
    env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    other = ForkServer(env=env)
    other.start()
    assert other.given_up
    assert other.pid is None


def test_nothing_outlives_a_supervisor_that_is_killed(env: dict[str, str], tmp_path: Path) -> None:
    code = f"""
import os, time
from pathlib import Path
from orchestrator.deployment.forks import ForkServer
from orchestrator.deployment.supervisor import ChildSpec, Supervisor
forks = ForkServer(env=os.environ)
forks.start()
spec = ChildSpec(name="a", module=("toy", "parent"))
supervisor = Supervisor([spec], env=os.environ, logs=Path({str(tmp_path)!r}), forks=forks)
while not supervisor.ready:
    supervisor.tick()
    time.sleep(0.01)
print(forks.pid, supervisor.pids["a"], flush=True)
time.sleep(600)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2
        assert all(map(is_alive, pids))
        process.kill()
    wait_until(lambda: not any(map(is_alive, pids)))


def test_what_is_imported_before_the_fork_reads_no_settings_and_no_agents() -> None:
    """And begins nothing: no thread, no connection."""
    code = (
        "import sys, os, importlib, socket\n"
        "def refuse(*_): raise AssertionError('a connection')\n"
        "socket.socket.connect = refuse\n"
        f"for name in {PRELOAD}: importlib.import_module(name)\n"
        "assert len(os.listdir('/proc/self/task')) == 1\n"
        "assert not {'orchestrator.celery', 'orchestrator.demo', 'workers'} & sys.modules.keys()\n"
    )
    env = {**os.environ, "ORCHESTRA_CONFIG": "/nowhere", "ORCHESTRA_LEASE_S": "no number"}
    subprocess.run([sys.executable, "-P", "-c", code], env=env, check=True)


AGENTS = """
from orchestrator import agent

@agent("echo")
def echo(ctx):
    return ctx.prompt
"""


def test_a_stack_is_forked_imports_nothing_twice_and_outlives_its_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    (tmp_path / "agents.py").write_text(AGENTS)
    settings = load_settings(data=tmp_path / "data", agents=[str(tmp_path / "agents.py")], concurrency=1)
    notices: list[Notice] = []
    with LocalStack(settings, notify=notices.append) as stack:
        stack.wait_ready()
        imported = {
            line.rpartition("|")[2].strip()
            for log in stack.logs.values()
            for line in log.read_text().splitlines()
            if line.startswith("import time:")
        }
        entries = {"orchestrator.__main__", "orchestrator.worker.__main__", "orchestrator.celery"}
        ours = {name for name in imported if name.startswith(("orchestrator", "celery", "kombu", "redis"))}
        missing = sorted(ours - entries)
        assert len(missing) < 5, f"to be added to PRELOAD, as each child imports them: {missing}"
        # Alembic makes the audit database, once.
        others = {name for name in imported - entries if not name.startswith(("alembic", "mako"))}
        # The oldest releases that are promised import ten more than the newest.
        assert len(others) < 70, "\n".join(sorted(others))
        forks = stack._forks
        first = forks.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: forks.pid not in (None, first), "another fork server")
        wait_until(lambda: [n.kind for n in notices].count("recovered") == 5, "all processes")
        with Client(stack.settings) as client:
            assert client.submit("echo", "still there").result(timeout_s=60) == "still there"
        last = forks.pid
    deaths = [n.detail for n in notices if n.name == "fork server"]
    assert len(deaths) == 1
    assert deaths[0].startswith("killed by signal 9")
    assert last is not None
    assert not is_alive(last)

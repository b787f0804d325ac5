"""A user's terminal: commands as they are typed, in a folder of their own, and a look at what they leave behind."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.client.client import Client
from orchestrator.deployment.forks import ForkServer
from tests.forks import ForkedProcess, start_forks
from tests.waiting import wait_until
from tests.wheel import RESOLVED, installed

#: Seconds that anything may take here: the machine is shared with the other tests.
RETRY_FOR_S = 180.0


@dataclass
class Background:
    """A command that goes on running, with what it has printed so far."""

    process: subprocess.Popen[bytes] | ForkedProcess
    log: Path

    @property
    def output(self) -> str:
        """Everything it has printed."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, text: str) -> None:
        """Return once it has printed ``text``."""
        wait_until(
            lambda: text in self.output or self.process.poll() is not None,
            f"{text!r} from {self.process.args}",
        )
        assert text in self.output, f"{self.process.args} ended without {text!r}:\n{self.output}"

    def interrupt(self) -> int:
        """Press Ctrl-C and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(RETRY_FOR_S)


@dataclass
class Terminal:
    """Runs commands in one folder. Everything started from here carries the folder in its environment."""

    folder: Path
    env: dict[str, str]
    #: Where the process is not what a test is about: whether commands that only look and ask run in this one, and
    #: others are forked from one that has everything imported.
    in_process: bool = True
    background: list[Background] = field(default_factory=list)

    def run(self, command: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Type a command and wait for it."""
        arguments = orchestra_arguments(command) if self.in_process else None
        if arguments is not None:
            return run_here(arguments, self.folder, {**self.env, **env})
        if self._forks(words := simple_words(command)):
            with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
                forked = self._fork(command, words, env, output.fileno(), errors.fileno())
                code = forked.wait(2 * RETRY_FOR_S)
                output.seek(0)
                errors.seek(0)
                return subprocess.CompletedProcess(command, code, output.read(), errors.read())
        return subprocess.run(
            ["/bin/sh", "-c", command],
            check=False,
            cwd=self.folder,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            timeout=2 * RETRY_FOR_S,
            stdin=subprocess.DEVNULL,
        )

    def must(self, command: str, **env: str) -> str:
        """Type a command that is to succeed; what it prints."""
        done = self.run(command, **env)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, command: str, **env: str) -> Background:
        """Type a command and leave it running."""
        log = self.folder / f"terminal-{len(self.background)}.log"
        process: subprocess.Popen[bytes] | ForkedProcess
        with log.open("wb") as output:
            if self._forks(words := simple_words(command)):
                process = self._fork(command, words, env, output.fileno())
            else:
                process = subprocess.Popen(
                    ["/bin/sh", "-c", f"exec {command}"],
                    cwd=self.folder,
                    env={**self.env, **env},
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
        self.background.append(Background(process, log))
        return self.background[-1]

    def up(self, options: str = "", **env: str) -> Background:
        """Run a stack, which is ready."""
        stack = self.start(f"orchestra up {options}", **env)
        stack.wait_for("ready after")
        return stack

    def serve(self, agents: str, options: str = "", **env: str) -> Background:
        """Run a stack that serves the agents of that source."""
        (self.folder / "mine.py").write_text(agents, encoding="utf-8")
        return self.up(f"--agents mine.py {options}", **env)

    def document(self, command: str, **env: str) -> Any:
        """Type a command that prints JSON and is to succeed; what it prints."""
        return json.loads(self.must(f"{command} --json", **env))

    def _forks(self, words: list[str]) -> bool:
        return self.in_process and (words[:1] == ["orchestra"] or words[:2] + words[3:4] == WORKER)

    def _fork(
        self, command: str, words: list[str], env: dict[str, str], output: int, errors: int | None = None
    ) -> ForkedProcess:
        module = ["tests.acceptance.typed", str(self.folder), *words]
        # What it would say on the descriptor for being ready nobody hears: it is that of its errors.
        forked = forks().fork(module, env={**self.env, **env}, log=output, ready=errors)
        assert forked is not None
        return ForkedProcess(forked, command)

    def client(self) -> Client:
        """A client of the stack that runs here."""
        return Client(data=self.folder / ".orchestra")

    def processes(self) -> dict[int, str]:
        """Every process that was started from here, directly or not: its id and its command line.

        One that was forked works in the folder; the environment that others see of it is that of the fork server.
        """
        mark, home = f"TMPDIR={self.env['TMPDIR']}\0".encode(), Path(self.env["TMPDIR"]).parent
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if mark in (entry / "environ").read_bytes() or (entry / "cwd").readlink().is_relative_to(
                    home
                ):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def workers(self) -> list[int]:
        """The workers that were started from here and their pools, the oldest first: forked, or started alone."""
        return sorted(
            pid
            for pid, line in self.processes().items()
            if line.startswith("orchestra worker") or "-m orchestrator.worker worker" in line
        )

    def assert_nothing_left(self) -> None:
        """No process that was started from here runs any more, and no socket or temporary file is there."""
        wait_until(lambda: not self.processes(), f"the end of {self.processes()}", 10)
        # A worker that is killed leaves the empty folder that multiprocessing made for itself.
        left = [path.name for path in Path(self.env["TMPDIR"]).iterdir() if not path.name.startswith("pymp-")]
        assert left == []

    def close(self) -> None:
        """End what still runs."""
        for running in self.background:
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGTERM)
        for running in self.background:
            try:
                running.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(running.process.pid, signal.SIGKILL)
                running.process.wait()
        # What a command that took too long had started would go on for ever.
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


#: Commands of `orchestra` that talk to a stack and load nothing of a user's.
TALK = frozenset(
    [
        *("agents", "approve", "audit", "deny", "dlq", "doctor", "logs", "message", "questions"),
        *("reply", "result", "resume", "session", "sessions", "stop", "submit", "tree", "why"),
    ]
)


#: How the command line of a worker begins, but for its app; it is forked as those of `orchestra` are.
WORKER = ["celery", "-A", "worker"]
#: What these commands import beside services and workers.
TYPED = [
    "orchestrator.cli.demo",
    "orchestrator.cli.up",
    "orchestrator.cli.watch",
    "orchestrator.deployment.local_stack",
]
if find_spec("pydantic_ai"):
    TYPED.append("orchestrator.worker.executors.llm")


@functools.cache
def forks() -> ForkServer:
    """The fork server of this process; it lives as long."""
    server = start_forks(*TYPED)
    atexit.register(server.close)
    return server


def simple_words(command: str) -> list[str]:
    """The words of a command; none if it needs a shell."""
    return [] if set("|&;<>$`()") & set(command) else shlex.split(command)


def orchestra_arguments(command: str) -> list[str] | None:
    """The arguments of a command of `orchestra` that can run in this process; None for any other command line."""
    program, *arguments = simple_words(command) or [""]
    talks = program == "orchestra" and set(arguments[:1]) <= TALK and arguments[1:2] != ["prompt"]
    return arguments if talks and arguments else None


def run_here(arguments: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a command of `orchestra` in this process, with a folder and an environment of its own."""
    hidden = dict.fromkeys(os.environ.keys() - env.keys())
    before = Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            done = CliRunner().invoke(main, arguments, env={**hidden, **env}, prog_name="orchestra")
    finally:
        os.chdir(before)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return subprocess.CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)


#: A folder whose path is short: in memory, where the tests' other files lie there, too.
SHORT = os.environ.get("PYTEST_DEBUG_TEMPROOT", "/tmp")


@contextmanager
def open_terminal() -> Iterator[Terminal]:
    """A terminal in a new folder, whose path is short enough for sockets; the virtual environment is active."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("what a command leaves behind is looked up in /proc")
    folder = Path(tempfile.mkdtemp(prefix="orc", dir=SHORT))
    temporary = folder / "tmp"
    temporary.mkdir()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("ORCHESTRA_", "XDG_"))}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env["TMPDIR"] = str(temporary)
    opened = Terminal(folder, env)
    try:
        yield opened
    finally:
        opened.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def open_stack(agents: str, options: str = "", **env: str) -> Iterator[Terminal]:
    """A terminal in which a stack serves the agents of that source until the end, and then leaves nothing behind."""
    with open_terminal() as opened:
        opened.env |= env
        up = opened.serve(agents, options)
        yield opened
        assert up.interrupt() == 0
        opened.assert_nothing_left()


@contextmanager
def open_wheel_terminal(factory: pytest.TempPathFactory, extra: str = "") -> Iterator[Terminal]:
    """A terminal in whose environment the wheel is installed, with one extra or none."""
    with open_terminal() as opened:
        opened.in_process = False
        opened.env = {**installed(factory, extra).env, "TMPDIR": opened.env["TMPDIR"]}
        yield opened


@pytest.fixture
def tutorial_terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A terminal for a tutorial: quick, but for `make test-wheel`, which has the wheel with the extra that it installs."""
    quick = open_terminal() if RESOLVED is None else open_wheel_terminal(tmp_path_factory, "anthropic")
    with quick as opened:
        yield opened


def own_packages(folder: Path) -> None:
    """Packages that are named as ours were: whoever takes them for ours fails."""
    for name in ("workers", "schemas"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise RuntimeError('the package of a user')\n")


def parent_of(pid: int) -> int:
    """The process that started another one."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal of the test's own."""
    with open_terminal() as opened:
        yield opened

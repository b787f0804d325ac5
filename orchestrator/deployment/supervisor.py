"""Keeps a set of processes running: starts them, notes when they are ready, starts them again, stops them.

Each child runs in a session of its own, so that Ctrl-C reaches only the supervisor, which stops them in
order, and so that nothing a child started outlives it: its whole process group goes with it. Children
write to log files and not to pipes: a terminal that is stopped must not stop the stack.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from orchestrator import machine
from orchestrator.deployment.forks import ForkServer, Process, start_command, start_module
from orchestrator.errors import ConfigurationError
from orchestrator.runtime.probe import ALIVE, answers

_BACKOFF_FIRST_S = 0.1
_BACKOFF_CAP_S = 10.0
#: A child that lived this long is taken to be well, and its next restart comes at once.
_WELL_AFTER_S = 30.0
#: A child that never got ready is given up after this many deaths.
_MAX_FALSE_STARTS = 3
#: Seconds that a child which hangs has to write where it stood.
_LAST_WORDS_S = 1.0
_LOG_LIMIT_BYTES = 16 * 1024 * 1024
_REASON = re.compile(
    r"^(?:Error|orchestrator\.errors\.\w+|click\.exceptions\.\w+): (?!Invalid value for '-A')(.+)$"
)
#: What `faulthandler` writes before it says where each thread stood: of a process that ends itself, and upon SIGABRT.
_HUNG = re.compile(r"^Timeout \(\d+:\d\d:\d\d(\.\d+)?\)!$")
_ABORTED = "Fatal Python error: Aborted"


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """Specification of a process: a command, or a module of ours with its arguments."""

    #: Shown to the user, and the name of its log file.
    name: str
    command: tuple[str, ...] = ()
    #: It is forked where there is a fork server.
    module: tuple[str, ...] = ()
    #: Signals to stop it with, each with the seconds to wait before the next; SIGKILL comes after the last.
    stop_with: tuple[tuple[signal.Signals, float], ...] = ((signal.SIGTERM, 5.0),)
    #: What it gets if the supervisor itself is killed.
    orphan_signal: signal.Signals = signal.SIGTERM
    #: Lower stages are stopped, and gone, before higher ones are asked to stop.
    stage: int = 1


@dataclass(frozen=True, kw_only=True)
class Notice:
    """Something that the user of a stack may want to see."""

    kind: Literal[
        "ready",
        "restarting",
        "died",
        "recovered",
        "stopping",
        "killed",
        "hung",
        "replacing",
        "replaced",
        "retired",
        "kept",
    ]
    name: str
    detail: str = ""


@dataclass
class _Child:
    spec: ChildSpec
    log: Path
    process: Process | None = None
    ready_fd: int | None = None
    ready: bool = False
    ever_ready: bool = False
    log_offset: int = 0
    started_at: float = 0.0
    deaths: int = 0
    start_at: float = field(default=0.0)


class Supervisor:
    """Runs children until it is told to stop; call :meth:`tick` again and again, from one thread.

    Modules are forked by ``forks``, which is the caller's to start and to close; without it they are started.
    """

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        *,
        env: Mapping[str, str],
        logs: Path,
        log_suffix: str = "",
        notify: Callable[[Notice], None] = lambda _: None,
        forks: ForkServer | None = None,
        hangs: Callable[[int], bool] = lambda _: False,
    ) -> None:
        self._env = dict(env)
        self._forks = forks
        self._notify = notify
        self._hangs = hangs
        self._children = [_Child(spec, logs / f"{spec.name}{log_suffix}.log") for spec in specs]
        #: Successors that are not ready yet, by name, and processes that were replaced and finish their work.
        self._coming: dict[str, _Child] = {}
        self._leaving: list[_Child] = []

    @property
    def ready(self) -> bool:
        """True if every child runs and has reported that it is ready."""
        return all(child.ready for child in self._children)

    @property
    def settled(self) -> bool:
        """True if every child is ready and none is replaced or ends."""
        return self.ready and not self._coming and not self._leaving

    @property
    def logs(self) -> dict[str, Path]:
        """The log file of each child."""
        return {child.spec.name: child.log for child in self._children}

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each child that runs."""
        return {child.spec.name: child.process.pid for child in self._children if child.process is not None}

    def tick(self) -> None:
        """Start what is due, note what got ready, and handle what died.

        Raises:
            ConfigurationError: a child cannot be got to run; the reason is what it said last.
        """
        if self._forks is not None:
            self._forks.listen()
        for child in self._children:
            if child.process is None:
                if time.monotonic() >= child.start_at and self._may_start(child.spec):
                    self._start(child)
                continue
            if self._hear(child):
                self._notify(Notice(kind="recovered" if child.ever_ready else "ready", name=child.spec.name))
                child.ever_ready = True
            if child.process.poll() is None and self._hangs(child.process.pid):
                self._end_hung(child)
            if child.process.poll() is not None:
                self._reap(child)
        for successor in list(self._coming.values()):
            self._see_to(successor)
        for old in [c for c in self._leaving if c.process is not None and c.process.poll() is not None]:
            self._end_group(old)
            self._leaving.remove(old)
            self._notify(Notice(kind="retired", name=old.spec.name))

    def _end_hung(self, child: _Child) -> None:
        """End a child that hangs: by a signal upon which Python writes where it stood, then, also if it is stopped, at once."""
        assert child.process is not None
        self._notify(Notice(kind="hung", name=child.spec.name))
        child.process.send_signal(signal.SIGABRT)
        until = time.monotonic() + _LAST_WORDS_S
        while child.process.poll() is None and time.monotonic() < until:
            time.sleep(0.02)
        if child.process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
            child.process.wait()

    def replace(self, spec: ChildSpec) -> None:
        """Start a successor of the child with this name. Once it is ready, the old one gets its first signal.

        The old one then has as long as it needs, and meanwhile both run: what it finishes may wait for work that only
        the successor takes. A successor that ends before it is ready changes nothing. A later call replaces it.
        """
        (old,) = (child for child in self._children if child.spec.name == spec.name)
        earlier = self._coming.pop(spec.name, None)
        if earlier is not None:
            self._retire(earlier)
        successor = _Child(spec, old.log)
        self._start(successor)
        self._coming[spec.name] = successor

    def _see_to(self, successor: _Child) -> None:
        assert successor.process is not None
        name = successor.spec.name
        if self._hear(successor):
            successor.ever_ready = True
            del self._coming[name]
            (place,) = (n for n, child in enumerate(self._children) if child.spec.name == name)
            old, self._children[place] = self._children[place], successor
            self._notify(
                Notice(kind="replaced", name=name, detail=f"the new one is process {successor.process.pid}")
            )
            self._retire(old)
        elif successor.process.poll() is not None:
            reason, _ = self._last_words(successor)
            del self._coming[name]
            self._end_group(successor)
            self._notify(Notice(kind="kept", name=name, detail=reason))

    def _retire(self, child: _Child) -> None:
        """Ask a child to finish what it does and end; it is collected when it has."""
        if child.process is None:
            return  # it had died, and its successor came before its next start
        if child.ready_fd is not None:
            os.close(child.ready_fd)
            child.ready_fd = None
        child.process.send_signal(child.spec.stop_with[0][0])
        self._leaving.append(child)

    def _may_start(self, spec: ChildSpec) -> bool:
        """Return True if the fork server for a child is ready, or will never be."""
        return self._forks is None or not spec.module or self._forks.ready or self._forks.given_up

    def _start(self, child: _Child) -> None:
        child.log.parent.mkdir(parents=True, exist_ok=True)
        if child.log.exists() and child.log.stat().st_size > _LOG_LIMIT_BYTES:
            child.log.replace(child.log.with_suffix(".log.1"))
        child.ready_fd, write_end = os.pipe()
        os.set_blocking(child.ready_fd, False)
        try:
            with child.log.open("ab") as log:
                child.log_offset = log.tell()
                child.process = self._process(child.spec, log.fileno(), write_end)
        finally:
            os.close(write_end)
        child.started_at = time.monotonic()

    def _process(self, spec: ChildSpec, log: int, ready: int) -> Process:
        env, sig = self._env, spec.orphan_signal
        if spec.command:
            return start_command(spec.command, env=env, log=log, ready=ready, orphan_signal=sig)
        return start_module(spec.module, forks=self._forks, env=env, log=log, ready=ready, orphan_signal=sig)

    def _hear(self, child: _Child) -> bool:
        """Return True if a child has reported just now that it is ready."""
        if child.ready_fd is None:
            return False
        with suppress(BlockingIOError):
            child.ready = bool(os.read(child.ready_fd, 64))
            os.close(child.ready_fd)
            child.ready_fd = None
            return child.ready
        return False

    def _reap(self, child: _Child) -> None:
        assert child.process is not None
        code, was_ready = child.process.wait(), child.ready  # it has ended
        self._end_group(child)
        lived_s = time.monotonic() - child.started_at
        if code == -signal.SIGKILL and was_ready:
            child.deaths = 1  # somebody, or the kernel, has killed it: that is no crash that would come again
        else:
            child.deaths = 1 if lived_s > _WELL_AFTER_S else child.deaths + 1
        reason, is_verdict = self._last_words(child)
        if not child.ever_ready and (is_verdict or child.deaths >= _MAX_FALSE_STARTS):
            raise ConfigurationError(f"{child.spec.name} does not start: {reason} (log: {child.log})")
        delay_s = (
            0.0 if child.deaths == 1 else min(_BACKOFF_CAP_S, _BACKOFF_FIRST_S * 2 ** min(child.deaths, 10))
        )
        child.start_at = time.monotonic() + delay_s
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        if code < 0 and not is_verdict:
            reason = ""  # whatever it logged last, it did not end by that
        self._notify(
            Notice(kind="restarting", name=child.spec.name, detail=f"{how}; {reason}" if reason else how)
        )

    def _last_words(self, child: _Child) -> tuple[str, bool]:
        """Return the line that says why a child ended, and whether the child itself meant it as the reason."""
        lines: list[str] = []
        with suppress(FileNotFoundError), child.log.open("rb") as log:
            log.seek(child.log_offset)
            lines = [line.strip() for line in log.read()[-65_536:].decode(errors="replace").splitlines()]
        if any(_HUNG.match(line) for line in lines):
            # Of the main thread, whose frames come last; the newest first.
            stood = next((n for n in range(len(lines) - 1, -1, -1) if lines[n].startswith("Thread ")), 0)
            return f"it hung: {' '.join(lines[stood + 1 : stood + 2])}", False
        if _ABORTED in lines:
            stood = next((n for n, line in enumerate(lines) if line.startswith("Current thread ")), 0)
            return f"it hung: {' '.join(lines[stood + 1 : stood + 2])}", True
        for line in reversed(lines):
            if match := _REASON.match(line):
                return match[1], True
        return next((_in_words(line) for line in reversed(lines) if line), "it left no log"), False

    def _end_group(self, child: _Child) -> None:
        """Leave nothing of a child that has ended, and forget it."""
        assert child.process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.process.pid, signal.SIGKILL)
        if child.ready_fd is not None:
            os.close(child.ready_fd)
        child.ready_fd, child.process, child.ready = None, None, False

    def stop(self, *, at_once: Callable[[], bool] = lambda: False) -> None:
        """Stop every child, stage by stage; idempotent. Once ``at_once`` says so, what still runs is killed."""
        everyone = [*self._children, *self._coming.values(), *self._leaving]
        for stage in sorted({child.spec.stage for child in everyone}):
            living = [c for c in everyone if c.spec.stage == stage and c.process is not None]
            self._stop_stage(living, at_once)
        self._coming.clear()
        self._leaving.clear()

    def _stop_stage(self, living: list[_Child], at_once: Callable[[], bool]) -> None:
        waiting = {id(child): list(child.spec.stop_with) for child in living}
        deadlines = dict.fromkeys(waiting, 0.0)
        while living:
            for child in list(living):
                assert child.process is not None
                if child.process.poll() is not None:
                    self._end_group(child)
                    living.remove(child)
                elif at_once() or time.monotonic() >= deadlines[id(child)]:
                    if waiting[id(child)] and not at_once():
                        number, seconds = waiting[id(child)].pop(0)
                        child.process.send_signal(number)
                        deadlines[id(child)] = time.monotonic() + seconds
                    else:
                        self._notify(Notice(kind="killed", name=child.spec.name))
                        with suppress(ProcessLookupError):
                            os.killpg(child.process.pid, signal.SIGKILL)
                        child.process.wait()
            time.sleep(0.01)

    def trim_logs(self) -> None:
        """Keep a log that grew too long as one old file, and go on in an empty one.

        Children hold it open for appending, so it is copied and emptied; a line written in between is lost.
        """
        for child in self._children:
            with suppress(OSError):
                if child.log.stat().st_size > _LOG_LIMIT_BYTES:
                    shutil.copyfile(child.log, child.log.with_suffix(".log.1"))
                    os.truncate(child.log, 0)
                    child.log_offset = 0


def _in_words(line: str) -> str:
    """Return a line of a log as a person reads it: of a JSON line its event, and the error that goes with it."""
    try:
        fields = json.loads(line)
        words = [fields["event"], *(fields[name] for name in ("error", "reason") if fields.get(name))]
        return ": ".join(map(str, [*words, *fields.get("exception", "").splitlines()[-1:]]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return line


#: Looks within the time after which a process hangs.
_LOOKS: Final = 8


class HangWatch:
    """Asks all processes of a data folder again and again, from a thread of its own until it is closed.

    Time in which this process did not look itself, as while its machine slept, hardly counts.
    """

    def __init__(self, data: str, *, after_s: float, ask: Callable[[str], dict[int, str]] = answers) -> None:
        """Watch a folder; a process hangs that was not well for ``after_s`` seconds of looks."""
        self._data, self._after_s, self._ask = data, after_s, ask
        self._silent_s: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = machine.start_thread(self._watch, "hang-watch")

    def hangs(self, pid: int) -> bool:
        """Return True if a process hangs."""
        return self._silent_s.get(pid, 0.0) >= self._after_s

    def close(self) -> None:
        """End."""
        self._stop.set()

    def _watch(self) -> None:
        every_s, looked_at = self._after_s / _LOOKS, time.monotonic()
        while not self._stop.wait(every_s):
            found, now = self._ask(self._data), time.monotonic()
            more_s, looked_at = min(now - looked_at, 2 * every_s), now
            before = self._silent_s
            self._silent_s = {
                pid: before.get(pid, 0.0) + more_s for pid, line in found.items() if line != ALIVE
            }

"""`python -P -m orchestrator.deployment.fork_server FD [MODULE…]` imports what services and workers import, and forks them.

A process that is forked does what `python -P -m MODULE ARGUMENTS` does, without its imports: it has a session, an
environment, a log and random numbers of its own. The server has one thread, no connections, no agents and no settings,
so that nothing of it matters to a child. FD is a socket to whoever started the server; when it closes, the server ends,
and its children get their orphan signals.

Orders on the socket are a length of four bytes, which carries the descriptors, and JSON. Answers are lines of JSON.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator import crashpoints, machine
from orchestrator.runtime.process import die_with_parent, set_title
from orchestrator.runtime.service import READY_VARIABLE, record_adapter, spare_the_collector

#: What the services and the worker import; not `orchestrator.celery`, which reads the settings.
PRELOAD = (
    "billiard.popen_fork",
    "billiard.sharedctypes",
    "celery.app.amqp",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.bin.worker",
    "celery.concurrency.prefork",
    "celery.fixups.django",
    "celery.worker.consumer",
    "kombu.transport.redis",
    "orchestrator.cli.services",
    "orchestrator.agents.loader",
    "orchestrator.bootstrap",
    "orchestrator.audit.writer",
    "orchestrator.deployment.local_stack",
    "orchestrator.dispatch.dispatcher",
    "orchestrator.dispatch.results",
    "orchestrator.keyring.codes",
    "orchestrator.agents.registry",
    "orchestrator.messages.factory",
    "orchestrator.messages.recipients",
    "orchestrator.reconciler.callbacks",
    "orchestrator.reconciler.reaper",
    "orchestrator.router.build",
    "orchestrator.router.deadletters.store",
    "orchestrator.streams.pressure",
    "orchestrator.worker.execution.runner",
    "orchestrator.worker.execution.ending",
    "orchestrator.worker.flower",
    "orchestrator.worker.announce",
    "orchestrator.worker.tasks",
    "orchestrator.worker.worktrees",
)


@dataclass(frozen=True)
class _Order:
    """Order to fork one process."""

    module: str
    arguments: list[str]
    env: dict[str, str]
    orphan_signal: int


class _Orders:
    """Waits for orders and for the ends of children."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pid = os.getpid()
        self._living: set[int] = set()
        self._woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._wake = wake

    def serve(self) -> _Order | None:
        """Fork what is ordered. Returns in each child with its order, and in the server with None when it is to end."""
        try:
            self._say(threads=len(os.listdir("/proc/self/task")))  # noqa: PTH208  (names are enough)
            while True:
                readable, _, _ = select.select([self._control.fileno(), self._woken], [], [])
                if self._woken in readable:
                    os.read(self._woken, 4096)
                    self._report_the_dead()
                if self._control.fileno() in readable and (order := self._obey()) is not None:
                    return order
        except (ConnectionError, EOFError):
            return None

    def _obey(self) -> _Order | None:
        """Do what is asked for; returns the order in the child that it makes."""
        header, descriptors, _, _ = socket.recv_fds(self._control, 4, 2, socket.MSG_CMSG_CLOEXEC)
        if len(header) < 4:
            raise EOFError
        said = json.loads(self._read(struct.unpack("!I", header)[0]))
        if "collect" in said:
            os.waitpid(said["collect"], 0)
            return None
        order = _Order(**said)
        return order if self._fork(order, descriptors) else None

    def _read(self, size: int) -> bytes:
        parts = b""
        while len(parts) < size:
            heard = self._control.recv(size - len(parts))
            if not heard:
                raise EOFError
            parts += heard
        return parts

    def _say(self, **fields: Any) -> None:
        self._control.sendall(json.dumps(fields).encode() + b"\n")

    def _report_the_dead(self) -> None:
        """Say who has ended. Each keeps its process id until it is collected, so that no signal hits another process."""
        for pid in list(self._living):
            ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                self._living.remove(pid)
                exited = ended.si_code == os.CLD_EXITED
                self._say(ended=pid, code=ended.si_status if exited else -ended.si_status)

    def _fork(self, order: _Order, descriptors: list[int]) -> bool:
        """Fork; returns whether this is the child."""
        begun, begin = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            self._say(refused=str(error))
        else:
            if pid == 0:
                os.close(begun)
                self._become(order, begin, *descriptors)
                return True
            os.close(begin)
            begin = -1
            os.read(begun, 1)  # now the child leads a group that can be killed, or has ended
            self._living.add(pid)
            self._say(pid=pid)
            self._report_the_dead()  # it may have ended before it was known
        for number in (begun, begin, *descriptors):
            if number >= 0:
                os.close(number)
        return False

    def _become(self, order: _Order, begin: int, log: int, ready: int | None = None) -> None:
        """Make this process one that was started by itself."""
        os.setsid()
        die_with_parent(signal.Signals(order.orphan_signal), parent=self._pid)
        os.write(begin, b"1")
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        os.dup2(log, 1)
        os.dup2(log, 2)
        for number in (begin, log, self._woken, self._wake):
            os.close(number)
        os.environ.clear()
        os.environ.update(order.env)
        if ready is not None:
            os.environ[READY_VARIABLE] = str(ready)
        # What these took from the environment, or made by chance, when they were imported.
        crashpoints.read_plan()
        machine.renew_family()


def _run(order: _Order) -> None:
    """Run a module as `python -m` does."""
    package = order.module.removeprefix("orchestrator").removeprefix(".")
    words = [part for part in (*package.split("."), *order.arguments) if part]
    if words[:2] == ["worker", "worker"] or words[:1] == ["service"]:
        del words[0]
    set_title(f"orch:{words[0]}" if words else "orchestra", " ".join(["orchestra", *words]))
    sys.argv = [order.module, *order.arguments]
    runpy.run_module(order.module, run_name="__main__", alter_sys=True)


def main(descriptor: int, modules: Sequence[str]) -> None:
    """Serve until the socket closes; a child returns when what it was forked for has ended."""
    die_with_parent()
    # Imports make objects that stay: to look through them again and again would take a tenth of the time.
    gc.disable()
    for name in (*modules, *PRELOAD):
        importlib.import_module(name)
    record_adapter()  # else each child would make one of its own
    spare_the_collector()  # each child would get a copy of what it marks
    gc.enable()
    with socket.socket(fileno=descriptor) as control:
        order = _Orders(control).serve()
    if order is not None:
        _run(order)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

"""What a user types, in a process that was forked: `tests.acceptance.typed FOLDER PROGRAM ARGUMENTS…`.

It does what the program does in that folder, without the imports, which take most of the time of a short command.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

from orchestrator.cli import main
from orchestrator.deployment import fork_server
from orchestrator.runtime.service import READY_VARIABLE

SERVER = fork_server.__name__


def run(folder: str, program: str, *arguments: str) -> None:
    """Do what the program does."""
    os.chdir(folder)
    if errors := os.environ.pop(READY_VARIABLE, ""):
        os.dup2(int(errors), 2)
        os.close(int(errors))
    tempfile.tempdir = None  # found anew, from this process's own environment
    sys.argv = [program, *arguments]
    if program == "celery":
        from orchestrator.celery import app  # reads the settings

        app.start(arguments[arguments.index("worker") :])
    elif arguments[:1] not in {("up",), ("demo",)}:
        main(arguments, prog_name=program)
    else:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if pid := os.fork():
            theirs.close()
            with mock.patch("subprocess.Popen", Spare(pid, ours).start):
                main(arguments, prog_name=program)
        else:
            ours.close()
            serve(theirs)


class Spare:
    """A copy of this process that is the fork server of the first stack that it starts: what is used of a `Popen`."""

    def __init__(self, pid: int, orders: socket.socket) -> None:
        self.pid = pid
        self._orders: socket.socket | None = orders
        self._popen = subprocess.Popen
        self._code: int | None = None

    def start(self, command: Sequence[str], **options: Any) -> Any:
        """Start a command; take the copy where it is the first fork server."""
        if SERVER not in command or self._orders is None:
            return self._popen(command, **options)
        control, *modules = command[command.index(SERVER) + 1 :]
        order = json.dumps({"env": dict(options["env"]), "modules": modules}).encode()
        socket.send_fds(self._orders, [order], [int(control), options["stdout"].fileno()])
        self._orders.close()
        self._orders = None
        return self

    def kill(self) -> None:
        """Kill it, unless it is known to have ended."""
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float = float("inf")) -> int:
        """Return the exit code once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not within ``timeout`` seconds.
        """
        deadline = time.monotonic() + timeout
        while self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(SERVER, timeout)
            else:
                time.sleep(0.005)
        return self._code


def serve(orders: socket.socket) -> None:
    """Wait for the order to be a fork server, and be one as if it were started alone."""
    order, descriptors, _, _ = socket.recv_fds(orders, 1 << 20, 2)
    if not order:
        return
    os.setsid()
    control, words = descriptors
    os.dup2(words, 1)
    os.dup2(words, 2)
    orders.close()
    os.closerange(3, control)
    os.closerange(control + 1, 1 << 10)
    said = json.loads(order)
    os.environ.clear()
    os.environ.update(said["env"])
    fork_server.main(control, said["modules"])


if __name__ == "__main__":
    run(*sys.argv[1:])

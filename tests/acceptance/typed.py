"""What a user types, in a process that was forked: `tests.acceptance.typed FOLDER PROGRAM ARGUMENTS…`.

It does what the program does in that folder, without the imports, which take four fifths of the time of a stack. The fork
server that `orchestra up` starts is forked, too.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from types import SimpleNamespace
from typing import Any

from orchestrator.cli import main
from orchestrator.deployment import fork_server, forks

#: Programs that have a fork server.
STACKS = ("up", "demo")


class Twin:
    """A process that becomes the fork server when it is asked for; stands in for the `Popen` of the product."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        self.is_me = self.pid == 0

    def serve(self) -> None:
        """Wait to be asked for, and be the fork server."""
        self._ours.close()
        said, descriptors, _, _ = socket.recv_fds(self._theirs, 1 << 20, 2)
        if not said:
            return
        log, control = descriptors
        os.setsid()
        for number in (1, 2):
            os.dup2(log, number)
        order = json.loads(said)
        os.environ.clear()
        os.environ.update(order["env"])
        fork_server.main(control, order["modules"])

    def start(
        self, command: list[str], *, stdout: Any, env: dict[str, str], pass_fds: tuple[int], **_: Any
    ) -> Twin:
        """Take the place of a process that is started with this command; the next one is started as usual."""
        forks.subprocess = subprocess  # type: ignore[attr-defined]
        self._theirs.close()
        order = {"env": env, "modules": command[command.index(str(pass_fds[0])) + 1 :]}
        socket.send_fds(self._ours, [json.dumps(order).encode()], [stdout.fileno(), *pass_fds])
        return self

    def kill(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGKILL)

    def wait(self, _timeout_s: float | None = None) -> int:
        """Collect it once it has ended; it is killed, or has closed its socket."""
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def become_worker(_program: str, command: list[str], env: dict[str, str]) -> None:
    """Be the worker of this command line, which has what Celery is told from its first `worker` on."""
    os.environ.clear()
    os.environ.update(env)
    from orchestrator.celery import app  # reads the settings

    app.start(command[command.index("worker") :])


def run(folder: str, program: str, *arguments: str) -> None:
    """Do what the program does."""
    os.chdir(folder)
    tempfile.tempdir = None
    sys.argv = [program, *arguments]
    if program == "celery":
        become_worker(program, [program, *arguments], dict(os.environ))
        return
    os.execve = become_worker
    if arguments[0] in STACKS:
        twin = Twin()
        if twin.is_me:
            twin.serve()
            return
        forks.subprocess = SimpleNamespace(  # type: ignore[attr-defined]
            Popen=twin.start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired
        )
    main(arguments, prog_name=program)


if __name__ == "__main__":
    run(*sys.argv[1:])

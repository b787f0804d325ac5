"""The fork server as the supervisor sees it: started, asked for processes, and started again when it died."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from orchestrator.runtime.process import ending_with_parent, python_module
from orchestrator.runtime.service import READY_VARIABLE

#: Seconds in which the server has to answer an order; a fork takes milliseconds.
_ANSWER_WITHIN_S = 10.0
#: Seconds that a server has to end which has closed its socket; one that hangs is killed then.
_END_WITHIN_S = 0.5
#: Seconds in which the server has to import everything.
_READY_WITHIN_S = 60.0
#: A server that lived this long was well, and its next start is the first one again.
_WELL_AFTER_S = 30.0
#: After so many deaths in a row processes are started without it.
_MAX_DEATHS = 3


class Forked:
    """A process that the fork server forked."""

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self.returncode is None:
            self._server.listen()
        return self.returncode

    def wait(self) -> int:
        """Return the exit code once it has ended."""
        while (code := self.poll()) is None:
            time.sleep(0.005)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class ForkServer:
    """Forks processes from one that has everything imported; use it from one thread. It is started by :meth:`start`.

    Args:
        env: the environment in which it imports; each process is given one of its own.
        modules: what it imports beside what every service and worker imports.
        on_death: called with how it ended, and with what it said last, when it has died.
    """

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        modules: Sequence[str] = (),
        on_death: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._env = dict(env)
        self._modules = tuple(modules)
        self._on_death = on_death
        self._process: subprocess.Popen[bytes] | None = None
        self._words = tempfile.TemporaryFile()  # noqa: SIM115  (it is closed by `close`)
        self._control: socket.socket | None = None
        self._heard = b""
        self._running: dict[int, Forked] = {}
        #: What the last order came to; None: it could not be done.
        self._born: Forked | None = None
        self._answered = False
        self._deaths = 0
        self._started_at = 0.0
        self.ready = False
        #: Whether processes are started without it: it is no Linux, or does not run here.
        self.given_up = not sys.platform.startswith("linux")

    @property
    def pid(self) -> int | None:
        """The process id of the server, if it runs."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the server, unless it runs or is given up; it gets ready by itself."""
        if self.given_up or self._process is not None:
            return
        self._control, theirs = socket.socketpair()
        command = [
            *python_module("orchestrator.deployment.fork_server"),
            str(theirs.fileno()),
            *self._modules,
        ]
        self._words.seek(0)
        self._words.truncate()
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=self._words,
                env=self._env,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._started_at = time.monotonic()

    def listen(self) -> None:
        """Take in what the server has said, without waiting. One that died is started again."""
        with suppress(BlockingIOError):
            while self._control is not None:
                self._control.setblocking(False)
                if not self._hear():
                    return
        if not self.ready and self._process is not None and self._age_s() > _READY_WITHIN_S:
            self._reap()

    def wait_ready(self) -> None:
        """Return once it can fork, or is given up."""
        while not (self.ready or self.given_up):
            self.listen()
            time.sleep(0.01)

    def _age_s(self) -> float:
        return time.monotonic() - self._started_at

    def _hear(self) -> bool:
        """Read once; False if the server is gone."""
        assert self._control is not None
        try:
            heard = self._control.recv(65_536)
        except ConnectionError:
            heard = b""
        if not heard:
            self._reap()
            return False
        *lines, self._heard = (self._heard + heard).split(b"\n")
        for line in lines:
            self._take(json.loads(line))
        return self._control is not None

    def _take(self, said: dict[str, Any]) -> None:
        if "ended" in said:
            self._running.pop(said["ended"]).returncode = said["code"]
            self._send({"collect": said["ended"]})
        elif "threads" in said:
            self.ready = said["threads"] == 1
            if not self.ready:
                # A module of the user's, loaded with the interpreter, has begun one: a fork would lose it.
                self.given_up = True
                self._end()
        else:
            self._answered = True
            if "pid" in said:
                self._born = self._running[said["pid"]] = Forked(said["pid"], self)

    def _send(self, order: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        assert self._control is not None
        text = json.dumps(order).encode()
        self._control.setblocking(True)
        self._control.settimeout(_ANSWER_WITHIN_S)
        with suppress(OSError):  # the next reading finds that the server is gone
            socket.send_fds(self._control, [struct.pack("!I", len(text))], descriptors)
            self._control.sendall(text)

    def fork(
        self,
        module: Sequence[str],
        *,
        env: Mapping[str, str],
        log: int,
        ready: int | None = None,
        orphan_signal: signal.Signals = signal.SIGTERM,
    ) -> Forked | None:
        """Fork a process that does what ``python -P -m MODULE ARGUMENTS`` does; None if the server cannot now.

        Args:
            module: the name of the module, and its arguments.
            env: the environment of the process, all of it.
            log: the descriptor of what it prints.
            ready: the descriptor on which it says that it is ready.
            orphan_signal: what it gets when the server ends.
        """
        self.listen()
        if not self.ready:
            return None
        name, *arguments = module
        order = {
            "module": name,
            "arguments": arguments,
            "env": dict(env),
            "orphan_signal": int(orphan_signal),
        }
        self._answered, self._born, control = False, None, self._control
        self._send(order, [log] if ready is None else [log, ready])
        try:
            while not self._answered and control is not None and control is self._control:
                control.settimeout(_ANSWER_WITHIN_S)
                self._hear()
        except TimeoutError:
            self._reap()
        return self._born

    def _reap(self) -> None:
        """Handle the end of the server: end what it has forked, as the kernel does, and start another one."""
        self._deaths = 1 if self._age_s() > _WELL_AFTER_S else self._deaths + 1
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_WITHIN_S)
        code = self._end()
        self.given_up = self._deaths >= _MAX_DEATHS
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        given_up = "processes start without it" if self.given_up else ""
        self._on_death("; ".join(part for part in (how, self._last_words(), given_up) if part))
        self.start()

    def _last_words(self) -> str:
        size = os.fstat(self._words.fileno()).st_size
        lines = (
            os.pread(self._words.fileno(), 4096, max(0, size - 4096)).decode(errors="replace").splitlines()
        )
        return lines[-1] if lines else ""

    def _end(self) -> int:
        """End the server and what it has forked; the exit code of the server."""
        assert self._process is not None
        assert self._control is not None
        self._control.close()
        self._process.kill()
        code = self._process.wait()
        self._process, self._control, self._heard, self.ready = None, None, b"", False
        for pid, forked in self._running.items():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            forked.returncode = -signal.SIGKILL
        self._running.clear()
        return code

    def close(self) -> None:
        """End the server and what it has forked; idempotent."""
        if self._process is not None:
            self._end()
        self._words.close()


#: A child as the supervisor sees it. It leads a process group.
Process = subprocess.Popen[bytes] | Forked


def start_module(
    module: Sequence[str],
    *,
    forks: ForkServer | None,
    env: Mapping[str, str],
    log: int,
    ready: int,
    orphan_signal: signal.Signals = signal.SIGTERM,
) -> Process:
    """Do what ``python -P -m MODULE ARGUMENTS`` does in a process that ``forks`` forks, if it can, or else is started.

    The arguments are those of :meth:`ForkServer.fork`.
    """
    if forks is not None:
        forked = forks.fork(module, env=env, log=log, ready=ready, orphan_signal=orphan_signal)
        if forked is not None:
            return forked
    name, *arguments = module
    command = [*python_module(name), *arguments]
    return start_command(command, env=env, log=log, ready=ready, orphan_signal=orphan_signal)


def start_command(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    log: int,
    ready: int,
    orphan_signal: signal.Signals = signal.SIGTERM,
) -> Process:
    """Start a command in a session of its own, which gets ``orphan_signal`` when this process ends."""
    return subprocess.Popen(
        ending_with_parent(list(command), sig=orphan_signal),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**env, READY_VARIABLE: str(ready)},
        pass_fds=(ready,),
        start_new_session=True,
    )

"""Membership of an `orchestra up` in the embedded server of its data folder, which the first one starts."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from orchestrator.config.stack import prepare_data_folder
from orchestrator.deployment.embedded.server_manager import lock_path, read_record, server_folder, try_to_lock
from orchestrator.errors import ConfigurationError, ServerUnavailable
from orchestrator.runtime.process import is_alive, python_module

_JOIN_TIMEOUT_S = 150.0
_LEAVE_TIMEOUT_S = 40.0


class MembershipClient:
    """A share in the embedded server: it runs at least until this is left, or this process ends."""

    def __init__(self, control: socket.socket, url: str, keeper_pid: int) -> None:
        self.url = url
        self.server_manager: subprocess.Popen[bytes] | None = None
        self._control = control
        self._keeper_pid = keeper_pid
        self._buffer = b""

    def events(self) -> list[dict[str, Any]]:
        """Return the server manager's events since the last call, without waiting; ``lost`` if the server manager is
        gone.
        """
        self._control.setblocking(False)
        try:
            while True:
                heard = self._control.recv(65_536)
                if not heard:
                    return [*self._lines(), {"event": "lost"}]
                self._buffer += heard
        except BlockingIOError:
            return self._lines()
        except OSError:
            return [*self._lines(), {"event": "lost"}]

    def _lines(self) -> list[dict[str, Any]]:
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines]

    def leave(self) -> bool:
        """Give the share back; return whether the server was stopped, this having been the last one."""
        answers = self._buffer
        try:
            self._control.settimeout(_LEAVE_TIMEOUT_S)
            self._control.sendall(b"leave\n")
            while heard := self._control.recv(4096):
                answers += heard
        except OSError:
            pass
        self._control.close()
        if b'"stays"' in answers:
            return False
        if self.server_manager is not None:
            self.server_manager.wait(_LEAVE_TIMEOUT_S)
        else:
            _wait_for_end(self._keeper_pid)
        return True


def join(data: Path) -> MembershipClient:
    """Join the embedded server of a data folder, starting it if nobody has.

    Raises:
        ConfigurationError: the folder cannot be used, or the server cannot run on what is in it.
        ServerUnavailable: it did not come up in time.
    """
    prepare_data_folder(data)
    folder = server_folder(data)
    try:
        folder.mkdir(exist_ok=True)
        (data / "logs").mkdir(exist_ok=True)
        lock = (folder / "join.lock").open("w")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to {folder}: {error.strerror or error}; choose another folder with --data DIR"
        ) from error
    deadline = time.monotonic() + _JOIN_TIMEOUT_S
    with lock:
        _lock_within(lock, deadline)
        server_manager: subprocess.Popen[bytes] | None = None
        try:
            while time.monotonic() < deadline:
                membership = _try_to_join(data, deadline)
                if membership is not None:
                    if server_manager is not None and server_manager.stdout is not None:
                        server_manager.stdout.close()
                    membership.server_manager = server_manager
                    return membership
                if server_manager is None and _is_free(lock_path(data)):
                    server_manager = _start_server_manager(data)
                elif server_manager is not None and server_manager.poll() is not None:
                    _raise_failure(server_manager)
                    server_manager = None
                time.sleep(0.01)
        except BaseException:  # an interruption in particular
            # Under the lock nobody else has joined it, so that it would wait for somebody.
            if server_manager is not None:
                server_manager.terminate()
                server_manager.wait(_LEAVE_TIMEOUT_S)
            raise
    raise ServerUnavailable(f"the embedded server of {data}", f"it did not come up; see {data / 'logs'}")


def _try_to_join(data: Path, deadline: float) -> MembershipClient | None:
    record = read_record(data)
    if record is None:
        return None
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.settimeout(max(0.1, deadline - time.monotonic()))
        control.connect(str(record.control))
        greeting = b""
        while not greeting.endswith(b"\n"):
            heard = control.recv(4096)
            if not heard:
                # It was just ending; its successor is ours to start.
                control.close()
                return None
            greeting += heard
    except OSError:
        control.close()
        return None
    reply = json.loads(greeting.splitlines()[0])
    if reply["event"] != "ready":
        # It closes the connection when everything is cleared away.
        with suppress(OSError):
            while control.recv(4096):
                pass
        control.close()
        _wait_for_end(record.pid)
        raise ConfigurationError(str(reply.get("reason", "the embedded server cannot run")))
    return MembershipClient(control, reply["url"], record.pid)


def _start_server_manager(data: Path) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C in the terminal is for `up`, which leaves in good order.
    with (data / "logs" / "keeper.log").open("wb") as log:
        return subprocess.Popen(
            [*python_module("orchestrator.deployment.embedded.server_manager"), str(data)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )


def _raise_failure(server_manager: subprocess.Popen[bytes]) -> None:
    """Raise the failure that a server manager reported before it ended; silence means that another one was quicker."""
    output, _ = server_manager.communicate()
    for line in output.splitlines():
        with suppress(ValueError):
            raise ConfigurationError(json.loads(line)["reason"])
    if server_manager.returncode not in (0, 3):
        raise ConfigurationError(
            f"the embedded server's keeper ended with exit code {server_manager.returncode}"
        )


def _lock_within(lock: IO[str], deadline: float) -> None:
    while not try_to_lock(lock):
        if time.monotonic() > deadline:
            raise ServerUnavailable("the embedded server", "another `up` has been starting it for long")
        time.sleep(0.05)


def _is_free(path: Path) -> bool:
    """Return True if no keeper holds the lock now."""
    with path.open("w") as lock:
        return try_to_lock(lock)


def _wait_for_end(pid: int, timeout_s: float = 5.0) -> None:
    """Wait until a process of somebody else is gone."""
    deadline = time.monotonic() + timeout_s
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.005)

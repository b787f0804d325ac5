"""A socket on which a process of the stack says whether it is well: one connection, no server, no settings.

Who probes connects to ``$TMPDIR/orchestra-UID/SERVICE.….sock`` (``/tmp`` by default) and reads one line: `alive`, or
`hung` and for how long. Nothing else is imported here: a container is probed every few seconds.
"""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from contextlib import suppress

#: Seconds that a process may take to answer.
ANSWER_S = 2.0
_ALIVE = "alive"


def folder() -> str:
    """The folder of the sockets of this user."""
    return os.path.join(os.environ.get("TMPDIR") or "/tmp", f"orchestra-{os.getuid()}")  # noqa: PTH118, S108


class Probe:
    """Answers on a socket whether the last sign of life is recent. Safe to share between threads."""

    def __init__(self, service: str, instance: str, *, late_s: float) -> None:
        self._late_s = late_s
        self._last = time.monotonic()
        self._path = os.path.join(folder(), f"{service}.{instance}.sock")  # noqa: PTH118
        self._socket: socket.socket | None = None

    def beat(self) -> None:
        """Note a sign of life."""
        self._last = time.monotonic()

    def open(self) -> None:
        """Begin to answer. May be called again.

        Raises:
            OSError: there can be no socket, or its folder is open to others.
        """
        if self._socket is not None:
            return
        _make_folder()
        for path in _sockets(""):
            if _ask(path) is None:
                with suppress(OSError):
                    os.unlink(path)  # noqa: PTH108  (of a process that was killed)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # It gets its name when it answers: a socket that refuses is one of a process that is gone.
            listening.bind(self._path + "~")
            listening.listen(16)
            os.rename(self._path + "~", self._path)  # noqa: PTH104
        except OSError:
            listening.close()
            raise
        self._socket = listening
        threading.Thread(target=self._answer, args=(listening,), name="probe", daemon=True).start()

    def close(self) -> None:
        """Take the socket away; idempotent."""
        listening, self._socket = self._socket, None
        if listening is not None:
            with suppress(OSError):
                os.unlink(self._path)  # noqa: PTH108
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection
            listening.close()

    def _answer(self, listening: socket.socket) -> None:
        while self._socket is not None:
            try:
                asking, _ = listening.accept()
                with asking:
                    since = time.monotonic() - self._last
                    line = _ALIVE if since <= self._late_s else f"hung: no sign of life for {since:.0f} s"
                    asking.sendall(f"{line}\n".encode())
            except OSError:
                time.sleep(0.1)  # who asked is gone, or the process has no file descriptor left


def complaint(service: str) -> str | None:
    """What is wrong with the copies of a service on this host; None: one of them is well."""
    found = [answer for path in _sockets(f"{service}.") if (answer := _ask(path)) is not None]
    if _ALIVE in found:
        return None
    where = socket.gethostname()
    return f"{service} on {where} is {found[0]}" if found else f"no {service} is running on {where}"


def _make_folder() -> None:
    with suppress(FileExistsError):
        os.mkdir(folder(), 0o700)  # noqa: PTH102
    about = os.lstat(folder())
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise PermissionError(f"{folder()} belongs to somebody else or is open to others; remove it")


def _sockets(beginning: str) -> list[str]:
    try:
        names = os.listdir(folder())  # noqa: PTH208
    except OSError:
        return []
    found = [name for name in sorted(names) if name.startswith(beginning) and name.endswith(".sock")]
    return [os.path.join(folder(), name) for name in found]  # noqa: PTH118


def _ask(path: str) -> str | None:
    """The line that a process answers; None: it is gone."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_S)
        try:
            asking.connect(path)
            return asking.makefile(encoding="utf-8").readline().strip() or None
        except TimeoutError:
            return f"hung: no answer for {ANSWER_S:g} s"
        except OSError:
            return None

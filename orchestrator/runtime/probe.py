"""A socket on which a process of the stack says whether it is well: one connection, no server, no settings.

Who probes connects to the abstract socket ``@orchestra-UID.SERVICE.DATA.…``, which `/proc/net/unix` lists, and reads one line:
`alive`, or `hung` and for how long. The socket goes with its process, however that ends. Linux only, as containers are.
Nothing else is imported here: a container is probed every few seconds.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import threading
import time
import zlib
from contextlib import suppress

#: Seconds that a process may take to answer.
ANSWER_S = 2.0
#: The answer of a process that is well.
ALIVE = "alive"
#: What `/proc/net/unix` has of a socket that listens.
_LISTENS = "00010000"


def _name(service: str, data: str) -> str:
    """Return the beginning of the names of a service's sockets: of one data folder, or without it of any."""
    folder = f"{zlib.crc32(os.fsencode(os.path.realpath(data))):08x}." if data else ""
    return f"orchestra-{os.getuid()}.{service}.{folder}"


class Probe:
    """Answers on a socket whether the last sign of life is recent. Safe to share between threads."""

    def __init__(self, service: str, instance: str, *, data: str, late_s: float) -> None:
        self._late_s = late_s
        self._last = time.monotonic()
        self._name = _name(service, data) + instance
        self._socket: socket.socket | None = None

    def beat(self) -> None:
        """Note a sign of life."""
        self._last = time.monotonic()

    def open(self) -> None:
        """Begin to answer. May be called again.

        Raises:
            OSError: there can be no socket.
        """
        if self._socket is not None or sys.platform != "linux":
            return
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(f"\0{self._name}")
            listening.listen(16)
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
                listening.shutdown(socket.SHUT_RDWR)  # wakes who waits for a connection
            listening.close()

    def _answer(self, listening: socket.socket) -> None:
        while self._socket is not None:
            try:
                asking, _ = listening.accept()
                with asking:
                    since = time.monotonic() - self._last
                    line = ALIVE if since <= self._late_s else f"hung: no sign of life for {since:.0f} s"
                    asking.sendall(f"{line}\n".encode())
            except OSError:
                time.sleep(0.1)  # who asked is gone, or the process has no file descriptor left


def complaint(service: str, data: str = "") -> str | None:
    """Return what is wrong with all copies of a service on this host, with ``data`` those of that folder; None if one
    is well.
    """
    found = [answer for name in _listening(_name(service, data)) if (answer := _ask(name)) is not None]
    if ALIVE in found:
        return None
    where = socket.gethostname()
    return f"{service} on {where} is {found[0]}" if found else f"no {service} is running on {where}"


def answers(data: str) -> dict[int, str]:
    """Return the answers of a data folder's processes on this host, by process id; a stopped one gives no answer in
    time.
    """
    folder = _name("*", data).rpartition(".*.")[2]
    names = [name for name in _listening(f"orchestra-{os.getuid()}.") if f".{folder}" in name]
    return {pid: line for name in names for pid, line in [_asked(name)] if pid}


def _listening(beginning: str) -> list[str]:
    """Return the names of the abstract sockets that begin so."""
    try:
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as table:  # noqa: PTH123
            rows = [line.split() for line in table]
    except OSError:
        return []
    at = f"@{beginning}"
    return [row[7][1:] for row in rows if len(row) == 8 and row[3] == _LISTENS and row[7].startswith(at)]


def _ask(name: str) -> str | None:
    """Return the line that a process of this user answers; None if it is gone, or somebody else's."""
    return _asked(name)[1] or None


def _asked(name: str) -> tuple[int, str]:
    """Return the process of this user that listens there, and the line that it answers; 0 if gone, or somebody
    else's.
    """
    pid = 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_S)
        try:
            asking.connect(f"\0{name}")
            process, user, _ = struct.unpack(
                "3i", asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            )
            if user != os.getuid():
                return 0, ""
            pid = process
            return pid, asking.makefile(encoding="utf-8").readline().strip()
        except TimeoutError:
            return pid, f"hung: no answer for {ANSWER_S:g} s"
        except OSError:
            return 0, ""

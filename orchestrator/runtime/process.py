"""A process of a stack: its title, its signals, and its end when its parent dies, no matter how the parent died.

On Linux the kernel sends the signal (PR_SET_PDEATHSIG). Elsewhere a Python process polls its parent, and
other programs go on until the next start cleans up.
"""

from __future__ import annotations

import _thread
import ctypes
import getpass
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5
#: Longest path of a unix socket in bytes that Linux (108) and macOS (104) both take, less the final NUL.
MAX_SOCKET_PATH = 103

# Runs in a bare interpreter between fork and exec: a preexec_fn is not safe in a process with threads.
# The setting survives exec. The parent may have died before the call, so the launcher checks afterwards.
_LAUNCHER = """
import ctypes, os, sys
number, parent = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, number)
if os.getppid() != parent:
    sys.exit(0)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def folders_for_sockets(name: str, *first: str | Path | None) -> list[Path]:
    """Return the folders in which a Unix socket of this name may be made: its path is short enough for Linux and macOS.

    These are of ``first``, the system's folder for temporary files, and ``/tmp``, in this order.
    """
    bases = (*first, tempfile.gettempdir(), "/tmp")  # noqa: S108  (what is made there is ours alone)
    return [Path(base) for base in bases if base and len(os.fsencode(f"{base}/{name}")) <= MAX_SOCKET_PATH]


def python_module(name: str) -> list[str]:
    """Return the command line that runs a module. `-P` keeps the working directory off the import path."""
    return [sys.executable, "-P", "-m", name]


def ending_with_parent(command: list[str], *, sig: signal.Signals = signal.SIGTERM) -> list[str]:
    """Return the command line that runs ``command`` and sends it ``sig`` when its parent dies.

    The kernel watches the thread that starts the command, so that thread must live as long as its process.
    """
    if not sys.platform.startswith("linux"):
        return command
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(int(sig)), str(os.getpid()), *command]


def die_with_parent(
    sig: signal.Signals = signal.SIGTERM, *, of_thread: bool = True, parent: int | None = None
) -> None:
    """Send this process ``sig`` when its parent dies.

    Args:
        sig: the signal.
        of_thread: watch the thread that started this process, by the kernel where it can; the signal comes at once.
            Without it a thread polls the whole parent process, and the signal comes within half a second.
        parent: the parent's process id, if the caller knows it; then a parent that died before this call is noticed.
    """
    parent = parent or os.getppid()
    if of_thread and sys.platform.startswith("linux"):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(sig))
        if os.getppid() != parent:
            os.kill(os.getpid(), sig)
        return
    threading.Thread(target=_watch, args=(parent, sig), name="parent-watch", daemon=True).start()


def _watch(parent: int, sig: signal.Signals) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), sig)


def is_alive(pid: int) -> bool:
    """Return True if a process runs. A zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        state = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="ascii", errors="replace")
            .rpartition(")")[2]
            .split()[0]
        )
    except (OSError, IndexError):
        return True
    return state not in "ZX"


_PR_SET_NAME = 15
#: Indexes of the start and end of the command line in `/proc/PID/stat`, counted after the process name.
_ARGUMENTS_FROM, _ARGUMENTS_TO = 45, 46


def set_title(name: str, title: str) -> None:
    """Show ``title``, cut to the length of the present command line; ``name`` is the short form, cut to 15 bytes.

    Does nothing on other systems than Linux, or where the kernel refuses.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, os.fsencode(name)[:15])
    with suppress(OSError, ValueError, IndexError):
        fields = (
            Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        first, last = int(fields[_ARGUMENTS_FROM]), int(fields[_ARGUMENTS_TO])
        if 0 < first < last:
            room = last - first
            # The last byte stays NUL, else the kernel shows the environment as a part of the command line.
            ctypes.memmove(first, os.fsencode(title)[: room - 1].ljust(room, b"\0"), room)


def set_soon(*events: threading.Event) -> None:
    """Set events from another thread, at once and in this order.

    A signal handler runs in the main thread, which may hold the lock of the event because it is about to wait for it.
    Setting the event in the handler would then deadlock.
    """

    def set_all() -> None:
        for event in events:
            event.set()

    # Not `threading.Thread`, which takes locks of its own when it starts.
    _thread.start_new_thread(set_all, ())


def user_name(unknown: str = "unknown") -> str:
    """Return the name of the user that runs this process, or ``unknown``."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may know no name for its user
        return unknown


def user_at_host() -> str:
    """Return who runs this process, as ``user@host``."""
    return f"{user_name()}@{socket.gethostname()}"

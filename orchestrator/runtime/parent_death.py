"""Processes that end with their parent, however the parent ended.

On Linux the kernel does it (PR_SET_PDEATHSIG); elsewhere a Python process watches its parent itself and
other programs are left to the clean-up of the next start.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.5

# Runs in a bare interpreter between fork and exec: a preexec_fn is not safe in a process with threads.
# The signal survives exec. The parent may have died before it was set, hence the second look.
_LAUNCHER = """
import ctypes, os, sys
number, parent = int(sys.argv[1]), int(sys.argv[2])
ctypes.CDLL(None).prctl(1, number)
if os.getppid() != parent:
    sys.exit(0)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def python_module(name: str) -> list[str]:
    """The command line that runs a module of ours and imports nothing from the working directory.

    `-P` keeps that folder off the path of imports, where Python puts it first.
    """
    return [sys.executable, "-P", "-m", name]


def ending_with_parent(command: list[str], *, sig: signal.Signals = signal.SIGTERM) -> list[str]:
    """The command line that runs ``command`` so that it gets ``sig`` when the calling thread's process ends.

    Start it from a thread that lives as long as the process: the kernel watches the thread.
    """
    if not sys.platform.startswith("linux"):
        return command
    return [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(int(sig)), str(os.getpid()), *command]


def die_with_parent(
    sig: signal.Signals = signal.SIGTERM, *, of_thread: bool = True, parent: int | None = None
) -> None:
    """Have this process get ``sig`` when its parent ends. One that knows its ``parent`` notices an end before the call, too.

    With ``of_thread`` that is at once where the kernel can do it, which watches the thread that started this
    process; without, it is within half a second of the end of the whole parent process.
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
    """Whether a process runs; one that has ended and waits to be collected does not."""
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

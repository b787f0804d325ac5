"""What `ps` and `top` show of a process that was forked, whose command line is that of its parent."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

_PR_SET_NAME = 15
#: Places of the bounds of the command line in `/proc/PID/stat`, counted from what comes after the name.
_ARGUMENTS_FROM, _ARGUMENTS_TO = 45, 46


def set_title(name: str, title: str) -> None:
    """Show this process as ``title``, cut to the length of its command line; ``name`` is its short form, 15 octets.

    Without Linux, or where the kernel does not let it, nothing changes.
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
            # The last octet stays NUL: otherwise the kernel takes the environment for a part of the command line.
            ctypes.memmove(first, os.fsencode(title)[: room - 1].ljust(room, b"\0"), room)

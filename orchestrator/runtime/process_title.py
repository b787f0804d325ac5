"""Sets what `ps` and `top` show for a forked process, which has the command line of its parent."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from pathlib import Path

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

"""The file `_events.jsonl` of a data folder: one line for each question that an agent raised.

Several processes of one machine append to it. A line is written under a lock and in one piece; what a process
left half written is closed off before the next line. An event has an id, and is written once.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FILE_NAME = "_events.jsonl"
AGENT_CALLBACK = "AGENT_CALLBACK"

_PIECE = 1 << 20


class EventLog:
    """Appends events to the file of one data folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def path(self) -> Path:
        """The file."""
        return self._folder / FILE_NAME

    def append(
        self, event_type: str, fields: Mapping[str, Any], *, timestamp: str, again: bool = False
    ) -> bool:
        """Append an event; ``fields["id"]`` tells it from others.

        With ``again`` the event may be there already; it is looked for, and False is returned if it is.

        Raises:
            OSError: the file cannot be written.
        """
        event = {"timestamp": timestamp, "event_type": event_type, "data": dict(fields)}
        line = json.dumps(event, ensure_ascii=False).encode(errors="replace") + b"\n"
        file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            if again and _holds(file, json.dumps(fields["id"]).encode()):
                return False
            if not _ends_with_a_line(file):
                line = b"\n" + line
            while line:
                line = line[os.write(file, line) :]
            return True
        finally:
            os.close(file)


def _ends_with_a_line(file: int) -> bool:
    size = os.fstat(file).st_size
    return size == 0 or os.pread(file, 1, size - 1) == b"\n"


def _holds(file: int, words: bytes) -> bool:
    """Return True if the file contains these bytes; read from its end, where they most probably are."""
    end = os.fstat(file).st_size
    tail = b""
    while end > 0:
        start = max(0, end - _PIECE)
        piece = os.pread(file, end - start, start)
        if words in piece + tail:
            return True
        tail = piece[: len(words)]
        end = start
    return False

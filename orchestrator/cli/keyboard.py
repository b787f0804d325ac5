"""Single keys from a terminal, which is as it was afterwards, however the block ends."""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

#: What terminals send for the keys that have no character.
_NAMED: Final = {
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[C": "right",
    "\x1bOC": "right",
    "\x1b[D": "left",
    "\x1bOD": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x1b": "escape",
}
#: A sequence of a function key, or one character.
_KEY: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])|.", re.DOTALL)
#: The beginning of a sequence, at the end of what was read.
_UNFINISHED: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
#: Seconds within which the rest of a sequence comes; without it, it was the escape key.
_REST_S: Final = 0.05


@contextmanager
def keys() -> Iterator[Callable[[], list[str]]]:
    """Gives a function that returns the keys pressed since its last call: a character each, or a name such as `up`.

    The terminal shows nothing of what is typed meanwhile. Ctrl-C raises KeyboardInterrupt; SIGTERM and SIGHUP end the program
    with 143 and 129 after the terminal was put back.
    """
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    handlers = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def pressed() -> list[str]:
        text = ""
        while select.select([fd], [], [], _REST_S if _UNFINISHED.search(text) else 0)[0]:
            piece = os.read(fd, 1024)
            if not piece:
                return [*split(text), "closed"]
            text += decoder.decode(piece)
        return split(text)

    try:
        tty.setcbreak(fd, termios.TCSANOW)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def split(text: str) -> list[str]:
    """Return the keys in a terminal's input; a key without a name is its whole sequence."""
    return [_NAMED.get(key, key) for key in _KEY.findall(text)]


def _leave(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)

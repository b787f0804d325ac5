"""Progress of something, on the terminal of a user who waits for it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from orchestrator.display.text import counted
from orchestrator.errors import ServerUnavailable

if TYPE_CHECKING:
    from rich.status import Status

    from orchestrator.client.client import Client
    from orchestrator.ledger import Session

#: Seconds of waiting before anything is shown, and between two looks at least.
_PATIENCE_S = 1.0
#: A look at the tree may take this share of the time at most: a tree of ten thousand is looked at more rarely.
_SHARE = 0.05


@contextmanager
def tree_progress(client: Client, session: str) -> Iterator[Callable[[], None]]:
    """A function that shows on standard error, if that is a terminal, how many sessions of a tree have ended.

    It looks at the tree when it is time to. It is called between two steps of waiting, which report outages.
    """
    began = time.monotonic()
    next_look = began + _PATIENCE_S
    line: Status | None = None

    def look() -> None:
        nonlocal next_look, line
        now = time.monotonic()
        if now < next_look:
            return
        line = line or _line()
        if line is None:
            next_look = float("inf")
            return
        with suppress(ServerUnavailable):
            line.update(_text(client.tree(session), now - began))
        took = time.monotonic() - now
        next_look = now + max(_PATIENCE_S, took / _SHARE)

    try:
        yield look
    finally:
        if line is not None:
            line.stop()


def _line() -> Status | None:
    # Loaded here: a user who waits for less than a second does not pay for it.
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        return None
    line = console.status("")
    line.start()
    return line


def _text(tree: list[Session], elapsed_s: float) -> str:
    from orchestrator.client.waiting import is_over

    ended = sum(map(is_over, tree))
    at_work = sum(session.state == "running" for session in tree)
    return f"{ended} of {counted(len(tree), 'session')} ended, {at_work} at work; {elapsed_s:.0f} s"


@contextmanager
def progress_bar(title: str, *, shown: bool = True) -> Iterator[Callable[[str, int, int], object]]:
    """A function that shows what is done, how many of how many: as a bar if standard error is a terminal, else nowhere."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(
        console=console,
        transient=True,
        # What goes to a file or a pipe stays there.
        redirect_stdout=sys.stdout.isatty(),
        disable=not (shown and console.is_terminal),
    ) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what, done, whole: bar.update(task, description=what, completed=done, total=whole)

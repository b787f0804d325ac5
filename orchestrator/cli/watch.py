"""`orchestra watch`: a tree of sessions as it changes, steered by keys."""

from __future__ import annotations

import codecs
import os
import re
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import FrameType
from typing import TYPE_CHECKING, Final

import click

from orchestrator.cli.exit_codes import Exit, NotYet
from orchestrator.cli.names import session_argument
from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json_line, say
from orchestrator.cli.stack import open_client
from orchestrator.errors import ServerUnavailable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from orchestrator.client.client import Client
    from orchestrator.config.settings import Settings
    from orchestrator.ledger import Session
    from orchestrator.ledger.live_text import LiveEvent


#: Lines of the terminal that the tree leaves free.
_SPARE_ROWS = 4
#: Seconds between two looks at what holds runs back.
_LOOK_S = 1.0


#: Shows a picture of a tree, and below it what holds its runs back, in place of the one before.
Show = Callable[[list["Session"], Sequence[str]], None]


@click.command()
@session_argument()
@click.option("--timeout", type=click.FloatRange(min=0), metavar="S", help="Seconds to watch at most.")
@click.option(
    "--text", "as_text", is_flag=True, help="Show what the session writes, as it comes, and no tree."
)
@click.option("--after", default="", metavar="POSITION", help="With --text: read on after this position.")
@json_option
@stack_options
def watch(
    settings: Settings, *, session: str, timeout: float | None, as_text: bool, after: str, as_json: bool
) -> None:
    """Follow SESSION and everything below it until it ends.

    On a terminal: a live tree that takes keys; `?` lists them. To a pipe: one line for each change. With --json: one JSON document a line.
    With --text: the text of a model agent while it is written; with --json as well, one piece a line. Each has a
    `position`: --after reads on behind it.
    """
    if as_text:
        _show_text(settings, session, after=after, timeout_s=timeout, as_json=as_json)
        return
    if after:
        raise click.UsageError("--after says where to read on in a text: it needs --text")
    from orchestrator.ledger.model import Tally

    with open_client(settings) as client:
        picture: list[Session] = []
        is_picture = not as_json and _is_terminal()
        try:
            if not as_json and _takes_keys():
                picture = _with_keys(client, session, timeout)
            else:
                with tree_display(as_json=as_json) as show:
                    for picture, notes in _pictures(client, session, timeout):
                        show(picture, notes)
        except TimeoutError as error:
            raise NotYet(str(error)) from error
        except KeyboardInterrupt:
            say(f"Stopped watching; the session continues: orchestra watch {session}", err=True)
            sys.exit(Exit.INTERRUPTED)
        if not as_json and not is_picture:  # a picture ends with it
            say(str(Tally.of(picture)))


def _takes_keys() -> bool:
    """Return True if somebody sits at a terminal that can show a picture."""
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _with_keys(client: Client, session: str, timeout_s: float | None) -> list[Session]:
    """Show a tree that takes keys until it has ended, or the user leaves; the last picture.

    Raises:
        KeyboardInterrupt: the user has left.
        TimeoutError: the time has passed.
    """
    from rich.console import Console
    from rich.live import Live

    from orchestrator.cli.board import Board

    console, board = Console(), Board(client)
    picture: list[Session] = []
    with keys() as pressed, Live(console=console, auto_refresh=False, transient=False) as live:
        for picture, notes in _pictures(client, session, timeout_s, always=True):
            board.update(picture, notes)
            for key in pressed():
                board.press(key)
            if board.left:
                raise KeyboardInterrupt
            live.update(board.picture(console.width, console.height), refresh=True)
    return picture


def _show_text(
    settings: Settings, session: str, *, after: str, timeout_s: float | None, as_json: bool
) -> None:
    with open_client(settings) as client:
        try:
            for event in client.stream(session, after=after, timeout_s=timeout_s):
                (_print_event if as_json else _say_event)(event)
                after = event.position
        except TimeoutError as error:
            raise NotYet(f"{error}; read on with --after {after or '0-0'}") from error
        except KeyboardInterrupt:
            on = f"orchestra watch {session} --text --after {after or '0-0'}"
            say(f"\nStopped watching; the session continues: {on}", lines=True, err=True)
            sys.exit(Exit.INTERRUPTED)


def _print_event(event: LiveEvent) -> None:
    from orchestrator.cli.documents.sessions import LiveText

    print_json_line(LiveText.of(asdict(event)))


def _say_event(event: LiveEvent) -> None:
    if event.kind == "text":
        say(event.text, lines=True, newline=False)
    elif event.kind == "replaced":
        say("\n[its run is tried again; what it wrote last is replaced]", lines=True)
    elif event.kind == "call":
        say(f"\n[calls {event.tool}]", lines=True)


def _pictures(
    client: Client, session: str, timeout_s: float | None, *, always: bool = False
) -> Iterator[tuple[list[Session], list[str]]]:
    """Pictures of a tree with what holds its runs back, whenever one of the two changes; with ``always`` at each look."""
    watching = client.watching(session, timeout_s=timeout_s)
    picture: list[Session] = []
    notes: list[str] = []
    look_at = 0.0
    while not watching.over:
        changed = client.step(watching)
        picture, before = changed or picture, notes
        if time.monotonic() >= look_at:
            with suppress(ServerUnavailable):  # the next step waits for Redis
                notes = client.held_back(picture)
            look_at = time.monotonic() + _LOOK_S
        if always or changed is not None or notes != before:
            yield picture, notes


def _is_terminal() -> bool:
    """Return True if a tree is shown as a picture that changes in place."""
    from rich.console import Console

    return Console().is_terminal


@contextmanager
def tree_display(*, as_json: bool = False) -> Iterator[Show]:
    """Gives a function that shows one picture of a tree after the other, in the way that fits the output."""
    if as_json:
        yield _json_lines()
        return
    from rich.console import Console

    console = Console()
    if not _is_terminal():
        yield _plain_lines()
        return
    from rich.live import Live

    with Live(console=console, refresh_per_second=8, transient=False) as live:
        yield lambda sessions, notes: live.update(_picture(console, sessions, notes))


def _picture(console: Console, sessions: list[Session], notes: Sequence[str]) -> RenderableType:
    from rich.text import Text

    from orchestrator.cli.render import awaited_answers, tree_lines
    from orchestrator.display.text import visible
    from orchestrator.ledger.model import Tally

    text = Text(no_wrap=True, overflow="ellipsis")
    for line in tree_lines(sessions, rows=max(8, console.height - _SPARE_ROWS)):
        text.append(line.indent, style="dim")
        text.append(f"{visible(line.text)}\n", style=line.style)
    for note in (*awaited_answers(sessions), *notes):
        text.append(f"{visible(note)}\n", style="yellow")
    text.append(str(Tally.of(sessions)))
    return text


def _plain_lines() -> Show:
    """Prints one line for each session whose state, activity or progress has changed."""
    from orchestrator.cli.render import session_line

    shown: dict[str, tuple[str, str, int]] = {}
    noted: Sequence[str] = ()

    def show(sessions: list[Session], notes: Sequence[str]) -> None:
        nonlocal noted
        now = time.strftime("%H:%M:%S")
        for session in sessions:
            facts = (session.state.value, session.activity, session.progress)
            if shown.get(session.id) != facts:
                shown[session.id] = facts
                say(f"{now}  {session.id}  {session_line(session)}")
        for note in notes:
            if note not in noted:
                say(f"{now}  {note}")
        noted = notes

    return show


def _json_lines() -> Show:
    """Prints the sessions that have changed, as one JSON document on one line."""
    from orchestrator.cli.documents.sessions import Sessions

    shown: dict[str, Session] = {}

    def show(sessions: list[Session], _notes: Sequence[str]) -> None:
        changed = [session for session in sessions if shown.get(session.id) != session]
        shown.update((session.id, session) for session in changed)
        print_json_line(Sessions.of({"sessions": changed}))

    return show


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

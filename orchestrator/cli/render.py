"""Sessions as people want to see them: a tree that fits the screen, a line, a table. Nothing here connects."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from rich.cells import cell_len, chop_cells, set_cell_size

from orchestrator.cli.output import say_cells
from orchestrator.display.text import counted, visible
from orchestrator.errors import ServerUnavailable
from orchestrator.ledger.model import CLOSED, Session, SessionState
from orchestrator.policy.budget import describe

if TYPE_CHECKING:
    from rich.status import Status

    from orchestrator.client.client import Client


STYLES = {
    SessionState.SCHEDULED: "dim",
    SessionState.PENDING: "dim",
    SessionState.RUNNING: "bold cyan",
    SessionState.IDLE: "yellow",
    SessionState.FINISHED: "green",
    SessionState.FAILED: "bold red",
    SessionState.STOPPED: "red",
    SessionState.DELETED: "red",
    SessionState.DAMAGED: "bold red",
}
#: Who is shown first when not all fit.
_RANK = {
    SessionState.FAILED: 0,
    SessionState.DAMAGED: 0,
    SessionState.RUNNING: 1,
    SessionState.IDLE: 2,
    SessionState.STOPPED: 3,
    SessionState.DELETED: 3,
    SessionState.SCHEDULED: 4,
    SessionState.PENDING: 4,
    SessionState.FINISHED: 5,
}
#: Columns of a bar, and of one where there is little room.
_BAR_CELLS, _SHORT_BAR_CELLS = 20, 8
#: Columns for the name of an agent, at least and at most.
_AGENT_CELLS = (10, 24)


@dataclass(frozen=True)
class Line:
    """A line of a tree."""

    indent: str
    text: str
    style: str
    #: Session, agent, state and the rest; empty for a line that stands for several sessions.
    cells: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.indent}{self.text}"


def tree_lines(sessions: Sequence[Session], *, rows: int | None = None, narrow: bool = False) -> list[Line]:
    """Return the tree whose first session is its top, each with its id.

    Cells of a ``narrow`` terminal begin with what tells sessions from each other.

    With ``rows``, what matters most of it in about so many lines, and without ids, which no screen has room for.
    """
    if not sessions:
        return []
    titles = {session.id: session.title for session in sessions if session.title}
    sessions = [_named(session, titles) if session.parked else session for session in sessions]
    children: dict[str, list[Session]] = defaultdict(list)
    for session in sessions[1:]:
        children[session.parent].append(session)
    parents = max(1, sum(bool(below) for below in children.values()))
    each = None if rows is None or len(sessions) <= rows else max(2, (rows - parents * 2) // parents)
    lines: list[Line] = []
    width = agent_width(sessions)
    # A stack of our own: a tree may be deeper than Python's.
    waiting: list[tuple[Session | Line, str, str]] = [(sessions[0], "", "")]
    while waiting:
        top, stem, mark = waiting.pop()
        if isinstance(top, Line):
            lines.append(top)
            continue
        below = children.get(top.id, [])
        name = f"{top.id}  " if rows is None else ""
        label = session_about(top, below, narrow=narrow)
        text = f"{name}{_head(top, width)}  {label}"
        cells = (top.id, top.agent, top.state.value, label)
        lines.append(Line(stem + mark, text, STYLES[top.state], cells))
        stem += {"": "", "├─ ": "│  ", "└─ ": "   "}[mark]
        shown = _most_important(below, children, each)
        following: list[tuple[Session | Line, str, str]] = [(child, stem, "├─ ") for child in shown]
        if hidden := Counter(child.state for child in below) - Counter(child.state for child in shown):
            rest = ", ".join(f"{count} {state}" for state, count in sorted(hidden.items()))
            following.append((Line(f"{stem}└─ ", f"… and {rest}", "dim"), "", ""))
        elif following:
            following[-1] = (shown[-1], stem, "└─ ")
        waiting += reversed(following)
    return lines if rows is None else lines[:rows]


def _named(session: Session, titles: Mapping[str, str]) -> Session:
    """Return the session with titles in place of the ids for which it waits, if they are in the same tree."""
    words = [
        titles.get(word.rstrip(","), word.rstrip(",")) + "," * word.endswith(",")
        for word in session.parked.split(" ")
    ]
    return replace(session, parked=" ".join(words))


def _most_important(
    below: list[Session], children: dict[str, list[Session]], each: int | None
) -> list[Session]:
    if each is None or len(below) <= each:
        return below
    ranked = sorted(below, key=lambda s: (s.id not in children, _RANK[s.state], -s.updated_ms))[:each]
    chosen = {session.id for session in ranked}
    return [session for session in below if session.id in chosen]


def agent_width(sessions: Iterable[Session]) -> int:
    """Return the columns in which the names of agents line up; a name that is longer than most screens bear sticks
    out.
    """
    longest = max((len(session.agent) for session in sessions), default=0)
    return min(max(longest, _AGENT_CELLS[0]), _AGENT_CELLS[1])


def session_line(session: Session) -> str:
    """Return a session as one line: agent, state, progress, what it does or why it ended."""
    return f"{_head(session, _AGENT_CELLS[0])}  {session_about(session)}"


def _head(session: Session, width: int) -> str:
    """Return the agent, in ``width`` columns, and the state of a session."""
    return f"{session.agent:<{width}} {session.state:<8}"


def session_about(session: Session, below: Sequence[Session] = (), *, narrow: bool = False) -> str:
    """Progress, spending, and what a session does or why it ended; where it is ``narrow``, the latter first."""
    parts = []
    percent = progress(session, below)
    if percent is not None and session.state not in CLOSED:
        parts.append(bar(percent, _SHORT_BAR_CELLS if narrow else _BAR_CELLS))
    at = len(parts)
    if session.used.requests:
        parts.append(describe(session.used))
    if below:
        done = sum(child.ended_ms > 0 for child in below)
        parts.append(f"{done}/{len(below)} children done")
    activity = session.doing(_awaited_person(session))
    line = _short(f"{session.title}{f' - {activity}' if activity else ''}", 100)
    parts.insert(at if narrow else len(parts), line)
    return "  ".join(parts)


def awaited_answers(sessions: Iterable[Session]) -> list[str]:
    """Return the commands that answer a tree's approvals, a line each that fits 80 columns; a line for those beyond
    three.
    """
    approvals = [name for session in sessions if session.state not in CLOSED for name in session.approvals]
    more = [f"{len(approvals) - 3} more wait for you: orchestra questions"] if len(approvals) > 3 else []
    return [*(f"waits for you: orchestra approve {name}" for name in approvals[:3]), *more]


def _awaited_person(session: Session) -> str:
    """That it waits for a person, and how the first answer is given."""
    if not session.approvals:
        return ""
    more = f" and {len(session.approvals) - 1} more" if len(session.approvals) > 1 else ""
    return f"waits for you: orchestra approve {session.approvals[0]}{more}"


def progress(session: Session, below: Sequence[Session] = ()) -> int | None:
    """Return the progress of a session in percent: as its agent reports, else the share of its children that are
    done.
    """
    if session.state is SessionState.FINISHED:
        return 100 if below or session.progress >= 0 else None
    if session.progress >= 0:
        return session.progress
    return 100 * sum(child.ended_ms > 0 for child in below) // len(below) if below else None


def bar(percent: int, cells: int = _BAR_CELLS) -> str:
    """Return a progress bar."""
    full = cells * percent // 100
    return f"{'█' * full}{'░' * (cells - full)} {percent:>3}%"


def age(ms: int, *, now_ms: int | None = None) -> str:
    """Return the age of a moment, in the unit that fits."""
    seconds = max(0, (time.time_ns() // 1_000_000 if now_ms is None else now_ms) - ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _short(text: str, length: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"


#: Columns of a terminal below which ids are shortened.
_ROOM_FOR_IDS: Final = 120
#: Characters of a shortened id at least.
_SHORT_ID: Final = 12
_GAP: Final = "  "


@dataclass(frozen=True)
class Row:
    """A row: its cells, and the colour of one of them."""

    cells: Sequence[str]
    style: str = ""


def terminal_width() -> int | None:
    """Columns of the terminal that is written to; None: it is a file or a pipe, where nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def is_narrow(width: int | None) -> bool:
    """Return True if a terminal has no room for whole ids and long bars."""
    return width is not None and width < _ROOM_FOR_IDS


def short_ids(ids: Iterable[str], width: int | None) -> Mapping[str, str]:
    """Return ids as they are shown: whole if there is room, else by beginnings that tell them apart."""
    every = list(dict.fromkeys(ids))
    if not is_narrow(width):
        return {one: one for one in every}
    longest = max(map(len, every), default=0)
    for length in range(_SHORT_ID, longest):
        if len({one[:length] for one in every}) == len(every):
            return {one: one[:length] for one in every}
    return {one: one for one in every}


def print_table(
    headers: Sequence[str], rows: Sequence[Row], *, styled: int = -1, width: int | None = None
) -> None:
    """Print rows below their headers; the cell number ``styled`` has the style of its row.

    In a terminal of ``width`` columns no row is longer than one line.
    """
    shown = [Row([visible(cell) for cell in row.cells], row.style) for row in rows]
    widths = [
        max(cell_len(header), *(cell_len(row.cells[column]) for row in shown), 0)
        for column, header in enumerate(headers)
    ]
    for row in (Row(headers, "dim"), *shown):
        cells = fitted(row.cells, widths, width)
        is_head = row.cells is headers
        say_cells([(cell, row.style if is_head or at == styled else "") for at, cell in enumerate(cells)])


def fitted(cells: Sequence[str], widths: Sequence[int], width: int | None) -> list[str]:
    """Return the cells of a row, padded to their columns, with no more of them than fit; what was cut ends with an
    ellipsis.
    """
    padded: list[str] = []
    left = width if width is not None else sys.maxsize
    last = max((at for at, cell in enumerate(cells) if cell), default=0)
    for at, cell in enumerate(cells):
        gap = _GAP if at else ""
        room = left - len(gap)
        if room <= 0:
            break
        is_end = at == last or room <= widths[at]
        text = cell if is_end else set_cell_size(cell, widths[at])
        padded.append(gap + cut(text, room))
        left -= cell_len(padded[-1])
        if is_end:
            break
    return [*padded[:-1], padded[-1].rstrip()]


def cut(text: str, room: int) -> str:
    """Return the text in so many columns at most."""
    if cell_len(text) <= room:
        return text
    return f"{chop_cells(text, room - 1)[0]}…" if room > 1 else "…"


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

"""Sessions as people want to see them: a tree that fits the screen, a line, a table. Nothing here connects."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from orchestrator.display.text import counted
from orchestrator.ledger.model import CLOSED, Session, SessionState
from orchestrator.machine import isoformat
from orchestrator.policy.budget import describe

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
class PromiseCount:
    """Counts of callbacks over some sessions."""

    launched: int
    delivered: int
    pending: int
    dead: int

    @classmethod
    def of(cls, sessions: Iterable[Session]) -> PromiseCount:
        """Summed up over ``sessions``."""
        members = list(sessions)
        return cls(
            launched=sum(s.launched for s in members),
            delivered=sum(s.delivered for s in members),
            pending=sum(s.pending for s in members),
            dead=sum(s.dead for s in members),
        )

    def __str__(self) -> str:
        return f"{self.launched} launched = {self.delivered} delivered + {self.pending} pending + {self.dead} dead"


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
    activity = (
        (f"DAMAGED: {session.damage[0]}; see `orchestra doctor`" if session.damage else "")
        or session.reason
        or (f"begins {isoformat(session.due_ms)}" if session.state is SessionState.SCHEDULED else "")
        or session.parked
        or _awaited_person(session)
        or session.trouble
        or (_at_work(session) if session.state is not SessionState.FINISHED else "")
    )
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
    if not session.approvals or session.state in CLOSED:
        return ""
    more = f" and {len(session.approvals) - 1} more" if len(session.approvals) > 1 else ""
    return f"waits for you: orchestra approve {session.approvals[0]}{more}"


def _at_work(session: Session) -> str:
    """Return what a session does, as its agent reports, and which durable step it recorded last."""
    step = f"step {session.step} ({counted(session.steps, 'step')} so far)" if session.step else ""
    return " - ".join(filter(None, [session.activity, step]))


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

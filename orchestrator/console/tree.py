"""A tree of sessions in rows: children folded under their parents by state, a page at a time."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from orchestrator.ledger.model import Session, SessionState, Tally, with_those_above
from orchestrator.ledger.reader import SessionOutline
from orchestrator.policy.budget import NANO

#: Rows of one page.
MOST_ROWS: Final = 200
#: Children of one state that are shown before a link to more.
GROUP_ROWS: Final = 50
#: A tree of so many sessions is shown unfolded.
_SMALL: Final = 60
#: Children of one state that are shown without being asked for, unless they are done.
_FEW: Final = 20
#: What needs a look comes first.
ORDER: Final = (
    SessionState.DAMAGED,
    SessionState.FAILED,
    SessionState.RUNNING,
    SessionState.IDLE,
    SessionState.PENDING,
    SessionState.SCHEDULED,
    SessionState.STOPPED,
    SessionState.DELETED,
    SessionState.FINISHED,
)


@dataclass(frozen=True, kw_only=True)
class Spent:
    """Spending of one session, or of several."""

    requests: int = 0
    tokens: int = 0
    usd: float = 0.0

    @classmethod
    def of(cls, members: Iterable[SessionOutline]) -> Spent:
        """Return the sum over some sessions."""
        used = [(one.requests, one.tokens, one.nano_usd) for one in members if one.requests]
        requests, tokens, nano = (sum(column) for column in zip(*used, strict=True)) if used else (0, 0, 0)
        return cls(requests=requests, tokens=tokens, usd=nano / NANO)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the tree: a session, the children of one state, or a link to more of them."""

    kind: Literal["session", "group", "more"]
    depth: int
    #: The session; of other rows that above them.
    id: str
    state: SessionState
    #: What a link of the row opens or folds.
    name: str
    open: bool = False
    count: int = 0
    below: int = 0
    done: int = 0
    cost: Spent = field(default_factory=Spent)
    offset: int = 0
    #: The whole record of a session, once it is read.
    session: Session | None = None

    @property
    def progress(self) -> int | None:
        """Per cent done: as its agent says, else the share of its children that have ended."""
        if self.state is SessionState.FINISHED:
            return 100
        if self.session is not None and self.session.progress >= 0:
            return self.session.progress
        return 100 * self.done // self.below if self.below else None


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The rows of a tree that a page shows, and what is true of all of it."""

    rows: tuple[Row, ...]
    tally: Tally
    states: dict[str, int]
    cost: Spent
    #: Whether there were more rows than a page has.
    cut: bool

    def with_sessions(self, sessions: Iterable[Session]) -> Picture:
        """Return the picture with the whole records of the sessions that it shows; one that is gone meanwhile is left
        out.
        """
        known = {one.id: one for one in sessions}
        rows = [
            replace(row, session=known[row.id], state=known[row.id].state) if row.kind == "session" else row
            for row in self.rows
            if row.kind != "session" or row.id in known
        ]
        return replace(self, rows=tuple(rows))


def doing(session: Session) -> str:
    """Return what a session does or waits for, or why it ended; without a word of its own, for how many children."""
    waits = session.owed and not session.busy
    return session.doing() or (f"waits for {session.owed} of its children" if waits else "")


def below(members: Sequence[SessionOutline], top: str) -> list[SessionOutline]:
    """Return a session of a tree and everything below it, each after its parent."""
    kept = {top}
    found = []
    for one in members:
        if one.id == top or one.parent in kept:
            kept.add(one.id)
            found.append(one)
    return found


def picture(
    members: Sequence[SessionOutline],
    *,
    opened: Collection[str] = (),
    folded: Collection[str] = (),
    pages: Mapping[str, int] | None = None,
    states: Collection[str] = (),
) -> Picture:
    """Return the rows of a tree whose first member is its top.

    Args:
        members: the sessions, each after its parent.
        opened: names of rows that a reader has unfolded: a session, or `SESSION.state`.
        folded: names of rows that a reader has folded.
        pages: for the children of one state the number of the first that is shown.
        states: only sessions in these states, with those above them; empty: all.
    """
    top = members[0].id
    shown = members
    if states:
        shown = with_those_above(members, lambda one: one.id == top or one.state.value in states)
    drawing = _Drawing(shown, opened, folded, pages or {}, bool(states))
    rows: list[Row] = []
    # A stack of our own: a tree may be deeper than Python's.
    waiting = [drawing.row(members[0], 0)]
    while waiting and len(rows) < MOST_ROWS:
        row, following = drawing.drawn(waiting.pop())
        rows.append(row)
        waiting += reversed(following)
    counts = Counter(one.state for one in members)
    return Picture(
        rows=tuple(rows),
        tally=Tally.of(members),
        states={state.value: counts[state] for state in ORDER if counts[state]},
        cost=Spent.of(members),
        cut=bool(waiting),
    )


class _Drawing:
    """The rows of one picture as they are drawn."""

    def __init__(
        self,
        members: Sequence[SessionOutline],
        opened: Collection[str],
        folded: Collection[str],
        pages: Mapping[str, int],
        filtered: bool,  # noqa: FBT001
    ) -> None:
        self._children: dict[str, list[SessionOutline]] = defaultdict(list)
        for one in members[1:]:
            self._children[one.parent].append(one)
        self._opened, self._folded, self._pages = set(opened), set(folded), pages
        self._small = len(members) <= _SMALL
        self._unfolded = self._small or filtered

    def row(self, one: SessionOutline, depth: int) -> Row:
        """Return the row of a session."""
        children = self._children.get(one.id, [])
        return Row(
            kind="session",
            depth=depth,
            id=one.id,
            name=one.id,
            state=one.state,
            below=len(children),
            done=sum(child.ended_ms > 0 for child in children),
            cost=Spent.of([one]),
        )

    def drawn(self, row: Row) -> tuple[Row, list[Row]]:
        """Return a row as it is shown, and the rows that follow below it."""
        if row.kind == "session" and row.below:
            row = replace(row, open=self._is_open(row.name, usually=self._unfolded or row.depth == 0))
            children = self._children[row.id]
            if row.open and self._small:
                return row, [self.row(child, row.depth + 1) for child in children]
            return row, self._groups(row, children) if row.open else []
        if row.kind == "group" and row.open:
            same = [child for child in self._children[row.id] if child.state is row.state]
            first = min(self._pages.get(row.name, 0), max(0, len(same) - 1))
            following = [self.row(child, row.depth + 1) for child in same[first : first + GROUP_ROWS]]
            if len(same) > GROUP_ROWS:
                following.append(replace(row, kind="more", depth=row.depth + 1, offset=first))
            return row, following
        return row, []

    def _groups(self, parent: Row, children: Sequence[SessionOutline]) -> list[Row]:
        by_state: dict[SessionState, list[SessionOutline]] = defaultdict(list)
        for child in children:
            by_state[child.state].append(child)
        found = []
        for state in filter(by_state.get, ORDER):
            same, name = by_state[state], f"{parent.id}.{state.value}"
            usually = self._unfolded or (state is not SessionState.FINISHED and len(same) <= _FEW)
            found.append(
                Row(
                    kind="group",
                    depth=parent.depth + 1,
                    id=parent.id,
                    name=name,
                    state=state,
                    open=self._is_open(name, usually=usually),
                    count=len(same),
                    cost=Spent.of(same),
                )
            )
        return found

    def _is_open(self, name: str, *, usually: bool) -> bool:
        return name in self._opened or (usually and name not in self._folded)

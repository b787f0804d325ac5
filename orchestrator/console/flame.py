"""A tree as bars: when each session was there, or how much of the cost is below it. Positions are shares of the width."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from orchestrator.ledger.model import Session, SessionState
from orchestrator.ledger.reader import SessionOutline

#: Quantities by which bars are drawn.
By = Literal["time", "cost", "tokens"]
BY: Final[tuple[By, ...]] = ("time", "cost", "tokens")
#: Bars of one picture, rows of one generation, and rows of all.
MOST_BARS: Final = 300
_LANES: Final = 24
_ROWS: Final = 80
#: A bar below this share of the width cannot be seen or chosen.
_LEAST: Final = 0.002
#: Marks on the axis of time.
_MARKS: Final = 4


@dataclass(frozen=True, kw_only=True)
class Bar:
    """Hold where the bar of a session begins and how wide it is, in shares of the whole."""

    id: str
    state: SessionState
    row: int
    x: float
    width: float
    #: Milliseconds that it has lasted, billionths of a dollar, or tokens: its own, and with what is below it.
    own: int
    whole: int
    session: Session | None = None


@dataclass(frozen=True, kw_only=True)
class Flame:
    """The bars of a tree."""

    by: By
    bars: tuple[Bar, ...]
    rows: int
    #: The whole width, in what it is drawn by.
    whole: int
    #: Sessions without a bar: theirs would be too narrow, or there are too many.
    left_out: int
    #: Positions on the axis and the time since the beginning at each, in milliseconds.
    marks: tuple[tuple[float, int], ...] = ()

    @property
    def largest(self) -> list[Bar]:
        """The bars by what they have themselves, the largest first."""
        return sorted((bar for bar in self.bars if bar.own), key=lambda bar: -bar.own)[:10]

    def with_sessions(self, sessions: Collection[Session]) -> Flame:
        """Return the picture with the whole records of its sessions; one that is gone meanwhile is left out."""
        known = {one.id: one for one in sessions}
        return replace(
            self, bars=tuple(replace(bar, session=known[bar.id]) for bar in self.bars if bar.id in known)
        )


def flame(members: Sequence[SessionOutline], by: By, now_ms: int) -> Flame:
    """Return the bars of a tree whose first member is its top; each member stands after its parent."""
    if by == "time":
        return _by_time(members, now_ms)
    measures: Mapping[str, Callable[[SessionOutline], int]] = {
        "cost": lambda one: one.nano_usd,
        "tokens": lambda one: one.tokens,
    }
    return _by_amount(members, by, measures[by])


def _by_amount(members: Sequence[SessionOutline], by: By, amount: Callable[[SessionOutline], int]) -> Flame:
    """Return bars as wide as what a session and all below it have used, below each other by generation."""
    whole = Counter({one.id: amount(one) for one in members})
    for one in reversed(members[1:]):
        whole[one.parent] += whole[one.id]
    top = members[0].id
    children: dict[str, list[SessionOutline]] = defaultdict(list)
    for one in members[1:]:
        children[one.parent].append(one)
    bars: list[Bar] = []
    total = whole[top]
    # What is widest comes first, so that a picture that is full lacks what is narrow.
    order = {one.id: number for number, one in enumerate(members)}
    waiting = [(-total, 0, members[0], 0, 0.0)] if total else []
    while waiting and len(bars) < MOST_BARS:
        _, _, one, row, x = heapq.heappop(waiting)
        width = whole[one.id] / total
        bars.append(
            Bar(id=one.id, state=one.state, row=row, x=x, width=width, own=amount(one), whole=whole[one.id])
        )
        for child in sorted(children[one.id], key=lambda each: -whole[each.id]):
            share = whole[child.id] / total
            if share >= _LEAST and row + 1 < _ROWS:
                heapq.heappush(waiting, (-whole[child.id], order[child.id], child, row + 1, x))
            x += share
    return Flame(
        by=by,
        bars=tuple(sorted(bars, key=lambda bar: (bar.row, bar.x))),
        rows=max((bar.row + 1 for bar in bars), default=0),
        whole=total,
        left_out=len(members) - len(bars),
    )


def _by_time(members: Sequence[SessionOutline], now_ms: int) -> Flame:
    """Return bars from launch to end on one axis; a generation takes as many rows as overlap."""
    begin = members[0].created_ms
    lasted = {one.id: max(0, (one.ended_ms or now_ms) - one.created_ms) for one in members}
    end = max(one.created_ms + lasted[one.id] for one in members)
    total = max(1, end - begin)
    depths = {members[0].id: 0}
    for one in members[1:]:
        depths[one.id] = depths[one.parent] + 1
    longest = sorted(members, key=lambda one: (depths[one.id] > 0, -lasted[one.id]))[:MOST_BARS]
    # For each generation the end of the last bar in each of its rows.
    lanes: dict[int, list[int]] = defaultdict(list)
    placed: list[tuple[SessionOutline, int, int]] = []
    for one in sorted(longest, key=lambda each: (each.created_ms, depths[each.id])):
        depth, stop = depths[one.id], one.created_ms + lasted[one.id]
        ends = lanes[depth]
        lane = next((number for number, free in enumerate(ends) if free <= one.created_ms), len(ends))
        if lane < _LANES:
            ends[lane : lane + 1] = [stop]
            placed.append((one, depth, lane))
    first_row: dict[int, int] = {}
    rows = 0
    for depth in sorted(lanes):
        first_row[depth] = rows
        rows += len(lanes[depth])
    bars = [
        Bar(
            id=one.id,
            state=one.state,
            row=first_row[depth] + lane,
            x=max(0.0, (one.created_ms - begin) / total),
            width=max(_LEAST, lasted[one.id] / total),
            own=lasted[one.id],
            whole=lasted[one.id],
        )
        for one, depth, lane in placed
        if first_row[depth] + lane < _ROWS
    ]
    return Flame(
        by="time",
        bars=tuple(sorted(bars, key=lambda bar: (bar.row, bar.x))),
        rows=min(rows, _ROWS),
        whole=total,
        left_out=len(members) - len(bars),
        marks=tuple((number / _MARKS, total * number // _MARKS) for number in range(_MARKS)),
    )

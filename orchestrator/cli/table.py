"""Tables that fit the terminal: columns as wide as what is in them, the last one as wide as there is room."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, chop_cells, set_cell_size

from orchestrator.cli.output import say_cells
from orchestrator.display.text import visible

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

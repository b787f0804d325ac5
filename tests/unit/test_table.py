"""Tables: as wide as the terminal at most, coloured on a terminal only, and with ids that tell sessions apart."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from orchestrator.cli.render import Row, cut, print_table, short_ids

HEADERS = ("SESSION", "STATE", "ABOUT")
ROWS = [
    Row(("ses_1", "failed", "no luck " * 40), "bold red"),
    Row(("└─ ses_22", "running", "漢字" * 60), "bold cyan"),
    Row(("ses_3", "idle", "\x1b]0;owned\x07\n"), "yellow"),
    Row(("ses_4", "idle", ""), "yellow"),
]


@pytest.mark.parametrize("width", [5, 12, 18, 22, 80, 160])
def test_no_row_is_longer_than_the_terminal_is_wide(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where letters are two columns wide, and where an escape is shown as several."""
    print_table(HEADERS, ROWS, styled=1, width=width)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + len(ROWS)
    assert all(cell_len(line) <= width for line in lines)
    assert lines[1].endswith("…") or width < 22


def test_columns_line_up_and_the_last_takes_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEADERS, ROWS[1:], styled=1, width=40)
    assert capsys.readouterr().out.splitlines() == [
        "SESSION    STATE    ABOUT",
        f"└─ ses_22  running  {'漢字' * 4}漢…",
        r"ses_3      idle     \x1b]0;owned\x07\n",
        "ses_4      idle",
    ]


def test_in_a_pipe_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(HEADERS, ROWS, styled=1)
    assert ("no luck " * 40).rstrip() in capsys.readouterr().out


def test_what_is_cut_ends_with_an_ellipsis() -> None:
    assert [cut("abc", room) for room in (1, 2, 3)] == ["…", "a…", "abc"]
    assert cut("漢字", 3) == "漢…"


def test_ids_are_shortened_where_there_is_no_room_and_still_differ() -> None:
    ids = [f"ses_00{'a' * 10}{end}{'b' * 13}" for end in "012"]
    assert set(short_ids(ids, 80).values()) == {one[:17] for one in ids}
    assert short_ids(ids[:1], 80) == {ids[0]: ids[0][:12]}
    for width in (None, 120, 160):
        assert short_ids(ids, width) == {one: one for one in ids}
    assert short_ids([], 80) == {}

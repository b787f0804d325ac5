"""Text for people: nothing in it acts on a terminal, and nouns fit their number."""

from __future__ import annotations

import json

import pytest
from rich.cells import cell_len

from orchestrator.cli.output import json_text
from orchestrator.cli.render import Row, cut, print_table, short_ids
from orchestrator.display.text import counted, visible

#: What a terminal acts on: a title, a colour, a cursor move, C1 forms of the same, the other direction, hidden marks.
HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x1b[2J\x9b1A\x9d0;x\x9c\u202egnp.exe\u2066\u200b\ufeff\x7f\r\x08\u2028\U000e0041"


def test_what_acts_on_a_terminal_is_shown_as_an_escape() -> None:
    shown = visible(HOSTILE)
    assert shown.isprintable()
    assert shown.startswith(r"\x1b]0;owned\x07\x1b[31mred")
    assert r"\u202egnp.exe\u2066\u200b\ufeff\x7f\r\x08\u2028\U000e0041" in shown
    assert visible(shown) == shown


def test_ordinary_text_of_any_script_stays_as_it_is() -> None:
    for text in ("plain", "naïve Ä", "数据 كتاب עברית", "🙂 ✓ ░█ ├─", "a\u00a0b [red]not markup[/red]"):
        assert visible(text) == text


def test_lines_stay_lines_only_where_they_are_asked_for() -> None:
    assert visible("a\n\tb\r\n") == r"a\n\tb\r\n"
    assert visible("a\n\tb\r\n", lines=True) == "a\n\tb\\r\n"


def test_json_escapes_what_acts_and_changes_no_value() -> None:
    value = {"text": HOSTILE + "Ä\n", "list": [1]}
    text = json_text(value)
    assert json.loads(text) == value
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "Ä" in text


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 trees"), (1, "1 tree"), (2, "2 trees"), (1_000, "1000 trees")]
)
def test_nouns_fit_their_number(number: int, words: str) -> None:
    assert counted(number, "tree") == words
    assert counted(1, "child", "children") == "1 child"
    assert counted(2, "child", "children") == "2 children"


# --- Tables: as wide as the terminal at most, coloured on a terminal only, and with ids that tell sessions apart.


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

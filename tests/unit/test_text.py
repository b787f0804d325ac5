"""Text for people: nothing in it acts on a terminal, and nouns fit their number."""

from __future__ import annotations

import json

import pytest

from orchestrator.cli.output import json_text
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

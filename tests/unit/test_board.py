"""The board of `orchestra watch`: what its keys do, without a terminal or a stack."""

from __future__ import annotations

import os
import pty
import termios
import threading
from contextlib import suppress
from types import SimpleNamespace

import pytest

from orchestrator.cli.board import Board
from orchestrator.cli.watch import keys, split
from orchestrator.errors import UnknownSession
from orchestrator.ledger import Session, StopVerdict
from orchestrator.ledger.decode import session as decode_session

ROOT, CHILD, GRANDCHILD, OTHER = (f"ses_00{number:024x}" for number in range(4))


def made(name: str, parent: str = "", state: str = "idle") -> Session:
    return decode_session(
        {
            "id": name,
            "agent": f"agent-{name[-1]}",
            "parent": parent,
            "root": ROOT,
            "state": state,
            "title": "t",
        }
    )


class Acts:
    """What a board asks of a client."""

    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []

    def stopping(self, session: str) -> str:
        return session

    def step(self, stopping: str) -> list[str]:
        """Nobody below it is still stopping."""
        return []

    def stop(self, session: str) -> StopVerdict:
        if session == OTHER:
            raise UnknownSession(session)
        self.done.append(("stop", session))
        return StopVerdict(outcome="ended")

    def questions(self, session: str) -> list[SimpleNamespace]:
        asked = {"id": "ask_1", "session": ROOT, "text": "Which\x1b[2J one?"}
        return [SimpleNamespace(**asked)]

    def reply(self, question: str, text: str) -> str:
        self.done.append(("reply", question, text))
        return ROOT


@pytest.fixture
def acts() -> Acts:
    return Acts()


@pytest.fixture
def board(acts: Acts) -> Board:
    found = Board(acts)  # type: ignore[arg-type]
    found.update([made(ROOT), made(CHILD, ROOT), made(GRANDCHILD, CHILD), made(OTHER, ROOT)], ["held back"])
    return found


def press(board: Board, *pressed: str) -> str:
    for key in pressed:
        board.press(key)
    return board.picture(120, 24).plain


def test_it_shows_ids_and_which_is_chosen(board: Board) -> None:
    lines = press(board).splitlines()
    assert lines[0].startswith(f">{ROOT}")
    assert CHILD in lines[1]
    assert "held back" in lines
    assert press(board, "down").splitlines()[1].startswith(">├─ " + CHILD)
    assert press(board, "up", "up").splitlines()[0].startswith(f">{ROOT}")


def test_what_is_below_is_folded_and_unfolded(board: Board) -> None:
    folded = press(board, "down", "left")
    assert "[1 child folded]" in folded
    assert GRANDCHILD not in folded
    assert GRANDCHILD in press(board, "right")
    assert CHILD not in press(board, "down", "left", "left", "left")  # the parent of a leaf, and so on
    assert GRANDCHILD not in press(board, "up", " ")  # its parent is unfolded, the child itself is not
    assert CHILD in press(board, "enter", "enter")


def test_a_session_is_stopped_after_a_question_only(board: Board, acts: Acts) -> None:
    assert f"Stop {CHILD} and everything below it? y/n" in press(board, "down", "s")
    assert "not stopped" in press(board, "n")
    assert acts.done == []
    press(board, "s", "y")
    assert acts.done == [("stop", CHILD)]
    assert OTHER in press(board, "page down", "s", "y")  # the error, which names it
    assert not board.left


def test_nothing_is_stopped_instead_of_a_session_that_is_gone(board: Board, acts: Acts) -> None:
    """The tree changes between the question and its answer."""
    press(board, "down", "s")
    board.update([made(ROOT), made(OTHER, ROOT)], [])
    press(board, "y")
    assert acts.done == []


def test_a_reply_is_typed_and_sent(board: Board, acts: Acts) -> None:
    asked = press(board, "r")
    assert "\x1b" not in asked
    assert "one?" in asked
    press(board, *"qs", "backspace", "enter")
    assert acts.done == [("reply", "ask_1", "q")]
    assert "not replied" in press(board, "r", "x", "escape")
    assert "it asks nothing" in press(board, "down", "r")


def test_few_rows_show_what_is_chosen(board: Board) -> None:
    board.press("page down")
    assert OTHER in board.picture(120, 8).plain
    assert "more above or below" in board.picture(120, 8).plain


def test_leaving(board: Board) -> None:
    press(board, "?", "q")
    assert not board.left  # the help was left
    press(board, "q")
    assert board.left


def test_a_narrow_board_shows_what_a_session_is_about(acts: Acts) -> None:
    facts = {
        "id": ROOT,
        "agent": "lead",
        "root": ROOT,
        "state": "running",
        "title": "the tides",
        "progress": "50",
    }
    board = Board(acts)  # type: ignore[arg-type]
    board.update([decode_session(facts)], [])
    top, *_, foot = board.picture(60, 24).plain.splitlines()
    assert "the tides" in top[:60]
    assert "? help" in foot[:60]


def test_what_terminals_send_is_split_into_keys() -> None:
    assert split("\x1b[Aé\x1bOB\x7f\r\x1b") == ["up", "é", "down", "backspace", "enter", "escape"]


@pytest.mark.parametrize("sequence", ["\x1b[3~", "\x1b[1;5A", "\x1b[15~", "\x1bOP", "\x1b[H"])
def test_a_key_without_a_name_is_one_key(board: Board, sequence: str) -> None:
    """Delete, Ctrl-Up, F5, F1 and Home begin with what Escape sends, and leave nothing."""
    assert split(f"{sequence}a") == [sequence, "a"]
    board.press(sequence)
    assert not board.left


def test_a_sequence_that_comes_in_two_pieces_is_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        with keys() as pressed:
            os.write(ours, b"\x1b")
            rest = threading.Timer(0.005, os.write, (ours, b"[B"))
            rest.start()
            assert pressed() == ["down"]
            rest.join()
            os.write(ours, b"\x1b")
            assert pressed() == ["escape"]
    os.close(ours)


def test_the_terminal_is_put_back_after_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    with os.fdopen(theirs) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        with suppress(ZeroDivisionError), keys() as pressed:
            assert termios.tcgetattr(theirs) != before
            os.write(ours, b"a\x1b[B")
            assert pressed() == ["a", "down"]
            _ = 1 / 0
        assert termios.tcgetattr(theirs) == before
    os.close(ours)

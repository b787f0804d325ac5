"""Sessions as people see them: lines, bars, and a tree that fits the screen."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.cli.documents.sessions import SessionDocument
from orchestrator.cli.render import age, bar, progress, session_line, tree_lines
from orchestrator.ledger import SessionState, Tally
from orchestrator.ledger.decode import session as decode


def make(name: str, parent: str = "", state: str = "running", **facts: Any) -> Any:
    defaults = {"id": name, "parent": parent, "root": "r", "agent": "a", "state": state, "depth": "0"}
    numbers = dict.fromkeys(
        (
            "launched",
            "delivered",
            "dead",
            "owed",
            "runs",
            "created_ms",
            "updated_ms",
            "ended_ms",
            "questions",
        ),
        "0",
    )
    return decode({**numbers, **defaults, **{key: str(value) for key, value in facts.items()}})


def children(count: int, state: str, start: int = 0) -> list[Any]:
    ended = 1 if state == "finished" else 0
    return [
        make(f"c{start + n}", "r", state, title=f"{state} {start + n}", ended_ms=ended) for n in range(count)
    ]


def test_the_promise_is_summed_up_over_a_tree() -> None:
    tree = [make("r", launched=5, delivered=2, dead=1), make("c", "r", launched=1, delivered=1)]
    assert str(Tally.of(tree)) == "6 launched = 3 delivered + 2 pending + 1 dead"


def test_a_small_tree_is_shown_whole() -> None:
    tree = [
        make("r", title="top"),
        make("c1", "r", title="one"),
        make("c2", "r", title="two"),
        make("g", "c1", title="deep"),
    ]
    assert [str(line).replace("running ", "").split() for line in tree_lines(tree)] == [
        ["r", "a", *line] for line in (["░░░░░░░░░░░░░░░░░░░░", "0%", "0/2", "children", "done", "top"],)
    ] + [
        ["├─", "c1", "a", "░░░░░░░░░░░░░░░░░░░░", "0%", "0/1", "children", "done", "one"],
        ["│", "└─", "g", "a", "deep"],
        ["└─", "c2", "a", "two"],
    ]


def test_states_line_up_below_one_another_whatever_the_agents_are_called() -> None:
    tree = [make("r", agent="lead"), make("c1", "r", agent="code-reviewer"), make("c2", "r", agent="x" * 40)]
    columns = [line.text.index("running") for line in tree_lines(tree, rows=10)]
    assert columns == [25, 25, 41], "a name that is too long for a column sticks out alone"
    short = [make("r", agent="lead"), make("c", "r", agent="reviewer")]
    assert [line.text.index("running") for line in tree_lines(short, rows=10)] == [11, 11]


def test_of_a_large_tree_what_matters_most_is_shown() -> None:
    tree = [make("r"), *children(300, "finished"), *children(3, "failed", 300), *children(4, "running", 400)]
    lines = [str(line) for line in tree_lines(tree, rows=20)]
    assert len(lines) <= 20
    assert sum("failed" in line for line in lines) >= 3
    assert sum("running 4" in line for line in lines) == 4
    assert lines[-1].startswith("└─ … and ")
    assert lines[-1].endswith(" finished")


def test_an_empty_tree_has_no_lines() -> None:
    assert tree_lines([]) == []


@pytest.mark.parametrize(
    ("facts", "below", "expected"),
    [
        ({}, [], None),
        ({"progress": 40}, [], 40),
        ({}, children(3, "finished") + children(1, "running", 9), 75),
        ({"state": "finished"}, [], None),
        ({"state": "finished", "progress": 40}, [], 100),
    ],
)
def test_progress_is_what_the_agent_says_else_its_children(
    facts: dict[str, Any], below: list[Any], expected: Any
) -> None:
    assert progress(make("r", **facts), below) == expected


def test_a_line_says_why_a_session_ended() -> None:
    line = session_line(make("r", state="failed", title="do it", reason="no\nluck", progress=50))
    assert line == "a          failed    do it - no luck"


def test_bars_are_as_long_as_they_say() -> None:
    assert bar(0) == "░" * 20 + "   0%"
    assert bar(50) == "█" * 10 + "░" * 10 + "  50%"
    assert bar(100) == "█" * 20 + " 100%"


@pytest.mark.parametrize(
    ("ago_s", "text"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_ages_come_in_the_unit_that_fits(ago_s: int, text: str) -> None:
    assert age(1_000_000, now_ms=1_000_000 + ago_s * 1000) == text


def test_json_has_times_that_can_be_read() -> None:
    facts = SessionDocument.of(make("r", created_ms=1000, launched=2)).model_dump()
    assert (facts["created"], facts["ended"], facts["pending"]) == ("1970-01-01T00:00:01.000Z", None, 2)
    assert (facts["session"], facts["state"], facts["progress"]) == ("r", SessionState.RUNNING.value, None)


def test_a_held_task_says_by_title_what_it_waits_for() -> None:
    tree = [
        make("r", title="top"),
        make("c1", "r", title="Build it"),
        make("c2", "r", "pending", title="Test", parked="waits for c1, elsewhere"),
    ]
    assert str(tree_lines(tree)[-1]).endswith("Test - waits for Build it, elsewhere")


def test_a_tree_may_be_deeper_than_the_stack_of_python() -> None:
    chain = [make("s0"), *(make(f"s{n}", parent=f"s{n - 1}") for n in range(1, 2000))]
    lines = tree_lines(chain)
    assert len(lines) == 2000
    assert lines[-1].cells[0] == "s1999"

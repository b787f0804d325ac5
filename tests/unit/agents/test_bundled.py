"""The bundled agents: what they find in source code, and the report they make of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.agents.definition import BUNDLED_QUEUE
from orchestrator.agents.loader import load_agents
from orchestrator.demo.lead import LISTED, begun, render, take_in
from orchestrator.demo.reviewer import LONG_FROM, review
from orchestrator.policy.callback import Callback

FINE = '"""Says what it is."""\n\n\ndef double(number):\n    """Twice the number."""\n    return 2 * number\n'


def test_the_bundled_agents_share_a_queue_of_their_own() -> None:
    agents = load_agents(["orchestrator.demo"])
    assert {name: agent.record.queue for name, agent in agents.items()} == dict.fromkeys(
        ("lead", "reviewer"), BUNDLED_QUEUE
    )


@pytest.mark.parametrize(
    ("source", "score", "note"),
    [
        (FINE, 0, ""),
        ("", 0, ""),
        ("x = 1  # FIXME: later\n", 5, "line 1: x = 1  # FIXME: later"),
        ("x = 'TODO in a text'\n", 0, ""),
        ("class Thing:\n    def _inner(self): pass\n", 1, "line 1: Thing has no docstring"),
        (f"def _f():\n{'    x = 1' + chr(10)}" * LONG_FROM, 0, ""),
        (f"def _f():\n{('    x = 1' + chr(10)) * LONG_FROM}", 3, f"line 1: _f() has {LONG_FROM + 1} lines"),
        ("def oops(:\n", 50, "line 1: does not parse: invalid syntax"),
        ("x = '\0'", 50, "line 1: does not parse: source code string cannot contain null bytes"),
        (f"x = {'-' * 20_000}1\n", 50, None),
    ],
)
def test_what_a_review_finds(source: str, score: int, note: str | None) -> None:
    found = review(source)
    assert found["score"] == score
    assert note is None or found["note"] == note


def collected(modules: dict[str, str], failed: int = 0) -> dict[str, Any]:
    state = begun(["/x"], len(modules) + failed)
    for name, source in modules.items():
        text = json.dumps(review(source))
        take_in(state, Callback(id="cb", session="s", status="completed", title=f"Review {name}", text=text))
    for _ in range(failed):
        take_in(state, Callback(id="cb", session="s", status="failed", title="Review gone.py", text="gone"))
    return state


def test_the_report_lists_the_worst_first_and_its_state_does_not_grow_with_the_tree() -> None:
    state = collected({f"m{n}.py": "# TODO\n" * n + "x = 1\n" for n in range(40)}, failed=30)
    text = render(state)
    assert "40 of 70 modules reviewed: 820 lines, 0 functions\nfindings: 780 unfinished," in text
    listed = [line.split()[0] for line in text.splitlines() if ".py  " in line]
    assert listed[:3] == ["m39.py", "m38.py", "m37.py"]
    assert "\n\n30 reviews failed\n  gone.py: gone\n" in text
    assert len(state["worst"]) == len(state["failed"]) == len(listed) == LISTED
    assert max(map(len, text.splitlines())) <= 100, "it fits a terminal"


def test_a_report_of_fine_modules_complains_about_nothing() -> None:
    assert render(collected({"m.py": FINE})).endswith("No module has anything to complain about.")
    assert render(begun(["/x", "/y"], 0)) == "no Python modules in /x, /y"

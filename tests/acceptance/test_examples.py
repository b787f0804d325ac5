"""The examples of model agents, as `make` runs them without a key."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("anthropic", reason="the extra `anthropic` is not installed")

from tests.acceptance.conftest import Terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]


def run(terminal: Terminal, script: Path) -> str:
    terminal.env.pop("ANTHROPIC_API_KEY", None)
    done = terminal.run(f"'{sys.executable}' '{script}'")
    assert done.returncode == 0, done.stderr
    assert "a scripted server answers" in done.stdout
    return done.stdout


def test_research_ends_with_a_report_and_what_it_cost(terminal: Terminal, root: Path) -> None:
    said = run(terminal, root / "examples/research/run.py")
    assert "A recorded step is not executed again. (journals.md)" in said
    assert "doubt: Nobody says how long a lease lasts." in said
    table = {
        name: (int(sessions), int(requests), int(tokens), float(usd))
        for name, sessions, requests, tokens, usd in re.findall(
            r"^  (\w+) +(\d+) +(\d+) +(\d+) +([\d.]+)$", said, re.MULTILINE
        )
    }
    assert set(table) == {"lead", "researcher", "critic", "all"}
    together = table.pop("all")
    assert [sum(column) for column in list(zip(*table.values(), strict=True))[:3]] == list(together[:3])
    assert together[3] > 0


def test_code_review_ends_with_a_verdict(terminal: Terminal, root: Path) -> None:
    said = run(terminal, root / "examples/code_review/run.py")
    assert re.search(r"^(accept|change): ", said, re.MULTILINE)
    assert "1 judge, 1 lead" in said

"""The threat model: every party is in its table, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ")
][1:]
PARTIES = (
    "stranger on the network",
    "external program",
    "agent",
    "worker host",
    "broker writer",
    "Redis writer",
    "database writer",
    "operator",
)


def test_every_party_has_a_row_and_every_claim_of_the_table_a_test() -> None:
    assert all(any(row[0].startswith(party) for row in ROWS) for party in PARTIES)
    for who, can, cannot in ROWS:
        assert "::test_" in can + cannot, who
        for claim in filter(
            None, (part.strip() for part in re.sub(r"\([^()]*::[^()]*\)", "()", cannot).split(";"))
        ):
            assert "()" in claim, f"{who}: no test shows {claim!r}"


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGE)
    assert len(named) > 30
    assert PAGE.count("::test_") == len(named)
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
            f"{file}::{name}"
        )

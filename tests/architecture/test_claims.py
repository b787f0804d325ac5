"""The pages on security: every party and section is in their tables, and every test that they name exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("threat-model", "security")
}
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


def rows(text: str) -> list[list[str]]:
    """The cells of the tables in a text."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]


def test_every_party_has_a_row_and_every_claim_of_the_table_a_test() -> None:
    parties = rows(PAGES["threat-model"])[1:]
    assert all(any(row[0].startswith(party) for row in parties) for party in PARTIES)
    for who, can, cannot in parties:
        assert "::test_" in can + cannot, who
        for claim in filter(
            None, (part.strip() for part in re.sub(r"\([^()]*::[^()]*\)", "()", cannot).split(";"))
        ):
            assert "()" in claim, f"{who}: no test shows {claim!r}"


def test_every_section_on_security_has_its_claims_and_each_of_these_a_test() -> None:
    text, _, table = PAGES["security"].partition("## Shown by\n")
    section, shown = "", []
    for named, says, tests in rows(table)[1:]:
        section = named or section
        shown.append(section)
        assert says, section
        assert "::test_" in tests, f"{section}: no test shows {says!r}"
    assert list(dict.fromkeys(shown)) == re.findall(r"^##+ (.*)", text, re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_is_named_exists(page: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", PAGES[page])
    assert len(named) > 30
    assert PAGES[page].count("::test_") == len(named)
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (
            f"{file}::{name}"
        )

"""The published examples: each valid one is taken, each invalid one is refused for the defect in its name."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from orchestrator.envelope import codec, schemas
from orchestrator.envelope.catalogue import RULES
from orchestrator.envelope.validate import check

INDEX: dict[str, dict[str, Any]] = tomllib.loads(schemas.read("examples/index.toml").decode())
VALID: dict[str, list[str]] = INDEX["valid"]
INVALID: dict[str, str] = INDEX["invalid"]


def _names(folder: str) -> set[str]:
    return {entry.name.removesuffix(".xml") for entry in schemas.path(f"examples/{folder}").iterdir()}


def test_every_example_is_in_the_index() -> None:
    """The index and the folders name the same examples, and there are as many as promised."""
    assert _names("valid") == set(VALID)
    assert _names("invalid") == set(INVALID)
    assert len(VALID) >= 40
    assert len(INVALID) >= 100


def test_every_rule_has_an_example() -> None:
    """Each rule that a document can break is broken by an example."""
    shown = {*INVALID.values(), *(rule for rules in VALID.values() for rule in rules)}
    not_in_a_file = {"unreadable", "size", "schema", "markup"}
    assert shown == set(RULES) - not_in_a_file


@pytest.mark.parametrize("name", sorted(VALID))
def test_a_valid_example_is_taken_and_comes_back_unchanged(name: str) -> None:
    """It has no error, the warnings of the index, and survives writing and reading."""
    report = check(schemas.read(f"examples/valid/{name}.xml"))
    assert [(f.rule, f.severity) for f in report.findings] == [(r, RULES[r].severity) for r in VALID[name]]
    assert report.message is not None
    assert codec.decode(codec.encode(report.message)) == report.message


@pytest.mark.parametrize("name", sorted(INVALID))
def test_an_invalid_example_breaks_the_one_rule_of_its_name(name: str) -> None:
    """There is exactly one finding, an error of the rule in the index, which says where and what to do."""
    report = check(schemas.read(f"examples/invalid/{name}.xml"))
    assert [(f.rule, f.severity) for f in report.findings] == [(INVALID[name], "error")]
    assert not report.valid
    finding = report.findings[0]
    assert len(finding.message) > 20
    if RULES[finding.rule].by != "parser":
        assert finding.line is not None
        assert finding.path is not None
        assert finding.path.startswith("/")

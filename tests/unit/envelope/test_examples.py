"""The published examples: each valid one is taken, each invalid one is refused for the defect in its name."""

from __future__ import annotations

import tomllib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from orchestrator.envelope import codec, schemas
from orchestrator.envelope.catalogue import RULES
from orchestrator.envelope.message_types import MESSAGE_TYPES
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


def test_every_rule_and_type_has_an_example() -> None:
    """Each rule that a document can break is broken by an example, and some rule by each type of message."""
    shown = {*INVALID.values(), *(rule for rules in VALID.values() for rule in rules)}
    not_in_a_file = {"unreadable", "size", "schema", "markup"}
    assert shown == set(RULES) - not_in_a_file
    invalid = b"".join(schemas.read(f"examples/invalid/{name}.xml") for name in INVALID)
    assert [kind for kind in MESSAGE_TYPES if f'<body type="{kind}">'.encode() not in invalid] == []


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
        assert (finding.path or "").startswith("/")


def test_threads_do_not_change_each_others_verdicts() -> None:
    """One schema and one parser serve them all: validated side by side many times, each gets the verdict it gets alone."""
    names = ["chain-with-a-gap", "priority-unknown", "header-missing", "doctype-internal", "truncated"]
    documents = [schemas.read(f"examples/invalid/{name}.xml") for name in names]
    documents += [schemas.read(f"templates/{name}.xml") for name in ("query", "error", "task-delegation")]
    alone = [[finding.rule for finding in check(octets).findings] for octets in documents]
    work = documents * 60
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda octets: [finding.rule for finding in check(octets).findings], work))
    assert together == alone * 60

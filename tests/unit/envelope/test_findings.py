"""What findings say: the place, the value, and how many of them there can be."""

from __future__ import annotations

import pytest

from orchestrator.envelope import report, schemas
from orchestrator.envelope.findings import FINDINGS_LIMIT, VALUE_LIMIT
from orchestrator.envelope.parse import ParseLimits
from orchestrator.envelope.validate import check

UPDATE = schemas.read("templates/status-update.xml")


def test_a_path_counts_where_siblings_share_a_name() -> None:
    """The second of two is the second."""
    octets = schemas.read("templates/task-delegation.xml").replace(b'priority="2"', b'priority="second"')
    (finding,) = check(octets).findings
    assert finding.path == "/agent-message/body/task/objectives/objective[2]/@priority"
    assert finding.value == "second"
    assert finding.rule == "number"


def test_every_flaw_of_the_schema_is_told_at_once() -> None:
    """Two defects, two findings."""
    octets = UPDATE.replace(b">40<", b">140<").replace(b">normal<", b">urgent<")
    assert {finding.rule for finding in check(octets).findings} == {"percentage", "enumeration"}


def test_every_flaw_of_the_content_is_told_at_once() -> None:
    """Also those that only the reading finds."""
    octets = UPDATE.replace(b"2026-01-31T", b"2026-02-30T").replace(b"task-42", b"\xc2\xa0")
    rules = [finding.rule for finding in check(octets).findings]
    assert set(rules) == {"timestamp", "blank"}
    assert len(rules) == 4


def test_a_long_value_is_cut() -> None:
    """A finding stays readable."""
    octets = UPDATE.replace(b">40<", b">" + b"9" * 10_000 + b"<")
    (finding,) = check(octets).findings
    assert finding.value is not None
    assert len(finding.value) == VALUE_LIMIT + 1


@pytest.mark.parametrize("detail", [100, 10_000_000])
def test_findings_are_bounded(detail: int) -> None:
    """However many flaws there are, with the detailed report or without it."""
    steps = b'<step order="x">y</step>' * 1000
    octets = UPDATE.replace(b"<next-steps>", b"<next-steps>" + steps)
    findings = check(octets, limits=ParseLimits(detail=detail)).findings
    assert 0 < len(findings) <= FINDINGS_LIMIT


def test_a_document_too_large_for_the_detailed_report_still_gets_a_reason() -> None:
    """It says what libxml2 says, with line and path where one element alone can be meant."""
    few = ParseLimits(detail=10)
    (finding,) = check(UPDATE.replace(b">40<", b">140<"), limits=few).findings
    assert finding.rule == "schema"
    assert finding.path == "/agent-message/body/progress-percentage"
    assert "140" in finding.message
    (finding,) = check(UPDATE.replace(b'order="2"', b'order="x"'), limits=few).findings
    assert finding.path is None
    assert "step" in finding.message
    (finding,) = check(UPDATE.replace(b"  <signature>", b"  <stamp/><signature>"), limits=few).findings
    assert finding.path == "/agent-message/stamp"


def test_a_document_too_large_for_the_detailed_report_is_taken_all_the_same() -> None:
    """The verdict does not depend on how it is reached."""
    assert check(UPDATE, limits=ParseLimits(detail=10)).valid


def test_the_path_of_a_foreign_element_is_its_local_name() -> None:
    """Prefixes are left out."""
    octets = UPDATE.replace(b"<priority>", b'<x:note xmlns:x="urn:x"/><priority>')
    (finding,) = check(octets).findings
    assert finding.path == "/agent-message/header/note"


def test_advice_can_be_left_out() -> None:
    """The router has no use for it."""
    octets = schemas.read("examples/valid/warning-retry-excessive.xml")
    assert check(octets, advice=False).findings == ()
    assert len(check(octets).findings) == 1


def test_what_only_the_end_of_a_large_document_shows_is_found() -> None:
    """The last element closes and something was missing in it."""
    octets = UPDATE[: UPDATE.index(b"  <body")] + b"</agent-message>"
    (finding,) = check(octets, limits=ParseLimits(detail=10)).findings
    assert finding.path == "/agent-message"
    assert "Missing child element" in finding.message


def test_the_verdict_of_libxml2_stands_where_the_report_finds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refusal always has a reason, also if the two engines should once disagree."""
    monkeypatch.setattr(report, "_detailed", lambda *_: iter(()))
    (finding,) = check(UPDATE.replace(b">40<", b">140<")).findings
    assert finding.rule == "schema"
    assert finding.path == "/agent-message/body/progress-percentage"

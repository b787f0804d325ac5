"""What a parent reads of the structured part of a message: every part under its heading, and no empty heading."""

from __future__ import annotations

import pytest

from orchestrator.envelope.bodies import (
    Artifact,
    Blocker,
    CriterionResult,
    Deliverable,
    ErrorDetails,
    ErrorReport,
    Query,
    QueryContext,
    Recommendation,
    StatusUpdate,
    Step,
    TaskCompletion,
)
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.parts import Attempt, File, FileReference, Metric, RecoveryOption
from orchestrator.envelope.prompt_text import details_of, unpack_body


def test_a_completion_says_what_was_met_made_and_recommended() -> None:
    body = TaskCompletion(
        summary="Two of three hold",
        total_hours_worked=1.5,
        acceptance_criteria_met=(
            CriterionResult(name="quick", met=True, evidence="8 ms"),
            CriterionResult(name="small", met=False, reason="9 MB"),
            CriterionResult(),
        ),
        deliverables=(
            Deliverable(
                type="code",
                files=(File(path="a.py", status="created", text="new"),),
                test_coverage="91%",
                all_tests_passing=True,
            ),
            Deliverable(all_tests_passing=False),
        ),
        quality_metrics=(Metric(name="lines", text="120"),),
        recommendations=(Recommendation(type="next", text="cache it"), Recommendation(text="rest")),
    )
    said = details_of(body, "the answer")
    for line in (
        "### Summary\n\n- Two of three hold",
        "### Total Hours Worked\n\n- 1.5",
        "- quick: met (8 ms)\n- small: not met (9 MB)\n- criterion: open",
        "- code: a.py created new, test coverage 91%, all tests pass\n- not all tests pass",
        "- lines: 120",
        "- next: cache it\n- rest",
    ):
        assert line in said


def test_a_summary_that_only_begins_the_answer_is_not_said_twice() -> None:
    assert details_of(TaskCompletion(summary="the  answer…"), "the answer is long") == ""
    assert details_of(TaskCompletion(), "the answer") == ""


def test_an_error_says_where_it_was_and_what_may_help() -> None:
    body = ErrorReport(
        message="it broke",
        details=ErrorDetails(stack_trace="line 3", context_data="x=1"),
        recovery_options=(RecoveryOption(type="retry", text="in a minute"),),
        recommended_action="retry",
    )
    said = details_of(body, body.message)
    for line in (
        "- task-failed",
        "- critical",
        "- line 3",
        "- x=1",
        "- retry: in a minute",
        "### Recommended Action",
    ):
        assert line in said
    assert "Stack Trace" not in details_of(ErrorReport(message="it broke"), "it broke")


def test_a_question_says_what_was_tried() -> None:
    body = Query(
        query_type="request-analysis",
        subject="which one?",
        urgency="high",
        required_by=Timestamp.from_ms(1_700_000_000_000),
        context=QueryContext(
            problem="two of them",
            attempted_solutions=(Attempt(text="the first"),),
            file_references=(FileReference(path="a.py", text="line 3"), FileReference(path="b.py", text="")),
            error_message="none",
        ),
    )
    said = details_of(body, "which one?")
    for line in (
        "- two of them",
        "- the first",
        "- a.py: line 3\n- b.py",
        "- none",
        "- high",
        "### Required By\n\n- 2023",
    ):
        assert line in said
    assert "two of them" not in details_of(body, "which one? two of them")
    assert details_of(Query(subject="help"), "help") == ""


def test_a_report_on_the_way_says_how_far_it_is() -> None:
    body = StatusUpdate(
        progress_percentage=40,
        current_activity="reading",
        blockers=(Blocker(severity="critical", text="no key"),),
        artifacts_created=(
            Artifact(type="module", file_path="a.py", lines_of_code=12, tests_added=3),
            Artifact(file_path="b.py"),
        ),
        metrics=(Metric(text="fast"),),
        next_steps=(Step(text="write"),),
    )
    said = details_of(body, "")
    for line in (
        "- in-progress",
        "- 40 %",
        "- reading",
        "- critical: no key",
        "- module: a.py, 12 lines, 3 tests\n- b.py",
        "- fast",
        "- write",
    ):
        assert line in said


@pytest.mark.parametrize(
    "packed", ["", "[", "[]", "5", '{"type": []}', '{"type": "query", "colour": 1}', "[" * 100_000]
)
def test_a_packed_part_that_somebody_else_wrote_is_none(packed: str) -> None:
    assert unpack_body(packed, "text") is None

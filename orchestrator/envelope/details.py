"""What the structured part of a message says beside its text, for its reader: headings and lists.

The headings are the names of the protocol's elements.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.envelope.bodies import (
    Artifact,
    CriterionResult,
    Deliverable,
    ErrorReport,
    Query,
    StatusUpdate,
    TaskCompletion,
)

#: Bodies that report or ask.
Detailed = TaskCompletion | ErrorReport | Query | StatusUpdate

_Section = tuple[str, Iterable[str]]


def details_of(body: Detailed, text: str) -> str:
    """What a body says beside its text; empty where that is nothing."""
    parts = []
    for heading, items in _sections(body, text):
        lines = [item for item in items if item]
        if lines:
            parts.append(f"### {heading}\n\n" + ("\n".join(f"- {line}" for line in lines)))
    return "\n\n".join(parts)


def _sections(body: Detailed, text: str) -> list[_Section]:
    match body:
        case TaskCompletion():
            return _completion(body, text)
        case ErrorReport():
            return _error(body)
        case Query():
            return _query(body, text)
        case StatusUpdate():
            return _status(body)


def _completion(body: TaskCompletion, text: str) -> list[_Section]:
    # A summary that the stack made is the beginning of the answer.
    summary = " ".join(body.summary.rstrip("…").split())
    own = body.summary and not " ".join(text.split(None, len(summary))).startswith(summary)
    return [
        ("Summary", [body.summary] if own else []),
        ("Total Hours Worked", [str(body.total_hours_worked)] if body.total_hours_worked is not None else []),
        ("Acceptance Criteria Met", [_criterion(c) for c in body.acceptance_criteria_met]),
        ("Deliverables", [_deliverable(d) for d in body.deliverables]),
        ("Quality Metrics", [labelled(m.name, m.text) for m in body.quality_metrics]),
        ("Recommendations", [labelled(r.type, r.text) for r in body.recommendations]),
    ]


def _error(body: ErrorReport) -> list[_Section]:
    details = body.details
    return [
        ("Error Type", [body.error_type]),
        ("Severity", [body.severity]),
        ("Stack Trace", [details.stack_trace or ""] if details else []),
        ("Context Data", [details.context_data or ""] if details else []),
        ("Recovery Options", [labelled(o.type, o.text) for o in body.recovery_options]),
        ("Recommended Action", [body.recommended_action or ""]),
    ]


def _query(body: Query, text: str) -> list[_Section]:
    context = body.context
    sections: list[_Section] = [
        ("Query Type", [body.query_type] if body.query_type != "ask-for-help" else [])
    ]
    if context is not None:
        problem = context.problem or ""
        sections += [
            ("Problem", [problem] if problem not in text else []),
            ("Attempted Solutions", [a.text for a in context.attempted_solutions]),
            ("File References", [labelled(f.path, f.text) for f in context.file_references]),
            ("Error Message", [context.error_message or ""]),
        ]
    return [
        *sections,
        ("Urgency", [body.urgency or ""]),
        ("Required By", [str(body.required_by or "")]),
    ]


def _status(body: StatusUpdate) -> list[_Section]:
    progress = body.progress_percentage
    return [
        ("Status", [body.status]),
        ("Progress", [f"{progress} %"] if progress is not None else []),
        ("Current Activity", [body.current_activity or ""]),
        ("Blockers", [labelled(b.severity, b.text) for b in body.blockers]),
        ("Artifacts Created", [_artifact(a) for a in body.artifacts_created]),
        ("Metrics", [labelled(m.name, m.text) for m in body.metrics]),
        ("Next Steps", [s.text for s in body.next_steps]),
    ]


def _criterion(criterion: CriterionResult) -> str:
    met = {True: "met", False: "not met", None: "open"}[criterion.met]
    why = criterion.evidence or criterion.reason
    return f"{criterion.name or 'criterion'}: {met}" + (f" ({why})" if why else "")


def _deliverable(deliverable: Deliverable) -> str:
    said = [" ".join(filter(None, [f.path, f.status, f.text])) for f in deliverable.files]
    if deliverable.test_coverage:
        said.append(f"test coverage {deliverable.test_coverage}")
    if deliverable.all_tests_passing is not None:
        said.append("all tests pass" if deliverable.all_tests_passing else "not all tests pass")
    return labelled(deliverable.type, ", ".join(said))


def _artifact(artifact: Artifact) -> str:
    said = [artifact.file_path or ""]
    if artifact.lines_of_code is not None:
        said.append(f"{artifact.lines_of_code} lines")
    if artifact.tests_added is not None:
        said.append(f"{artifact.tests_added} tests")
    return labelled(artifact.type, ", ".join(filter(None, said)))


def labelled(label: str | None, text: str) -> str:
    """A text behind its label, where it has one."""
    return f"{label}: {text}" if label and text else (label or text)

"""Bodies that report on a task: status-update and task-completion."""

from __future__ import annotations

from typing import Annotated, Literal

from orchestrator.envelope.bodies.parts import File, Metric
from orchestrator.envelope.model_base import Attribute, Items, Leaf, Part, Supplied
from orchestrator.envelope.model_values import (
    UNKNOWN_TASK,
    AttributeText,
    Count,
    Flag,
    Hours,
    Kind,
    Moment,
    Name,
    Percentage,
    Progress,
    Rank,
    Severity,
    Sha256,
    Text,
)

ProgressStatus = Annotated[Literal["in-progress", "blocked", "completed", "failed"], Kind.TOKEN]
CompletionStatus = Annotated[Literal["success", "partial-success", "failed"], Kind.TOKEN]


class Blocker(Leaf):
    """Something that keeps a task from going on."""

    severity: Annotated[Severity | None, Attribute()] = None


class Artifact(Part):
    """Something that the work has made."""

    file_path: Text | None = None
    lines_of_code: Count | None = None
    tests_added: Count | None = None
    checksum: Sha256 | None = None
    type: Annotated[AttributeText | None, Attribute()] = None


class Step(Leaf):
    """Something to be done next."""

    order: Annotated[Rank | None, Attribute()] = None


class StatusUpdate(Part):
    """The body of a status-update."""

    type: Literal["status-update"] = "status-update"
    task_id: Annotated[Name, Supplied()] = UNKNOWN_TASK
    status: Annotated[ProgressStatus, Supplied()] = "in-progress"
    progress_percentage: Progress | None = None
    current_activity: Text | None = None
    blockers: Annotated[tuple[Blocker, ...], Items("blocker")] = ()
    artifacts_created: Annotated[tuple[Artifact, ...], Items("artifact")] = ()
    metrics: Annotated[tuple[Metric, ...], Items("metric")] = ()
    next_steps: Annotated[tuple[Step, ...], Items("step")] = ()


class CriterionResult(Part):
    """Result for one condition: met or not."""

    name: Text | None = None
    met: Flag | None = None
    evidence: Text | None = None
    reason: Text | None = None


class Deliverable(Part):
    """Results of one kind that are handed over."""

    files: Annotated[tuple[File, ...], Items("file")] = ()
    test_coverage: Percentage | None = None
    all_tests_passing: Flag | None = None
    type: Annotated[AttributeText | None, Attribute()] = None


class Recommendation(Leaf):
    """Something that should follow."""

    type: Annotated[AttributeText | None, Attribute()] = None


class TaskCompletion(Part):
    """The end of a task, as an agent returns it that says more than its answer. It is the body of a task-completion.

    ``result`` is the answer itself, and ``summary`` its short form, by default the beginning of the answer. The stack
    supplies the task-id and the time.
    """

    type: Literal["task-completion"] = "task-completion"
    task_id: Annotated[Name, Supplied()] = UNKNOWN_TASK
    status: Annotated[CompletionStatus, Supplied()] = "success"
    summary: Annotated[Text, Supplied()] = ""
    completion_timestamp: Moment | None = None
    total_hours_worked: Hours | None = None
    acceptance_criteria_met: Annotated[tuple[CriterionResult, ...], Items("criterion")] = ()
    deliverables: Annotated[tuple[Deliverable, ...], Items("deliverable")] = ()
    quality_metrics: Annotated[tuple[Metric, ...], Items("metric")] = ()
    recommendations: Annotated[tuple[Recommendation, ...], Items("recommendation")] = ()
    result: Text | None = None


#: What an agent returns to say more than its answer.
Completion = TaskCompletion

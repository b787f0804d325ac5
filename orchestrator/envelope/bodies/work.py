"""Bodies that ask somebody to do something: task-delegation, review-request, escalation."""

from __future__ import annotations

from typing import Annotated, Literal

from orchestrator.envelope.bodies.parts import (
    Assignment,
    Attempt,
    Criterion,
    Dependency,
    File,
    FocusArea,
    LaunchTerms,
    Metric,
    Objective,
    RecoveryOption,
    TaskContext,
)
from orchestrator.envelope.model_base import Attribute, Items, Part, Repeated, Supplied
from orchestrator.envelope.model_values import (
    UNKNOWN_TASK,
    AttributeText,
    Hours,
    Kind,
    Moment,
    Name,
    Severity,
    Text,
)

TaskType = Annotated[
    Literal[
        "feature-development",
        "bug-fix",
        "refactoring",
        "testing",
        "review",
        "documentation",
        "research",
        "analysis",
        "other",
    ],
    Kind.TOKEN,
]
EscalationReason = Annotated[
    Literal["task-failed", "timeout", "blocked", "validation-error", "decision-needed", "conflict", "other"],
    Kind.TOKEN,
]


class Output(Part):
    """Files of one kind that the work should yield."""

    file_paths: Annotated[tuple[Text, ...], Repeated("file-path")] = ()
    type: Annotated[AttributeText | None, Attribute()] = None


class Task(Part):
    """A piece of work, with all that goes with it. Whoever gives it leaves out the id: the stack supplies it.

    ``description`` and the lists make up the prompt of the agent that does it.
    """

    task_id: Annotated[Name, Supplied()] = UNKNOWN_TASK
    task_type: TaskType | None = None
    title: Annotated[Text, Supplied()] = ""
    description: Annotated[Text, Supplied()] = ""
    objectives: Annotated[tuple[Objective, ...], Items("objective")] = ()
    acceptance_criteria: Annotated[tuple[Criterion, ...], Items("criterion")] = ()
    estimated_effort_hours: Hours | None = None
    dependencies: Annotated[tuple[Dependency, ...], Items("dependency")] = ()
    context: TaskContext | None = None
    expected_outputs: Annotated[tuple[Output, ...], Items("output")] = ()
    success_criteria: Annotated[tuple[Metric, ...], Items("metric")] = ()


class TaskDelegation(Part):
    """The body of a task-delegation."""

    type: Literal["task-delegation"] = "task-delegation"
    task: Task
    assignment: Assignment | None = None
    launch: LaunchTerms | None = None


class Review(Part):
    """A review. ``description`` is the prompt of an agent that is a language model."""

    task_id: Annotated[Name, Supplied()] = UNKNOWN_TASK
    reviewed_task_id: Name | None = None
    title: Annotated[Text, Supplied()] = ""
    description: Annotated[Text, Supplied()] = ""
    files: Annotated[tuple[File, ...], Items("file")] = ()
    focus_areas: Annotated[tuple[FocusArea, ...], Items("focus-area")] = ()
    review_criteria: Annotated[tuple[Criterion, ...], Items("criterion")] = ()
    context: TaskContext | None = None
    required_by: Moment | None = None


class ReviewRequest(Part):
    """The body of a review-request."""

    type: Literal["review-request"] = "review-request"
    review: Review
    assignment: Assignment | None = None
    launch: LaunchTerms | None = None


class EscalationMatter(Part):
    """The matter that the sender cannot settle. ``description`` is the prompt of a language model."""

    task_id: Annotated[Name, Supplied()] = UNKNOWN_TASK
    escalated_task_id: Name | None = None
    reason: EscalationReason | None = None
    severity: Severity | None = None
    title: Annotated[Text, Supplied()] = ""
    description: Annotated[Text, Supplied()] = ""
    attempted_solutions: Annotated[tuple[Attempt, ...], Items("attempt")] = ()
    recovery_options: Annotated[tuple[RecoveryOption, ...], Items("option")] = ()
    context: TaskContext | None = None
    requested_action: Text | None = None
    required_by: Moment | None = None


class Escalation(Part):
    """The body of an escalation."""

    type: Literal["escalation"] = "escalation"
    escalation: EscalationMatter
    assignment: Assignment | None = None
    launch: LaunchTerms | None = None

"""Bodies of the message types, as models."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.envelope.model_values import (
    UNKNOWN_TASK,
    Attribute,
    AttributeText,
    Count,
    Flag,
    Hours,
    Items,
    Kind,
    Leaf,
    Moment,
    Name,
    Part,
    Percentage,
    Priority,
    Progress,
    Rank,
    Repeated,
    Severity,
    Sha256,
    Supplied,
    Text,
    Uuid4,
)
from orchestrator.envelope.parts import (
    ApiContract,
    Assignment,
    Attempt,
    BudgetLimits,
    Constraint,
    Criterion,
    Dependency,
    File,
    FileReference,
    FocusArea,
    LaunchTerms,
    Metric,
    Objective,
    RecoveryOption,
    TaskContext,
)
from orchestrator.ids import new_message_id

#: The names of `parts` that bodies show; what is defined here needs no mention.
__all__ = [
    "ApiContract",
    "Assignment",
    "Attempt",
    "BudgetLimits",
    "Constraint",
    "Criterion",
    "Dependency",
    "File",
    "FileReference",
    "FocusArea",
    "LaunchTerms",
    "Metric",
    "Objective",
    "RecoveryOption",
    "TaskContext",
]


ErrorType = Annotated[Literal["task-failed", "timeout", "blocked", "validation-error"], Kind.TOKEN]
RecommendedAction = Annotated[Literal["escalate", "retry", "abandon"], Kind.TOKEN]
QueryType = Annotated[Literal["ask-for-help", "request-review", "request-analysis", "get-status"], Kind.TOKEN]


class ErrorDetails(Part):
    """Details that help to find the cause."""

    stack_trace: Text | None = None
    context_data: Text | None = None


class ErrorReport(Part):
    """The body of an error."""

    type: Literal["error"] = "error"
    error_id: Annotated[Uuid4, Supplied()] = Field(default_factory=new_message_id)
    error_type: Annotated[ErrorType, Supplied()] = "task-failed"
    severity: Annotated[Severity, Supplied()] = "critical"
    message: Text
    details: ErrorDetails | None = None
    recovery_options: Annotated[tuple[RecoveryOption, ...], Items("option")] = ()
    recommended_action: RecommendedAction | None = None


class QueryContext(Part):
    """Background of the question."""

    problem: Text | None = None
    attempted_solutions: Annotated[tuple[Attempt, ...], Items("attempt")] = ()
    file_references: Annotated[tuple[FileReference, ...], Repeated("file-reference")] = ()
    error_message: Text | None = None


class Query(Part):
    """The body of a query."""

    type: Literal["query"] = "query"
    query_type: Annotated[QueryType, Supplied()] = "ask-for-help"
    subject: Text
    context: QueryContext | None = None
    urgency: Priority | None = None
    required_by: Moment | None = None


class Reply(Part):
    """The body of a reply: the answer to the query whose message-id it names."""

    type: Literal["reply"] = "reply"
    in_reply_to: Uuid4
    answer: Text
    context_data: Text | None = None


class Message(Part):
    """The body of an ad hoc message. ``message_type`` is a word of the sender's own choice."""

    type: Literal["message"] = "message"
    message_type: Name | None = None
    subject: Text | None = None
    content: Text
    context_data: Text | None = None


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

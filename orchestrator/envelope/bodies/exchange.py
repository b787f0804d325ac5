"""Bodies that are said to somebody: error, query, reply, message."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.envelope.bodies.parts import Attempt, FileReference, RecoveryOption
from orchestrator.envelope.model_base import Items, Part, Repeated, Supplied
from orchestrator.envelope.model_values import Kind, Moment, Name, Priority, Severity, Text, Uuid4
from orchestrator.ids import new_message_id

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

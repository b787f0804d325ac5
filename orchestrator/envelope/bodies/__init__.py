"""The bodies of envelopes, one model for each message type, and what may stand in their place."""

from __future__ import annotations

from orchestrator.envelope.bodies.exchange import (
    ErrorDetails,
    ErrorReport,
    Message,
    Query,
    QueryContext,
    Reply,
)
from orchestrator.envelope.bodies.opaque import ClaimCheckBody, CompressedBody, EncryptedBody, OpaqueBody
from orchestrator.envelope.bodies.parts import (
    ApiContract,
    Assignment,
    Attempt,
    Constraint,
    Criterion,
    Dependency,
    File,
    FileReference,
    FocusArea,
    Metric,
    Objective,
    RecoveryOption,
    TaskContext,
)
from orchestrator.envelope.bodies.progress import (
    Artifact,
    Blocker,
    Completion,
    CriterionResult,
    Deliverable,
    Recommendation,
    StatusUpdate,
    Step,
    TaskCompletion,
)
from orchestrator.envelope.bodies.work import (
    Escalation,
    EscalationMatter,
    Output,
    Review,
    ReviewRequest,
    Task,
    TaskDelegation,
)

#: A body that can be read as it stands.
ClearBody = (
    TaskDelegation
    | StatusUpdate
    | TaskCompletion
    | ErrorReport
    | Query
    | ReviewRequest
    | Escalation
    | Reply
    | Message
)

__all__ = [
    "ApiContract",
    "Artifact",
    "Assignment",
    "Attempt",
    "Blocker",
    "ClaimCheckBody",
    "ClearBody",
    "Completion",
    "CompressedBody",
    "Constraint",
    "Criterion",
    "CriterionResult",
    "Deliverable",
    "Dependency",
    "EncryptedBody",
    "ErrorDetails",
    "ErrorReport",
    "Escalation",
    "EscalationMatter",
    "File",
    "FileReference",
    "FocusArea",
    "Message",
    "Metric",
    "Objective",
    "OpaqueBody",
    "Output",
    "Query",
    "QueryContext",
    "Recommendation",
    "RecoveryOption",
    "Reply",
    "Review",
    "ReviewRequest",
    "StatusUpdate",
    "Step",
    "Task",
    "TaskCompletion",
    "TaskContext",
    "TaskDelegation",
]

"""What the commands print with ``--json``: one model for each document, and one table of who prints which.

A document is an object; a list stands under the name of what it lists. The same thing has the same name everywhere:
``session``, ``run``, ``agent``, ``message_id``, ``state``. Text that there is not is empty; a time, a number or a
choice that there is not is null.
"""

from orchestrator.cli.documents.base import Document
from orchestrator.cli.documents.messages import (
    AuditReport,
    AuditState,
    DeadLetters,
    Dropped,
    FullDeadLetter,
    FullMessages,
    Messages,
    Published,
    ReplayedDocument,
    ReplayedMessages,
    ValidatedDocuments,
    VerifiedDocuments,
)
from orchestrator.cli.documents.plans import PlanDocument
from orchestrator.cli.documents.session_tools import Delegated, Raised
from orchestrator.cli.documents.sessions import (
    Answer,
    BudgetsDocument,
    Ended,
    Events,
    Replied,
    Resumed,
    Sessions,
    Submitted,
)
from orchestrator.cli.documents.stack import (
    AgentDocument,
    Agents,
    DiagnosisDocument,
    Keys,
    LimitsDocument,
    Paused,
    Why,
    Withdrawn,
)
from orchestrator.cli.documents.worktrees import RemovedWorktree, WorktreeList

#: Command → what it prints; where there are two, the second is what it prints with ``--wait``; a third, with
#: ``--dry-run``.
DOCUMENTS: dict[str, tuple[type[Document], ...]] = {
    "submit": (Submitted, Answer),
    "plan": (Submitted, Answer, PlanDocument),
    "result": (Answer,),
    "watch": (Sessions,),
    "sessions": (Sessions,),
    "tree": (Sessions,),
    "budget": (BudgetsDocument,),
    "logs": (Events,),
    "resume": (Resumed, Answer),
    "reply": (Replied,),
    "stop": (Ended,),
    "delete": (Ended,),
    "raise": (Raised,),
    "delegate": (Delegated,),
    "ask": (Raised,),
    "why": (Why,),
    "doctor": (DiagnosisDocument,),
    "pause": (Paused,),
    "unpause": (Paused,),
    "limit": (LimitsDocument,),
    "agents": (Agents,),
    "agents register": (AgentDocument,),
    "agents withdraw": (Withdrawn,),
    "worktrees": (WorktreeList,),
    "worktrees remove": (RemovedWorktree,),
    "dlq list": (DeadLetters,),
    "dlq show": (FullDeadLetter,),
    "dlq replay": (ReplayedMessages,),
    "dlq drop": (Dropped,),
    "audit show": (FullMessages,),
    "audit search": (Messages,),
    "audit replay": (ReplayedDocument,),
    "audit report": (AuditReport,),
    "audit verify": (AuditState,),
    "send": (Published,),
    "conversation": (Messages,),
    "validate": (ValidatedDocuments,),
    "verify": (VerifiedDocuments,),
    "keys generate": (Keys,),
    "keys list": (Keys,),
    "keys import": (Keys,),
    "keys rotate": (Keys,),
    "keys revoke": (Keys,),
}

__all__ = [
    "DOCUMENTS",
    "AgentDocument",
    "Agents",
    "Answer",
    "AuditReport",
    "AuditState",
    "BudgetsDocument",
    "DeadLetters",
    "Delegated",
    "DiagnosisDocument",
    "Document",
    "Dropped",
    "Ended",
    "Events",
    "FullDeadLetter",
    "FullMessages",
    "Keys",
    "LimitsDocument",
    "Messages",
    "Paused",
    "PlanDocument",
    "Published",
    "Raised",
    "ReplayedDocument",
    "ReplayedMessages",
    "Replied",
    "Resumed",
    "Sessions",
    "Submitted",
    "ValidatedDocuments",
    "VerifiedDocuments",
    "Why",
    "Withdrawn",
]

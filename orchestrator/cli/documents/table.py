"""What the commands print with ``--json``: which command prints which document.

A document is an object; a list stands under the name of what it lists. The same thing has the same name everywhere:
``session``, ``run``, ``agent``, ``message_id``, ``state``. Text that there is not is empty; a time, a number or a
choice that there is not is null.
"""

from __future__ import annotations

from orchestrator.cli.documents import audit, budgets, messages, questions, sessions, stack
from orchestrator.cli.documents.base import Document

#: Command → what it prints; where there are two, the second is what it prints with ``--wait``, or `watch` with ``--text``; a
#: third, with ``--dry-run``.
DOCUMENTS: dict[str, tuple[type[Document], ...]] = {
    "init": (stack.ProjectDocument,),
    "submit": (sessions.Submitted, sessions.Answer),
    "plan": (sessions.Submitted, sessions.Answer, sessions.PlanDocument),
    "result": (sessions.Answer,),
    "watch": (sessions.Sessions, sessions.LiveText),
    "sessions": (sessions.Sessions,),
    "tree": (sessions.Sessions,),
    "budget": (budgets.BudgetsDocument,),
    "logs": (sessions.Events,),
    "resume": (sessions.Resumed, sessions.Answer),
    "questions": (questions.Questions,),
    "reply": (questions.Replied,),
    "approvals": (questions.ApprovalList,),
    "approve": (questions.Decided,),
    "deny": (questions.Decided,),
    "fork": (sessions.Submitted, sessions.Answer),
    "unpin": (sessions.Unpinned,),
    "stop": (sessions.Ended,),
    "delete": (sessions.Ended,),
    "prompt": (stack.PromptDocument,),
    "raise": (questions.Raised,),
    "delegate": (sessions.Delegated,),
    "ask": (questions.Raised,),
    "why": (stack.Why,),
    "url": (stack.Address,),
    "doctor": (stack.DiagnosisDocument,),
    "notifications list": (stack.DeadNotifications,),
    "notifications retry": (stack.DeliveredNotifications,),
    "notifications test": (stack.DeliveredNotifications,),
    "notifications drop": (stack.DroppedNotifications,),
    "pause": (stack.Paused,),
    "unpause": (stack.Paused,),
    "limit": (stack.LimitsDocument,),
    "agents": (stack.Agents,),
    "agents register": (stack.AgentDocument,),
    "agents withdraw": (stack.Withdrawn,),
    "worktrees": (stack.WorktreeList,),
    "worktrees remove": (stack.RemovedWorktree,),
    "dlq list": (messages.DeadLetters,),
    "dlq show": (messages.FullDeadLetter,),
    "dlq replay": (messages.ReplayedMessages,),
    "dlq drop": (messages.Dropped,),
    "audit show": (messages.FullMessages,),
    "audit search": (messages.Messages,),
    "audit replay": (messages.ReplayedDocument, messages.ReplayedMessages),
    "audit report": (audit.AuditReport,),
    "audit verify": (audit.AuditState,),
    "audit backlog": (audit.AuditBacklog,),
    "audit prune": (audit.PrunedTrail,),
    "audit transitions": (audit.Transitions,),
    "audit redact": (audit.RedactedMessage,),
    "audit export": (audit.TransferredTrail,),
    "audit import": (audit.TransferredTrail,),
    "send": (messages.Published,),
    "conversation": (messages.Messages,),
    "validate": (messages.ValidatedDocuments,),
    "verify": (messages.VerifiedDocuments,),
    "keys generate": (stack.Keys,),
    "keys list": (stack.Keys,),
    "keys import": (stack.Keys,),
    "keys rotate": (stack.Keys,),
    "keys revoke": (stack.Keys,),
}

"""Table of the documents that the commands print with ``--json``.

A document is an object; a list stands under the name of what it lists. The same thing has the same name everywhere:
``session``, ``run``, ``agent``, ``message_id``, ``state``. A missing text is empty; a missing time, number or choice
is null.
"""

from __future__ import annotations

from orchestrator.cli.documents import audit, sessions, stack, transcript
from orchestrator.cli.documents.base import Document

#: Command → what it prints; where there are two, the second is what it prints with ``--wait``, or `watch` with ``--text``; a
#: third, with ``--dry-run``.
DOCUMENTS: dict[str, tuple[type[Document], ...]] = {
    "init": (stack.ProjectDocument,),
    "submit": (sessions.Submitted, sessions.Answer),
    "session plan": (sessions.Submitted, sessions.Answer, sessions.PlanDocument),
    "result": (sessions.Answer,),
    "watch": (sessions.Sessions, sessions.LiveText),
    "sessions": (sessions.Sessions,),
    "tree": (sessions.Sessions,),
    "session budget": (sessions.BudgetsDocument,),
    "logs": (sessions.Events,),
    "transcript": (transcript.TranscriptDocument,),
    "resume": (sessions.Resumed, sessions.Answer),
    "questions": (sessions.Questions,),
    "reply": (sessions.Replied,),
    "approve": (sessions.Decided,),
    "deny": (sessions.Decided,),
    "session fork": (sessions.Submitted, sessions.Answer),
    "stop": (sessions.Ended,),
    "session delete": (sessions.Ended,),
    "agents prompt": (stack.PromptDocument,),
    "program raise": (sessions.Raised,),
    "program delegate": (sessions.Delegated,),
    "program ask": (sessions.Raised,),
    "open": (stack.ConsoleAddress,),
    "why": (stack.Why,),
    "doctor": (stack.DiagnosisDocument,),
    "agents pause": (stack.Paused,),
    "agents unpause": (stack.Paused,),
    "agents limit": (stack.LimitsDocument,),
    "agents": (stack.Agents,),
    "agents register": (stack.AgentDocument,),
    "agents withdraw": (stack.Withdrawn,),
    "session worktrees": (stack.WorktreeList,),
    "session worktrees remove": (stack.RemovedWorktree,),
    "dlq list": (audit.DeadLetters,),
    "dlq show": (audit.FullDeadLetter,),
    "dlq replay": (audit.ReplayedMessages,),
    "dlq drop": (audit.Dropped,),
    "audit show": (audit.FullMessages,),
    "audit search": (audit.Messages,),
    "audit replay": (audit.ReplayedDocument, audit.ReplayedMessages),
    "audit report": (audit.AuditReport,),
    "audit verify": (audit.AuditState,),
    "audit prune": (audit.PrunedTrail,),
    "audit transitions": (audit.Transitions,),
    "audit redact": (audit.RedactedMessage,),
    "audit export": (audit.TransferredTrail,),
    "message send": (audit.Published,),
    "message validate": (audit.ValidatedDocuments,),
    "message verify": (audit.VerifiedDocuments,),
    "keys generate": (stack.Keys,),
    "keys list": (stack.Keys,),
    "keys import": (stack.Keys,),
    "keys rotate": (stack.Keys,),
    "keys revoke": (stack.Keys,),
}

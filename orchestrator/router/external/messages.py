"""Messages of external programs: about the sessions that they run, and to other sessions."""

from __future__ import annotations

from typing import Any, assert_never

from orchestrator.agents.registry import ROUTER
from orchestrator.envelope import bodies
from orchestrator.envelope.message_types import DetailedBody
from orchestrator.envelope.prompt_text import details_of, pack_body, prompt_of
from orchestrator.errors import InputError, KeyringError
from orchestrator.ledger import OVERDUE, Ledger, Session, decode, layout
from orchestrator.ledger.large_text import MAX_BESIDE_BYTES, beginning
from orchestrator.messages.factory import MessageFactory, Thread, status_of, summary
from orchestrator.policy.kinds import message_kind
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import request
from orchestrator.router.commands import (
    DONE,
    Batched,
    CommandOutcome,
    ConversationLimits,
    Resolved,
    ScriptCommand,
    Step,
    not_taking_part,
    outcome_of,
    rejected,
    session_unknown,
)
from orchestrator.router.external.launches import QueuedMessage, SessionMessages, seal_for
from orchestrator.router.received import SEALED_TITLE, ReceivedMessage
from orchestrator.router.session_resolver import SessionResolver


class ExternalMessages:
    """Makes the steps for messages of external programs, which are not in the ledger yet."""

    def __init__(
        self,
        ledger: Ledger,
        session_resolver: SessionResolver,
        *,
        limits: ConversationLimits,
        message_factory: MessageFactory,
    ) -> None:
        self._message_factory = message_factory
        self._ledger = ledger
        self._resolver = session_resolver
        self._mailbox = SessionMessages(ledger, limits)
        self._limits = limits

    def handle(self, received: ReceivedMessage) -> Step:
        """The step for a message about the program's own session, or to another session."""
        body = received.body
        if body is None:  # encrypted for its recipient, and passed on unread
            return self._sealed(received)
        match body:
            case bodies.StatusUpdate():
                return self._status(received, body)
            case bodies.TaskCompletion():
                session = self._resolver.by_task(body.task_id, received.sender, received)
                text = body.result if body.result is not None else body.summary
                status = "completed" if body.status == "success" else body.status
                return self._report(received, session, status=status, text=text, body=body)
            case bodies.ErrorReport():
                session = self._resolver.by_chain(received.sender, received)
                if body.severity == "critical":
                    return self._report(received, session, status="failed", text=body.message, body=body)
                return self._to_parent(received, session, text=body.message, kind="error", body=body)
            case bodies.Query():
                if body.query_type == "get-status":
                    return self._how_far(received)
                return self._question(
                    received, prompt_of(body), body.subject, urgency=body.urgency or "", body=_packed(body)
                )
            case bodies.Reply():
                return self._answer(received, body)
            case bodies.Message():
                kind = message_kind(body.message_type or "")
                return self._send(received, prompt_of(body), kind=kind, title=body.subject or "")
            case bodies.TaskDelegation() | bodies.ReviewRequest() | bodies.Escalation():
                raise AssertionError(f"a {body.type} begins a session")
            case _:
                assert_never(body)

    def _sealed(self, received: ReceivedMessage) -> Step:
        if received.type == "query":
            return self._question(received, received.sealed, SEALED_TITLE)
        return self._send(received, received.sealed, kind=received.type, title=SEALED_TITLE)

    # --- about its own session ------------------------------------------------------------------

    def _status(self, received: ReceivedMessage, body: bodies.StatusUpdate) -> Step:
        session = self._resolver.by_task(body.task_id, received.sender, received)
        if session is None:
            return Resolved(session_unknown(received))
        facts: list[str | int] = []
        if body.current_activity is not None:
            facts += ["activity", beginning(body.current_activity, MAX_BESIDE_BYTES)]
        if body.progress_percentage is not None:
            facts += ["progress", body.progress_percentage]
        if body.status == "blocked":
            why = "\n".join(blocker.text for blocker in body.blockers) or body.current_activity or "blocked"
            parent = self._resolver.session(session.parent, received.recipient, received)
            facts = ["activity", f"blocked: {summary(why)}", *facts]
            if parent is not None:
                return self._mailbox.put(
                    received,
                    parent,
                    QueuedMessage(text=why, kind="blocker", title=session.title, body=_packed(body)),
                    speaker=session,
                    facts=facts,
                )
        facts = self._mailbox.facts_as_kept(session, facts or ["activity", session.activity])
        names, args = layout.call(session.id, *facts, mark=self._limits.mark(received))
        return ScriptCommand(
            script="route_status",
            keys=names,
            args=args,
            read=lambda answer: outcome_of(answer[0], received) or session_unknown(received),
        )

    def _report(
        self,
        received: ReceivedMessage,
        session: Session | None,
        *,
        status: str,
        text: str,
        body: bodies.TaskCompletion | bodies.ErrorReport,
    ) -> Step:
        if session is None:
            return Resolved(session_unknown(received))
        seal, write = seal_for(session, session.delegator), self._ledger.seals.write
        text, packed = write(text, seal), write(_packed(body), seal)
        end = decode.Statement.of_end(session, status, text, message=received.id, body=packed)
        late = decode.Statement.of_end(session, "failed", OVERDUE["limit"])

        def read(answer: Any) -> CommandOutcome:
            if known := outcome_of(answer[0], received):
                return known
            match answer[0]:
                case b"over":
                    return DONE
                case b"pending":
                    reason = (
                        f"session {session.id} has not begun: its task is not routed yet, or waits for others; "
                        "report again when it has, or start more routers"
                    )
                    return rejected("session-pending", reason, received)
                case b"held":
                    reason = f"session {session.id} is run by a worker of this stack, which reports for it"
                    return rejected("unauthorised", reason, received)
            return session_unknown(received)

        names, args = layout.call(
            session.id,
            text,
            packed,
            parent=session.parent,
            mark=self._limits.mark(received),
            status=status,
            message=received.id,
            proof=self._ledger.attest_end(session, end, by=ROUTER),
            late=OVERDUE["limit"],
            late_proof=self._ledger.attest_end(session, late, by=ROUTER),
        )
        return ScriptCommand(
            script="route_report",
            keys=names,
            args=args,
            read=read,
        )

    def _to_parent(
        self,
        received: ReceivedMessage,
        session: Session | None,
        *,
        text: str,
        kind: str,
        body: DetailedBody,
    ) -> Step:
        """Return the step for something that a child's parent must receive before the child has ended."""
        if session is None:
            return Resolved(session_unknown(received))
        parent = self._resolver.session(session.parent, received.recipient, received)
        if parent is None:
            return Batched.ACK_ONLY  # a root: whoever gave it its task reads the envelope
        message = QueuedMessage(text=text, kind=kind, title=session.title, body=_packed(body))
        return self._mailbox.put(received, parent, message, speaker=session)

    # --- to another session ------------------------------------------------------------------

    def _addressed(self, received: ReceivedMessage, recipient: Session | None) -> Session | Resolved:
        """The session that a message is for, or why its sender may send it nothing."""
        if recipient is None:
            reason = (
                f"the chain names no launch of a session of {received.recipient!r}; "
                "carry the chain of the message you answer on"
            )
            return Resolved(rejected("recipient-session", reason, received))
        if not self._resolver.takes_part(received, recipient):
            return Resolved(not_taking_part(received))
        return recipient

    def _to_whom(self, received: ReceivedMessage) -> tuple[Session | None, Session | Resolved]:
        """The sender's own session, if the chain names one, and :meth:`_addressed` of a message that answers nothing."""
        sender = self._resolver.by_chain(received.sender, received)
        return sender, self._addressed(received, self._resolver.recipient(received, sender))

    def _send(self, received: ReceivedMessage, text: str, *, kind: str, title: str) -> Step:
        _, recipient = self._to_whom(received)
        if isinstance(recipient, Resolved):
            return recipient
        return self._mailbox.put(received, recipient, QueuedMessage(text=text, kind=kind, title=title))

    def _question(
        self, received: ReceivedMessage, text: str, title: str, *, urgency: str = "", body: str = ""
    ) -> Step:
        sender, recipient = self._to_whom(received)
        if isinstance(recipient, Resolved):
            return recipient
        message = QueuedMessage(text=text, kind="query", title=title, opens=True, priority=urgency, body=body)
        return self._mailbox.put(received, recipient, message, speaker=sender)

    def _how_far(self, received: ReceivedMessage) -> Step:
        """The system itself answers how far a session is; no session is resumed."""
        _, asked = self._to_whom(received)
        if isinstance(asked, Resolved):
            return asked
        try:
            reply = self._message_factory.reply(
                sender=ROUTER,
                sender_session=asked.id,
                recipient=received.sender,
                recipient_session=received.message.header.sender_session or "",
                question=received.id,
                answer=details_of(status_of(asked), ""),
                thread=Thread(
                    correlation=received.conversation,
                    chain=(received.id, *map(str.lower, received.message.header.conversation_chain)),
                    encrypted=asked.encrypted,
                ),
            )
        except KeyringError as error:
            return Resolved(rejected("payload", f"the answer cannot be encrypted: {error}", received))
        return ScriptCommand(
            script="route_answer",
            keys=[keys.totals(received.entry.stream.shard)],
            args=[request(mark=self._limits.mark(received), stream=layout.stream_name(reply)), reply.data],
            read=lambda answer: outcome_of(answer[0], received) or DONE,
        )

    def _answer(self, received: ReceivedMessage, body: bodies.Reply) -> Step:
        recipient = self._addressed(received, self._resolver.by_chain(received.recipient, received))
        if isinstance(recipient, Resolved):
            return recipient
        question, asked = self._asked(recipient, body.in_reply_to.lower())
        if not question:
            reason = (
                f"session {recipient.id} has no open question with message-id {body.in_reply_to}: "
                "it was answered or withdrawn, or never asked"
            )
            return Resolved(rejected("session-over", reason, received))
        if self._resolver.session(asked, received.sender, received) is None:
            reason = f"question {body.in_reply_to} was put to another session than one of {received.sender!r}"
            return Resolved(rejected("unauthorised", reason, received))
        message = QueuedMessage(text=body.answer, kind="reply", answers=question, priority="high")
        return self._mailbox.put(received, recipient, message)

    def _asked(self, session: Session, message_id: str) -> tuple[str, str]:
        """The open question of a session that was put with this message, and the session that was asked; or ''."""
        for question in session.questions:
            asked = self._ledger.asked(session.id, question)
            item = self._ledger.item(asked, question) if asked else None
            if item is not None and str(item.extra.get("message", "")).lower() == message_id:
                return question, asked
        return "", ""


def _packed(body: DetailedBody) -> str:
    """A body as the ledger keeps it beside its text; empty if it is too large."""
    try:
        return pack_body(body)
    except InputError:
        return ""  # the envelope has it

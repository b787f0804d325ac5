"""What foreign programs say: of the sessions that they run, and to other sessions."""

from __future__ import annotations

from typing import Any

from orchestrator.agents.registry import ROUTER
from orchestrator.envelope.bodies import ErrorReport, Message, Query, Reply, StatusUpdate, TaskCompletion
from orchestrator.envelope.prompt_text import prompt_of
from orchestrator.ledger import Ledger, Session, layout
from orchestrator.messages.factory import summary
from orchestrator.policy.kinds import message_kind
from orchestrator.redisdb import keys
from orchestrator.router.commands import (
    DONE,
    DUPLICATE,
    NOTED,
    Act,
    Limits,
    Outcome,
    Settled,
    Step,
    message_id_taken,
    not_taking_part,
    rejected,
    session_unknown,
)
from orchestrator.router.external.session_messages import Mailbox
from orchestrator.router.received import SEALED_TITLE, Letter
from orchestrator.router.session_resolver import Directory
from orchestrator.streams import stream_key


class ForeignWords:
    """Makes the steps for what foreign programs say; none of it is in the ledger yet."""

    def __init__(self, ledger: Ledger, directory: Directory, *, limits: Limits) -> None:
        self._ledger = ledger
        self._directory = directory
        self._mailbox = Mailbox(ledger, limits)
        self._limits = limits

    def word(self, letter: Letter) -> Step:
        """The step for what a foreign program says of its session, or to another one."""
        body = letter.body
        match body:
            case StatusUpdate():
                return self._status(letter, body)
            case TaskCompletion():
                session = self._directory.by_task(body.task_id, letter.sender, letter)
                text = body.result if body.result is not None else body.summary
                status = "completed" if body.status == "success" else body.status
                return self._report(letter, session, status=status, text=text)
            case ErrorReport():
                session = self._directory.by_chain(letter.sender, letter)
                if body.severity == "critical":
                    return self._report(letter, session, status="failed", text=body.message)
                return self._to_parent(letter, session, text=body.message, kind="error")
            case None if letter.type == "query":
                return self._question(letter, letter.sealed, SEALED_TITLE)
            case None if letter.type == "message":
                return self._say(letter, letter.sealed, kind="message", title=SEALED_TITLE)
            case Query():
                return self._question(letter, prompt_of(body), body.subject, urgency=body.urgency or "")
            case Reply():
                return self._answer(letter, body)
            case Message():
                kind = message_kind(body.message_type or "")
                return self._say(letter, prompt_of(body), kind=kind, title=body.subject or "")
        return NOTED

    # --- of its own session ------------------------------------------------------------------

    def _status(self, letter: Letter, body: StatusUpdate) -> Step:
        session = self._directory.by_task(body.task_id, letter.sender, letter)
        if session is None:
            return Settled(session_unknown(letter))
        facts: list[str | int] = []
        if body.current_activity is not None:
            facts += ["activity", body.current_activity]
        if body.progress_percentage is not None:
            facts += ["progress", body.progress_percentage]
        if body.status == "blocked":
            why = "\n".join(blocker.text for blocker in body.blockers) or body.current_activity or "blocked"
            parent = self._directory.session(session.parent, letter.recipient, letter)
            facts = ["activity", f"blocked: {summary(why)}", *facts]
            if parent is not None:
                return self._mailbox.put(
                    letter, parent, session, text=why, kind="blocker", title=session.title, facts=facts
                )

        def read(answer: Any) -> Outcome:
            match answer[0]:
                case b"done":
                    return DONE
                case b"duplicate":
                    return DUPLICATE
                case b"other":
                    return message_id_taken(letter)
            return session_unknown(letter)

        return Act(
            script="route_status",
            keys=[
                keys.session(session.id),
                keys.seen(letter.entry.stream.shard, letter.sender, letter.id),
                stream_key(letter.entry.stream),
                keys.conversation(letter.entry.stream.shard, letter.conversation),
            ],
            args=[
                "",
                letter.group,
                letter.entry.id,
                self._limits.mark_ms(letter),
                letter.digest,
                self._limits.max_age_ms,
                *(facts or ["activity", session.activity]),
            ],
            read=read,
        )

    def _report(self, letter: Letter, session: Session | None, *, status: str, text: str) -> Step:
        if session is None:
            return Settled(session_unknown(letter))

        def read(answer: Any) -> Outcome:
            match answer[0]:
                case b"done" | b"over":
                    return DONE
                case b"duplicate":
                    return DUPLICATE
                case b"other":
                    return message_id_taken(letter)
                case b"pending":
                    reason = (
                        f"session {session.id} has not begun: its task is not routed yet, or waits for others; "
                        "report again when it has, or start more routers"
                    )
                    return rejected("session-pending", reason, letter)
                case b"foreign":
                    reason = f"session {session.id} is run by a worker of this stack, which reports for it"
                    return rejected("unauthorised", reason, letter)
            return session_unknown(letter)

        return Act(
            script="route_report",
            keys=[
                *layout.ending(session.id, parent=session.parent, run=session.run),
                keys.seen(letter.entry.stream.shard, letter.sender, letter.id),
                stream_key(letter.entry.stream),
                keys.conversation(letter.entry.stream.shard, letter.conversation),
            ],
            args=[
                "",
                status,
                text,
                letter.group,
                letter.entry.id,
                self._limits.mark_ms(letter),
                letter.digest,
                self._limits.max_age_ms,
                self._ledger.vouch_for_end(session, status, text, by=ROUTER),
            ],
            read=read,
        )

    def _to_parent(self, letter: Letter, session: Session | None, *, text: str, kind: str) -> Step:
        """Something that a child's parent must hear before the child is over."""
        if session is None:
            return Settled(session_unknown(letter))
        parent = self._directory.session(session.parent, letter.recipient, letter)
        if parent is None:
            return NOTED  # a root: whoever gave it its task reads the envelope
        return self._mailbox.put(letter, parent, session, text=text, kind=kind, title=session.title)

    # --- to another session ------------------------------------------------------------------

    def _say(self, letter: Letter, text: str, *, kind: str, title: str) -> Step:
        recipient = self._directory.recipient(letter, self._directory.by_chain(letter.sender, letter))
        if recipient is None:
            return _nobody(letter)
        if not self._directory.takes_part(letter, recipient):
            return Settled(not_taking_part(letter))
        return self._mailbox.put(letter, recipient, None, text=text, kind=kind, title=title)

    def _question(self, letter: Letter, text: str, title: str, *, urgency: str = "") -> Step:
        sender = self._directory.by_chain(letter.sender, letter)
        recipient = self._directory.recipient(letter, sender)
        if recipient is None:
            return _nobody(letter)
        if not self._directory.takes_part(letter, recipient):
            return Settled(not_taking_part(letter))
        return self._mailbox.put(
            letter, recipient, sender, text=text, kind="query", title=title, opens=True, priority=urgency
        )

    def _answer(self, letter: Letter, body: Reply) -> Step:
        recipient = self._directory.by_chain(letter.recipient, letter)
        if recipient is None:
            return _nobody(letter)
        if not self._directory.takes_part(letter, recipient):
            return Settled(not_taking_part(letter))
        question, asked = self._asked(recipient, body.in_reply_to.lower())
        if not question:
            reason = (
                f"session {recipient.id} has no open question with message-id {body.in_reply_to}: "
                "it was answered or withdrawn, or never asked"
            )
            return Settled(rejected("session-over", reason, letter))
        if self._directory.session(asked, letter.sender, letter) is None:
            reason = f"question {body.in_reply_to} was put to another session than one of {letter.sender!r}"
            return Settled(rejected("unauthorised", reason, letter))
        return self._mailbox.put(
            letter,
            recipient,
            None,
            text=body.answer,
            kind="reply",
            title="",
            answers=question,
            priority="high",
        )

    def _asked(self, session: Session, message_id: str) -> tuple[str, str]:
        """The open question of a session that was put with this message, and the session that was asked; or ''."""
        for question in session.questions:
            field: Any = self._ledger.redis.hget(keys.session(session.id), f"question:{question}")
            asked = field.decode() if field else ""
            item = self._ledger.item(asked, question) if asked else None
            if item is not None and str(item.extra.get("message", "")).lower() == message_id:
                return question, asked
        return "", ""


def _nobody(letter: Letter) -> Settled:
    reason = (
        f"the chain names no launch of a session of {letter.recipient!r}; "
        "carry the chain of the message you answer on"
    )
    return Settled(rejected("recipient-session", reason, letter))

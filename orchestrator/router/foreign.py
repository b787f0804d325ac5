"""Messages of programs outside of the stack, and work that reaches us by message alone.

What our own agents do is in the ledger before its envelope is in a stream. A foreign program has nothing but
its envelopes, so here the envelope is what changes the ledger: it begins a session, reports and ends the
session that the program runs, or goes into the queue of a session it speaks to. The ids in a message's chain
say which sessions those are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from orchestrator.envelope.bodies import (
    ErrorReport,
    Escalation,
    Message,
    Query,
    Reply,
    ReviewRequest,
    StatusUpdate,
    TaskCompletion,
    TaskDelegation,
)
from orchestrator.envelope.prompt_text import prompt_of, title_of
from orchestrator.ids import (
    callback_id,
    child_session_id,
    foreign_session_id,
    item_id,
    question_id,
    reply_id,
    run_id,
)
from orchestrator.ledger import CLOSED, Dispatch, Ledger, Session, layout
from orchestrator.letters import summary
from orchestrator.policy.routing import RoutingTable
from orchestrator.redisdb import keys
from orchestrator.router.conversations import Conversations
from orchestrator.router.directory import Directory
from orchestrator.router.letter import Letter, task_id_of
from orchestrator.router.steps import (
    DONE,
    DUPLICATE,
    NOTED,
    Act,
    Limits,
    Outcome,
    Settled,
    Step,
    rejected,
    task_taken,
)
from orchestrator.streams import ROUTER_GROUP, stream_key

Launch = TaskDelegation | ReviewRequest | Escalation
#: What people see instead of the title of what only its recipient can read.
SEALED_TITLE: Final = "(encrypted)"


class ForeignActs:
    """Makes the acts for messages that the ledger does not know yet."""

    def __init__(
        self, ledger: Ledger, conversations: Conversations, *, table: RoutingTable, limits: Limits
    ) -> None:
        self._ledger = ledger
        self._conversations = conversations
        self._directory = Directory(ledger)
        self._table = table
        self._limits = limits

    def prepare(self, letters: Sequence[Letter]) -> None:
        """Look up what these letters name, for the acts that follow."""
        self._directory.load(letters)

    # --- work --------------------------------------------------------------------------------

    def launch(self, letter: Letter, body: Launch | None) -> Step:
        """Begin a session for the recipient: a root, or a child of the session that the sender runs.

        ``body`` is None if it is sealed: the recipient's worker opens it.
        """
        if letter.recipient == self._table.operator:
            return NOTED  # for people to see: there is nobody to start
        if letter.type == "escalation":
            session = self._directory.latest(letter.recipient, letter)
            if session is not None and session.state not in CLOSED:
                title, prompt = _words(letter, body)
                return self._put(letter, session, None, text=prompt, kind="escalation", title=title)
        return self._begin(letter, body)

    def _begin(self, letter: Letter, body: Launch | None) -> Act:
        shard = letter.entry.stream.shard
        parent = self._directory.by_chain(letter.sender, letter)
        if parent is not None:
            session = child_session_id(parent.id, f"message|{letter.id}")
        else:
            session = foreign_session_id(shard, letter.id)
        run = run_id(session, 1)
        above = parent.id if parent is not None else session
        root = parent.root if parent is not None else session
        title, prompt = _words(letter, body)
        # A task-id that cannot be read is as good as one of its own.
        task_id = task_id_of(body) or letter.id
        chain = [letter.id, *(ref.lower() for ref in letter.message.header.conversation_chain)]
        facts: dict[str, str] = {
            "agent": letter.recipient,
            "title": title,
            "task": "",
            "priority": letter.entry.stream.priority,
            "correlation": letter.conversation,
            "message": letter.id,
            "chain": json.dumps(chain),
            "delegator": letter.sender,
            "task_id": task_id,
            **({"sealed": "1"} if letter.sealed else {}),
        }

        def read(answer: Any) -> Outcome:
            match answer[0]:
                case b"started":
                    dispatch = Dispatch(run=run, session=session, agent=letter.recipient, cause="start")
                    return Outcome(kind="done", dispatch=dispatch)
                case b"duplicate":
                    return DUPLICATE
                case b"task":
                    return task_taken(task_id, answer[1].decode(), letter)
                case b"closed":
                    reason = (
                        f"the session it would belong to is {answer[1].decode()} and launches nothing more"
                    )
                    return rejected("session-over", reason, letter)
            return self._limits.conversation_fault(answer[0].decode(), letter)

        return Act(
            script="route_launch",
            keys=[
                keys.session(session),
                keys.bodies(session),
                keys.tree(root),
                keys.roots(shard),
                keys.runs(session),
                keys.run(run),
                keys.dispatch(shard),
                keys.seen(shard, letter.id),
                stream_key(letter.entry.stream),
                keys.conversation(shard, letter.conversation),
                keys.session(above),
                keys.items(above),
            ],
            args=[
                "",
                session,
                run,
                ROUTER_GROUP,
                letter.entry.id,
                self._limits.mark_ms(letter),
                prompt,
                parent.id if parent is not None else "",
                callback_id(session),
                task_id,
                letter.first,
                self._limits.conversation_messages,
                self._limits.max_age_ms,
                self._ledger.limits.redispatch_ms,
                *[part for pair in facts.items() for part in pair],
            ],
            read=read,
            before=[
                *self._conversations.note(
                    shard=shard,
                    conversation=letter.conversation,
                    message_id=letter.id,
                    session=session,
                    agent=letter.recipient,
                ),
                *self._limits.review_timer(letter, session),
            ],
        )

    # --- what a foreign program says ----------------------------------------------------------

    def word(self, letter: Letter) -> Step:
        """The step for what a foreign program says of its session, or to another one."""
        body = letter.body
        match body:
            case StatusUpdate():
                return self._status(letter, body)
            case TaskCompletion():
                session = self._directory.by_task(body.task_id, letter.sender, letter)
                text = body.result if body.result is not None else body.summary
                status = "failed" if body.status == "failed" else "completed"
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
                return self._question(letter, prompt_of(body), body.subject)
            case Reply():
                return self._answer(letter, body)
            case Message():
                kind = body.message_type or "message"
                return self._say(letter, prompt_of(body), kind=kind, title=body.subject or "")
        return NOTED

    def _status(self, letter: Letter, body: StatusUpdate) -> Step:
        session = self._directory.by_task(body.task_id, letter.sender, letter)
        if session is None:
            return self._no_session(letter)
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
                return self._put(
                    letter, parent, session, text=why, kind="blocker", title=session.title, facts=facts
                )

        def read(answer: Any) -> Outcome:
            match answer[0]:
                case b"done":
                    return DONE
                case b"duplicate":
                    return DUPLICATE
            return self._no_session(letter).outcome

        return Act(
            script="route_status",
            keys=[
                keys.session(session.id),
                keys.seen(letter.entry.stream.shard, letter.id),
                stream_key(letter.entry.stream),
            ],
            args=[
                "",
                ROUTER_GROUP,
                letter.entry.id,
                self._limits.mark_ms(letter),
                *(facts or ["activity", session.activity]),
            ],
            read=read,
        )

    def _report(self, letter: Letter, session: Session | None, *, status: str, text: str) -> Step:
        if session is None:
            return self._no_session(letter)

        def read(answer: Any) -> Outcome:
            match answer[0]:
                case b"done" | b"over":
                    return DONE
                case b"duplicate":
                    return DUPLICATE
                case b"foreign":
                    reason = f"session {session.id} is run by a worker of this stack, which reports for it"
                    return rejected("unauthorised", reason, letter)
            return self._no_session(letter).outcome

        return Act(
            script="route_report",
            keys=[
                *layout.ending(session.id, parent=session.parent, run=session.run),
                keys.seen(letter.entry.stream.shard, letter.id),
                stream_key(letter.entry.stream),
            ],
            args=["", status, text, ROUTER_GROUP, letter.entry.id, self._limits.mark_ms(letter)],
            read=read,
        )

    def _say(self, letter: Letter, text: str, *, kind: str, title: str) -> Step:
        recipient = self._directory.recipient(letter, self._directory.by_chain(letter.sender, letter))
        if recipient is None:
            return self._nobody(letter)
        return self._put(letter, recipient, None, text=text, kind=kind, title=title)

    def _question(self, letter: Letter, text: str, title: str) -> Step:
        sender = self._directory.by_chain(letter.sender, letter)
        recipient = self._directory.recipient(letter, sender)
        if recipient is None:
            return self._nobody(letter)
        return self._put(letter, recipient, sender, text=text, kind="query", title=title, opens=True)

    def _answer(self, letter: Letter, body: Reply) -> Step:
        recipient = self._directory.by_chain(letter.recipient, letter)
        if recipient is None:
            return self._nobody(letter)
        question = self._asked(recipient, body.in_reply_to.lower())
        return self._put(
            letter,
            recipient,
            None,
            text=body.answer,
            kind="reply",
            title="",
            answers=question,
            priority="high",
        )

    def _asked(self, session: Session, message_id: str) -> str:
        """The open question of a session that was put with this message; '' when it is not known."""
        for question in session.questions:
            asked: Any = self._ledger.redis.hget(keys.session(session.id), f"question:{question}")
            item = self._ledger.item(asked.decode(), question) if asked else None
            if item is not None and str(item.extra.get("message", "")).lower() == message_id:
                return question
        return ""

    def _to_parent(self, letter: Letter, session: Session | None, *, text: str, kind: str) -> Step:
        """Something that a child's parent must hear before the child is over."""
        if session is None:
            return self._no_session(letter)
        parent = self._directory.session(session.parent, letter.recipient, letter)
        if parent is None:
            return NOTED  # a root: whoever gave it its task reads the envelope
        return self._put(letter, parent, session, text=text, kind=kind, title=session.title)

    def _put(
        self,
        letter: Letter,
        session: Session,
        speaker: Session | None,
        *,
        text: str,
        kind: str,
        title: str,
        opens: bool = False,
        answers: str = "",
        priority: str = "",
        facts: Sequence[str | int] = (),
    ) -> Act:
        opens = opens and speaker is not None
        record = {
            "kind": kind,
            "priority": priority or letter.entry.stream.priority,
            "child": speaker.id if speaker is not None else "",
            "agent": letter.sender,
            "title": title,
            "status": "",
            "message": letter.id,
            **({"question": True} if opens else {}),
            **({"answers": answers} if answers else {}),
            **({"sealed": True} if letter.sealed else {}),
        }

        def read(answer: Any) -> Outcome:
            match answer[0]:
                case b"done":
                    return DONE
                case b"duplicate":
                    return DUPLICATE
                case b"closed":
                    reason = f"session {session.id} is {answer[1].decode()} and takes nothing more"
                    return rejected("session-over", reason, letter)
                case b"answered":
                    return rejected(
                        "session-over", f"the question of session {session.id} has its reply", letter
                    )
            return self._no_session(letter).outcome

        speaking = speaker.id if (opens or facts) and speaker is not None else session.id
        if answers:
            item = reply_id(answers)
        elif opens:
            item = question_id(speaking, f"message|{letter.id}")
        else:
            item = item_id(session.id, f"message|{letter.id}")
        return Act(
            script="route_put",
            keys=[
                *layout.mailbox(session.id, speaker=speaking, envelope=None),
                keys.seen(letter.entry.stream.shard, letter.id),
                stream_key(letter.entry.stream),
            ],
            args=[
                "",
                item,
                json.dumps(record),
                text,
                "1" if opens else "0",
                answers,
                ROUTER_GROUP,
                letter.entry.id,
                self._limits.mark_ms(letter),
                *facts,
            ],
            read=read,
        )

    def _no_session(self, letter: Letter) -> Settled:
        reason = (
            f"no session that {letter.sender!r} runs is known by this task-id or chain; "
            "name the task-id you were given, and carry its message on in the chain"
        )
        return Settled(rejected("session-unknown", reason, letter))

    def _nobody(self, letter: Letter) -> Settled:
        reason = (
            f"the chain names no launch of a session of {letter.recipient!r}; "
            "carry the chain of the message you answer on"
        )
        return Settled(rejected("recipient-session", reason, letter))


def _words(letter: Letter, body: Launch | None) -> tuple[str, str]:
    """Title and prompt of what begins a session."""
    return (SEALED_TITLE, letter.sealed) if body is None else (title_of(body), prompt_of(body))

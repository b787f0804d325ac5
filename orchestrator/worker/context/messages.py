"""Questions, replies and messages of an agent to its parent and its children.

Each is an effect: an item in the queue of the session that gets it, and one signed envelope, in one step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, cast, get_args

from orchestrator.agents.registry import OPERATOR
from orchestrator.envelope.bodies import ErrorReport, FileReference, Query, StatusUpdate
from orchestrator.envelope.message_types import DetailedBody
from orchestrator.envelope.model_values import Priority
from orchestrator.envelope.prompt_text import pack_body, part_of, unpack_body
from orchestrator.errors import InputError, UnknownSession, WrongState
from orchestrator.ids import item_id, question_id, reply_id
from orchestrator.ledger import Item, Outgoing, Session
from orchestrator.ledger.large_text import check_size, check_text
from orchestrator.log import get_logger
from orchestrator.machine import SystemClock, isoformat
from orchestrator.messages.factory import Parties, Thread, status_of, summary
from orchestrator.operations.requests import Ask, AskLater, RaiseCallback
from orchestrator.policy.kinds import question_kind
from orchestrator.policy.moments import limit_ms
from orchestrator.policy.sealed_text import ENCRYPTED
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.event_log import AGENT_CALLBACK, EventLog

#: Bytes of a question that a person is asked.
MAX_USER_QUESTION_BYTES: Final = 65_536
#: Bytes of the values beside a question, as JSON.
MAX_CONTEXT_BYTES: Final = 256 * 1024

_ASKED_FOR: Final = frozenset({"ask-for-help", "request-review", "request-analysis"})

_log = get_logger()


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question of an agent, by any of the verbs that ask."""

    message: str
    kind: str = "query"
    context: Any = None
    priority: str | None = None
    key: str | None = None
    #: What else it says: what was tried, when the answer is needed.
    query: Query | None = None

    @classmethod
    def of(cls, request: Ask | AskLater | RaiseCallback) -> Question:
        """Return the question of a request.

        Raises:
            InputError: a value is invalid.
        """
        kind = request.get("kind")
        return cls(
            message=request["message"],
            # What is asked for stands in the body.
            kind="query" if kind is None or kind in _ASKED_FOR else kind,
            context=request.get("context"),
            priority=request.get("priority"),
            key=cast("AskLater", request).get("key"),
            query=_query_of(cast("Ask", request)),
        )


@dataclass(frozen=True, kw_only=True)
class _Item:
    """An item for the queue of another session, with the envelope that says the same."""

    id: str
    text: str
    kind: str
    priority: Priority
    envelope: Outgoing
    extra: Mapping[str, str] = field(default_factory=dict)


class MessageSender:
    """The messages of one run, in one try of it."""

    def __init__(self, effects: Effects, data: Path) -> None:
        self._effects = effects
        #: The data folder, whose events file names each question.
        self._data = data

    def send_question(
        self, question: Question, *, to: Session | None = None, open_s: float | None = None
    ) -> str:
        """Put a question to the parent, to a child, or from a root to the user; its id.

        The session is not over until it is answered. ``open_s``: seconds that a question to the user may stay open; by
        default the setting `question_time_limit_s`.

        Raises:
            InputError: there is nothing to ask, or nobody to ask.
            UnknownSession, WrongState: the parent is gone or will not run again.
            LimitExceeded: the conversation has had more messages than it may.
        """
        effects, session = self._effects, self._effects.held.session
        message, query = question.message, question.query
        check_text("message", message)
        if not message.strip():
            raise InputError(f"agent {session.agent!r} raised a callback without a message")
        if session.caller == "none":
            raise InputError(
                f"the plan that launched agent {session.agent!r} names no caller: there is nobody to ask"
            )
        urgent = question.priority or (query.urgency if query is not None else None)
        of_user = to is None and not session.parent
        if of_user and len(message.encode(errors="surrogatepass")) > MAX_USER_QUESTION_BYTES:
            raise InputError(
                f"a question to the user has at most {MAX_USER_QUESTION_BYTES} bytes; shorten it"
            )
        kind, urgency = question_kind(question.kind), urgency_of(question.kind, urgent)
        # JSON has no word for what is no number, and most readers of it refuse Python's: it becomes text.
        values = (
            None
            if question.context is None
            else json.loads(json.dumps(question.context, default=str), parse_constant=str)
        )
        packed = json.dumps(values)
        check_size("context", packed, MAX_CONTEXT_BYTES)
        # Not by its context, which may hold times and process ids that another try does not repeat.
        effect = effects.key("ask", message, kind, *([to.id] if to else []), given=question.key)
        asked_as = question_id(session.id, f"{effects.held.claim.run}:{effect}")
        asked = to.agent if to else OPERATOR if of_user else effects.delegator
        outgoing = effects.write(
            lambda: effects.message_factory.query(
                question=message,
                context=_context(kind, values),
                priority=urgency,
                query=query,
                **effects.parties(asked, to.id if to else "" if of_user else session.parent),
            )
        )
        extra = {} if query is None else {"body": pack_body(query)}
        if values is not None:
            # As text: the scripts that read and write the record know neither empty lists nor long numbers.
            extra["context"] = packed
        open_ms = effects.ledger.limits.question_ms if open_s is None else limit_ms(open_s)
        item = _Item(id=asked_as, text=message, kind=kind, priority=urgency, envelope=outgoing, extra=extra)
        asks = None if of_user else to.id if to else session.parent
        self._send("ask", asks, item, effect=effect, open_ms=open_ms)
        # A question to the user is among the records of the root that asks.
        self._note_sent(to.id if to else session.parent or session.id, asked_as, outgoing)
        event = {
            "from": session.agent,
            "to": asked,
            "type": kind,
            "message": ENCRYPTED if outgoing.encrypted else message,
            "id": asked_as,
            "priority": urgency,
            "session": session.id,
            "parent": to.id if to else session.parent,
        }
        self._note(event if values is None or outgoing.encrypted else {**event, "context": values})
        return asked_as

    def _note(self, event: dict[str, Any]) -> None:
        """Write a question into the events file; the ledger has it already, so a full disk stops nobody."""
        again, events = self._effects.held.run.attempt > 1, EventLog(self._data)
        try:
            at = isoformat(SystemClock().now_ms())
            events.append(AGENT_CALLBACK, event, timestamp=at, again=again)
        except OSError as error:
            _log.warning("event-not-written", file=str(events.path), id=event["id"], error=str(error))

    def status_of(self, other: Session) -> StatusUpdate:
        """Return the progress of another session. Question and answer go to the audit trail; another try gets the
        same.
        """
        effects = self._effects
        effect = effects.key("get-status", other.id)
        asked = effects.write(
            lambda: effects.message_factory.query(
                question=f"How far is {other.title or other.id}?",
                query=Query(query_type="get-status", subject=""),
                **effects.parties(other.agent, other.id),
            )
        )
        found = pack_body(status_of(other))
        kept = effects.attempt(
            "get-status",
            lambda: effects.ledger.effect(
                effects.held.claim, effect=effect, envelope=asked, value=found, only_audit=True
            ),
        )
        status = unpack_body(kept, "")
        assert isinstance(status, StatusUpdate)
        return status

    def status(self, body: StatusUpdate) -> None:
        """Report the progress of the session. The parent is told if it is blocked, and need not reply.

        Raises:
            InputError: the status is too large.
            LimitExceeded, UnknownSession, WrongState: as :meth:`message`.
        """
        effects, session = self._effects, self._effects.held.session
        activity = body.current_activity or (body.status if body.status != "in-progress" else "")
        if body.status != "blocked" or not session.parent or session.caller == "none":
            pack_body(body)  # not larger than what others may say
            effects.status(body.progress_percentage, activity, body=body)
            return
        text = "\n".join(blocker.text for blocker in body.blockers) or activity
        effects.show(body.progress_percentage, body.current_activity or f"blocked: {summary(text)}")
        self.tell(body, text, kind="blocker", priority="critical")

    def report(self, error: ErrorReport) -> None:
        """Tell the parent of an error that does not end the task; no reply is waited for.

        Raises:
            InputError: there is no message, or the report is too large.
            LimitExceeded, UnknownSession, WrongState: as :meth:`message`.
        """
        if not error.message.strip():
            raise InputError("an error report needs a message")
        urgency: Priority = "critical" if error.severity == "critical" else "high"
        self.tell(error, error.message, kind="error", priority=urgency)

    def tell(self, body: DetailedBody, text: str, *, kind: str, priority: Priority) -> None:
        """Put a report into the parent's queue, which it need not reply to."""
        effects, session = self._effects, self._effects.held.session
        about = body.model_dump(mode="json", exclude={"error_id"})
        effect = effects.key(kind, about)
        sent = item_id(session.parent, f"{effects.held.claim.run}:{effect}")
        outgoing = effects.write_own(body)
        extra = {"body": pack_body(body)}
        item = _Item(id=sent, text=text, kind=kind, priority=priority, envelope=outgoing, extra=extra)
        self._send("report", session.parent, item, effect=effect)
        self._note_sent(session.parent, sent, outgoing)

    def _send(
        self, what: str, to: str | None, item: _Item, *, effect: str, open_ms: int | None = None
    ) -> str:
        """Put an item into the queue of the session ``to``, or ask the user for None; ``open_ms``: it is a question."""
        effects, session = self._effects, self._effects.held.session
        ledger, claim, conversation = effects.ledger, effects.held.claim, effects.thread.correlation
        about = {"agent": session.agent, "title": session.title, "message": item.envelope.message_id}

        def send() -> str:
            return ledger.send(
                claim,
                claim.session if to is None else to,
                item.text,
                effect=effect,
                item_id=item.id,
                kind=item.kind,
                priority=item.priority,
                envelope=item.envelope,
                opens=open_ms is not None or to is None,
                open_ms=(open_ms or 0) if to is None else None,
                conversation=conversation,
                extra={**about, **item.extra},
            )

        return effects.attempt(what, send, effect=effect)

    def _note_sent(self, to: str, item: str, outgoing: Outgoing) -> None:
        """Note that an item was sent, now or by an earlier try of the run, whose message counts then."""
        effects, message = self._effects, outgoing.message_id
        if effects.held.run.attempt > 1:
            found = effects.retrying("sent", lambda: effects.ledger.item(to, item))
            message = str(found.extra.get("message", message)) if found is not None else message
        effects.note_sent(message)

    def reply(self, question: Item, text: str, *, refused: bool = False) -> bool:
        """Answer a question of another session; False when the answer comes too late.

        ``refused``: the text says why there will be no answer.

        Raises:
            InputError: the item is no question.
        """
        effects, session = self._effects, self._effects.held.session
        if not question.extra.get("question"):
            raise InputError(
                f"{question.id} ({question.kind}) is not a question; there is nothing to reply to"
            )
        check_text("text", text)
        if not text.strip():
            raise InputError(f"the reply to {question.id} is empty")
        outgoing = effects.write(
            lambda: effects.message_factory.reply(
                question=str(question.extra["message"]),
                answer=text,
                **self._reply_parties(question),
            )
        )
        extra = {
            "agent": session.agent,
            "status": "failed" if refused else "",
            "answers": question.id,
            "message": outgoing.message_id,
        }
        try:
            effects.attempt(
                "reply",
                lambda: effects.ledger.send(
                    effects.held.claim,
                    question.child,
                    text,
                    effect=f"reply:{question.id}",
                    item_id=reply_id(question.id),
                    kind="reply",
                    priority="high",
                    envelope=outgoing,
                    answers=question.id,
                    extra=extra,
                ),
                effect=f"reply:{question.id}",
            )
        except (UnknownSession, WrongState) as error:
            _log.warning("reply-too-late", question=question.id, session=question.child, error=str(error))
            return False
        return True

    def _reply_parties(self, question: Item) -> Parties:
        """Return the parties of the reply to a question: it stands after the question, in the thread of its asker."""
        parties = self._effects.parties(question.agent, question.child)
        own = parties["thread"]
        [asker] = self._effects.ledger.find([question.child]) or [self._effects.held.session]
        after = Thread.of(asker, after=str(question.extra["message"]))
        parties["thread"] = replace(own, chain=after.chain, encrypted=own.encrypted or asker.encrypted)
        return parties

    def message(
        self, to: Session, text: str, *, priority: Priority = "normal", key: str | None = None
    ) -> str:
        """Send a text that needs no answer to a session; the id of its item.

        Raises:
            WrongState: the session will not run again.
            LimitExceeded: the conversation has had more messages than it may.
        """
        effects = self._effects
        effect = effects.key("message", to.id, text, priority, given=key)
        sent = item_id(to.id, f"{effects.held.claim.run}:{effect}")
        outgoing = effects.write(
            lambda: effects.message_factory.message(text=text, **effects.parties(to.agent, to.id))
        )
        item = _Item(id=sent, text=text, kind="message", priority=priority, envelope=outgoing)
        return self._send("message", to.id, item, effect=effect)


def urgency_of(kind: str, priority: str | None) -> Priority:
    """Return the priority of a question in its parent's queue: a blocker is always before everything else."""
    if kind == "blocker":
        return "critical"
    if priority is None:
        return "high" if kind == "error" else "normal"
    word = priority.strip().casefold()
    return cast("Priority", word) if word in get_args(get_args(Priority)[0]) else "normal"


def _context(kind: str, values: Any) -> str:
    """Return the context of the question's envelope: its type, and the values as JSON."""
    lines = [] if kind == "query" else [f"type: {summary(kind)}"]
    if values is not None:
        lines.append(json.dumps(values, ensure_ascii=False, indent=2))
    return "\n".join(lines)


def _query_of(request: Ask | AskLater) -> Query | None:
    """The structured part of a question; None where it has only a text.

    Raises:
        InputError: a value is invalid.
    """
    file, required_by = request.get("file") or (), request.get("required_by")
    kind = request.get("kind")
    files = [file] if isinstance(file, str | FileReference | Mapping) else list(file)
    context = {
        "problem": request.get("problem") or None,
        "attempted_solutions": [
            {"order": n, "text": text} for n, text in enumerate(request.get("attempted") or (), 1)
        ],
        "file_references": [{"path": one, "text": ""} if isinstance(one, str) else one for one in files],
        "error_message": request.get("error") or None,
    }
    fields = {
        "query_type": kind if kind in _ASKED_FOR else None,
        "context": context if any(context.values()) else None,
        "urgency": request.get("urgency"),
        "required_by": required_by.isoformat() if isinstance(required_by, datetime) else required_by,
    }
    given = {name: value for name, value in fields.items() if value}
    return part_of(Query, {"subject": "", **given}, name="ask") if given else None

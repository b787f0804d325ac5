"""Envelopes that our own parts send: written, signed with the sender's key, ready for a transition to publish.

Everything an agent does to others is reported by one. The ledger, not the envelope, is the fact: these are
what the audit trail and programs in other languages read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NotRequired, TypedDict, Unpack

from orchestrator.agents.registry import OPERATOR, AgentRecord, AgentRegistry
from orchestrator.envelope.bodies import (
    Assignment,
    BudgetLimits,
    Dependency,
    ErrorDetails,
    ErrorReport,
    Escalation,
    EscalationMatter,
    LaunchTerms,
    Message,
    Query,
    QueryContext,
    RecoveryOption,
    Reply,
    Review,
    ReviewRequest,
    StatusUpdate,
    Task,
    TaskCompletion,
    TaskDelegation,
)
from orchestrator.envelope.message_types import SESSION_STARTING, task_id_of
from orchestrator.envelope.model import AgentMessage, Body, Header, Party, RetryPolicy
from orchestrator.envelope.model_values import Priority, Timestamp, with_values
from orchestrator.envelope.sealing import Encrypter
from orchestrator.envelope.signature import sign_message
from orchestrator.ids import new_message_id
from orchestrator.keyring.registry import Keyring
from orchestrator.ledger.model import CLOSED, Session, SessionState
from orchestrator.ledger.transitions import Outgoing
from orchestrator.machine import SystemClock
from orchestrator.messages.recipients import EncryptionKeys
from orchestrator.policy.budget import NANO, Budget
from orchestrator.policy.routing import RoutingTable

#: Characters of an answer that its summary repeats.
SUMMARY_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class Thread:
    """Place of a message in a conversation."""

    correlation: str  #: the conversation
    chain: tuple[str, ...] = ()  #: ids of the messages that led to it, nearest first
    encrypted: bool = False  #: whether its messages are encrypted for their recipients
    traceparent: str | None = None  #: the span of the run that sends the message

    @classmethod
    def of(cls, session: Session, *, after: str = "", traceparent: str | None = None) -> Thread:
        """Return the thread of what the agent of a session sends: after that message, and those that led to the session."""
        before = (after,) if after and after not in session.chain else ()
        return cls(
            correlation=session.correlation,
            chain=(*before, *session.chain),
            encrypted=session.encrypted,
            traceparent=traceparent,
        )


class Parties(TypedDict):
    """Sender and recipient of a message, their sessions, and its place in their conversation."""

    sender: str
    recipient: str
    thread: Thread
    sender_session: NotRequired[str]  #: by default none: it is no session's message
    recipient_session: NotRequired[str]  #: by default the one that the message starts, or none


def from_session(session: Session, recipient: str, thread: Thread | None = None, *, by: str = "") -> Parties:
    """Return the parties of what a session tells its delegator, ``recipient``; or ``by`` in its place."""
    return {
        "sender": by or session.agent,
        "sender_session": session.id,
        "recipient": recipient,
        "recipient_session": session.parent,
        "thread": thread or Thread.of(session),
    }


def to_session(session: Session, *, after: str = "", sender: str = OPERATOR) -> Parties:
    """Return the parties of what a session is told, after that message; by default by the user."""
    return {
        "sender": sender,
        "recipient": session.agent,
        "recipient_session": session.id,
        "thread": Thread.of(session, after=after),
    }


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Delivery of a message, as far as it differs from the routing table's row for its type."""

    priority: Priority | None = None
    expires_s: float | None = None  #: seconds from now after which the message is not acted upon
    retry_policy: RetryPolicy | None = None


AS_ROUTED = Delivery()


def _limits(budget: Budget) -> BudgetLimits:
    limits = budget.limits
    return BudgetLimits(
        requests=limits.get("requests"), tokens=limits.get("tokens"), nano_usd=limits.get("nano")
    )


def _budget(limits: BudgetLimits) -> Budget:
    usd = None if limits.nano_usd is None else limits.nano_usd / NANO
    return Budget(requests=limits.requests, tokens=limits.tokens, usd=usd)


#: The options of a launch that its message repeats: how the message has the value of each, and the way back.
IN_MESSAGES: Final[Mapping[str, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]]] = {
    "group": ("group", str, str),
    "time_limit_s": ("time_limit_ms", lambda seconds: max(1, round(seconds * 1000)), lambda ms: ms / 1000),
    "budget": ("budget", _limits, _budget),
}


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms on which a session is launched, beside its task."""

    options: Mapping[str, Any] = field(default_factory=dict)  #: those of its launch that its message repeats
    plan: bool = False  #: whether its prompt is a plan that it carries out before its agent is called
    after: Sequence[str] = ()  #: the tasks that must be completed before it begins
    delivery: Delivery = AS_ROUTED  #: how its message is delivered

    @classmethod
    def of(cls, options: Mapping[str, Any], *, plan: bool = False) -> Terms:
        """Return the terms in the options of a launch, see `operations.requests.LaunchOptions`."""
        given = {name: options[name] for name in IN_MESSAGES if options.get(name) not in (None, "")}
        delivery = Delivery(**{each.name: options.get(each.name) for each in fields(Delivery)})
        return cls(options=given, plan=plan, after=options.get("after") or (), delivery=delivery)

    @property
    def budget(self) -> Budget | None:
        """The most that the session and everything below it may spend; None: as much as it takes."""
        return self.options.get("budget")

    @property
    def time_limit_ms(self) -> int:
        """Milliseconds within which the session must have ended; 0: as long as it takes."""
        terms = self.in_message()
        return (terms.time_limit_ms if terms is not None else None) or 0

    def in_message(self) -> LaunchTerms | None:
        """Return them as the body of a message has them; None: it has nothing of them."""
        if not self.options and not self.plan:
            return None
        rows = ((value, *IN_MESSAGES[name]) for name, value in self.options.items())
        return LaunchTerms(
            **{element: write(value) for value, element, write, _ in rows}, plan=self.plan or None
        )

    @classmethod
    def of_message(cls, terms: LaunchTerms | None) -> Terms:
        """Read them from the body of a message.

        Raises:
            InputError: a value is larger than any that a launch can be given.
        """
        rows = (
            (name, getattr(terms, element, None), read) for name, (element, _, read) in IN_MESSAGES.items()
        )
        given = {name: read(value) for name, value, read in rows if value}
        return cls(options=given, plan=bool(terms and terms.plan))


NO_TERMS: Final = Terms()


class MessageFactory:
    """Writes envelopes for any sender whose key is at hand. Safe to share between threads.

    Large reports are sent compressed, and very large ones as a reference to where they are stored. Bodies are encrypted: all
    with ``encrypt_all``, else those of encrypted threads and those from or to agents that are told to encrypt.
    """

    def __init__(
        self,
        keyring: Keyring,
        agents: AgentRegistry,
        *,
        routing: RoutingTable,
        encrypter: Encrypter,
        recipients: EncryptionKeys,
        encrypt_all: bool,
    ) -> None:
        self._keyring = keyring
        self._agents = agents
        self._routing = routing
        self._encrypter = encrypter
        self._recipients = recipients
        self._encrypt_all = encrypt_all
        self._clock = SystemClock()
        # As long as the registry hands out the same record of an agent.
        self._parties: dict[str, tuple[AgentRecord, Party]] = {}

    def delegation(
        self, *, task_id: str, task: Task, terms: Terms = NO_TERMS, **parties: Unpack[Parties]
    ) -> Outgoing:
        """The sender gives the recipient a task, which gets this id; a root is given its task by `operator`."""
        before = (Dependency(task_id=other, type="depends-on") for other in terms.after)
        body = TaskDelegation(
            task=with_values(task, task_id=task_id, dependencies=(*task.dependencies, *before)),
            assignment=self._assignment(parties),
            launch=terms.in_message(),
        )
        return self._write(body, parties, delivery=terms.delivery)

    def completion(self, *, task_id: str, result: str, **parties: Unpack[Parties]) -> Outgoing:
        """Return the report that a session has ended, with its answer."""
        body = TaskCompletion(
            task_id=task_id,
            status="success",
            summary=summary(result),
            completion_timestamp=Timestamp.from_ms(self._clock.now_ms()),
            result=result,
        )
        return self._write(body, parties)

    def error(self, *, error: ErrorReport | str, details: str = "", **parties: Unpack[Parties]) -> Outgoing:
        """Return the report that a session has failed, was stopped or could not start, or a message was not accepted.

        ``error`` is the report, or its message if there is no more to say.
        """
        report = ErrorReport(message=error) if isinstance(error, str) else error
        body = with_values(
            report,
            details=ErrorDetails(context_data=details) if details else None,
            recovery_options=(
                RecoveryOption(text="delegate the task again", priority=1, type="retry"),
                RecoveryOption(
                    text="ask the agent that delegated this task to you", priority=2, type="escalate"
                ),
            ),
            recommended_action=report.recommended_action or "escalate",
        )
        return self._write(body, parties)

    def query(
        self,
        *,
        question: str,
        context: str = "",
        priority: Priority | None = None,
        query: Query | None = None,
        **parties: Unpack[Parties],
    ) -> Outgoing:
        """A session asks the one that gave it its task; ``context`` helps to answer.

        ``query`` has the other fields.
        """
        body = query or Query(subject=question)
        known = body.context or QueryContext()
        if context:
            problem = "\n\n".join(filter(None, [known.problem, context]))
            known = with_values(known, problem=problem)
        body = with_values(
            body,
            subject=question,
            context=known if known != QueryContext() else None,
            urgency=body.urgency or priority,
        )
        return self._write(body, parties, priority=priority)

    def reply(self, *, question: str, answer: str, **parties: Unpack[Parties]) -> Outgoing:
        """Return the answer to the query whose message-id is ``question``."""
        body = Reply(in_reply_to=question, answer=answer)
        return self._write(body, parties)

    def review_request(
        self, *, task_id: str, reviewed: str, review: Review, terms: Terms, **parties: Unpack[Parties]
    ) -> Outgoing:
        """The sender asks the recipient to review its task ``reviewed``, in a session of its own."""
        body = ReviewRequest(
            review=with_values(review, task_id=task_id, reviewed_task_id=review.reviewed_task_id or reviewed),
            assignment=self._assignment(parties),
            launch=terms.in_message(),
        )
        return self._write(body, parties, delivery=terms.delivery)

    def escalation(
        self,
        *,
        task_id: str,
        escalated: str,
        matter: EscalationMatter,
        terms: Terms = NO_TERMS,
        **parties: Unpack[Parties],
    ) -> Outgoing:
        """Return the escalation by which the sender hands over what its task ``escalated`` cannot settle."""
        body = Escalation(
            escalation=with_values(
                matter, task_id=task_id, escalated_task_id=matter.escalated_task_id or escalated
            ),
            assignment=self._assignment(parties),
            launch=terms.in_message(),
        )
        return self._write(body, parties, delivery=terms.delivery)

    def message(self, *, text: str, **parties: Unpack[Parties]) -> Outgoing:
        """Return a message outside of any task, such as another prompt of a user."""
        return self._write(Message(content=text), parties)

    def as_written(
        self, body: Body, *, priority: Priority | None = None, **parties: Unpack[Parties]
    ) -> Outgoing:
        """Return the message that an agent wrote itself, in an envelope of ours; who assigned a task to whom is
        filled in.
        """
        if isinstance(body, TaskDelegation):
            body = body.model_copy(update={"assignment": self._assignment(parties)})
        return self._write(body, parties, priority=priority)

    def _write(
        self,
        body: Body,
        parties: Parties,
        *,
        priority: Priority | None = None,
        delivery: Delivery = AS_ROUTED,
    ) -> Outgoing:
        sender, recipient, thread = parties["sender"], parties["recipient"], parties["thread"]
        now_ms = self._clock.now_ms()
        message_id = new_message_id()
        urgency = priority or delivery.priority or self._routing[body.type].priority
        expires_s, launching = delivery.expires_s, body.type in SESSION_STARTING
        message = AgentMessage(
            header=Header(
                message_id=message_id,
                timestamp=Timestamp.from_ms(now_ms),
                sender=self._party(sender),
                recipient=self._party(recipient),
                correlation_id=thread.correlation,
                conversation_chain=thread.chain,
                priority=urgency,
                expiration=None
                if expires_s is None
                else Timestamp.from_ms(now_ms + max(1, round(expires_s * 1000))),
                retry_policy=delivery.retry_policy,
                traceparent=thread.traceparent,
                sender_session=parties.get("sender_session") or None,
                recipient_session=parties.get("recipient_session")
                or (task_id_of(body) if launching else None),
            ),
            body=body,
        )
        signer = self._keyring.signer(sender)
        encrypted = self._encrypts(thread, sender, recipient)
        if encrypted:
            if launching:  # the recipient is going to answer
                self._recipients.recipient(sender)
            octets = self._encrypter.sign(message, signer, recipient=self._recipients.recipient(recipient))
        elif launching:  # the router reads its task-id, so it is sent in clear text
            octets = sign_message(message, signer, now_ms=now_ms)
        else:
            octets = self._encrypter.sign(message, signer)
        return Outgoing(
            data=octets, type=body.type, priority=urgency, message_id=message_id, encrypted=encrypted
        )

    def _encrypts(self, thread: Thread, sender: str, recipient: str) -> bool:
        if thread.encrypted or self._encrypt_all:
            return True
        records = (self._agents.get(sender), self._agents.get(recipient))
        return any(record is not None and record.encrypt for record in records)

    def _assignment(self, parties: Parties) -> Assignment:
        return Assignment(
            assigned_to=parties["recipient"],
            assigned_by=parties["sender"],
            assigned_timestamp=Timestamp.from_ms(self._clock.now_ms()),
        )

    def _party(self, name: str) -> Party:
        record = self._agents.get(name)
        if record is None:  # the router decides whether an unknown agent may send
            return Party(agent_name=name, agent_role="orchestrator" if name == OPERATOR else "specialist")
        known = self._parties.get(name)
        if known is None or known[0] is not record:
            known = (record, Party(agent_name=name, agent_role=record.role, tier=record.tier))
            self._parties[name] = known
        return known[1]


def summary(text: str) -> str:
    """Return the first lines of an answer, for people who read the audit trail."""
    flat = " ".join(text.split(None, SUMMARY_CHARS)[:SUMMARY_CHARS])
    return flat if len(flat) <= SUMMARY_CHARS else f"{flat[: SUMMARY_CHARS - 1]}…"


def status_of(session: Session) -> StatusUpdate:
    """Return the progress of a session as the system itself reports it, to a query of the type get-status."""
    status: Literal["in-progress", "blocked", "completed", "failed"] = "in-progress"
    if session.state is SessionState.FINISHED:
        status = "completed"
    elif session.state in CLOSED:
        status = "failed"
    elif session.questions or session.activity.startswith("blocked"):
        status = "blocked"
    return StatusUpdate(
        task_id=session.reported_as,
        status=status,
        progress_percentage=session.progress if 0 <= session.progress <= 100 else None,
        current_activity=session.reason or session.activity or session.state.value,
    )

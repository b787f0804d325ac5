"""Giving messages up: a dead letter, a report, its escalation, and the failure of the session that would have begun."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from typing import Final

from orchestrator import machine
from orchestrator.agents.registry import ROUTER, SYSTEM_AGENTS, AgentRecord, system_record
from orchestrator.bootstrap import Container
from orchestrator.crashpoints import failpoint
from orchestrator.envelope.bodies import ErrorReport, ErrorType, EscalationMatter, Task
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.envelope.model import AgentMessage
from orchestrator.errors import KeyringError, UnknownSession, WrongState
from orchestrator.ids import derived_uuid, is_session_id, item_id, root_session_id, shard_of
from orchestrator.ledger import Outgoing
from orchestrator.log import get_logger
from orchestrator.messages.factory import Parties, Thread
from orchestrator.policy.guarded_tags import defuse
from orchestrator.policy.routing import above, refusal
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Batch, Scripts
from orchestrator.router.deadletters.store import dead_letter_fields, verified_sender
from orchestrator.router.delayed.parked import parked_id
from orchestrator.router.received import Rejection, attempt_of, launched_task
from orchestrator.router.session_resolver import NEAREST, launched
from orchestrator.streams import ROUTER_GROUP, DeadLimits, Entry, StreamId, dead_call, stream_key

#: Characters of a prompt that a dead letter makes.
_LONGEST: Final = 4_000


def escalate(
    parts: Container, recipient: AgentRecord, message: AgentMessage, rejection: Rejection, *, attempts: int
) -> None:
    """Have an agent look at a message that was given up, if the router may give it work.

    Harmless to repeat: the session and the item in its queue derive from the conversation and the message.

    Raises:
        KeyringError: the router cannot sign.
    """
    ledger, message_factory, table = parts.ledger, parts.message_factory, parts.routing
    kind = "escalation" if recipient.name == table.tech_lead else "task-delegation"
    if recipient.external or recipient.system:
        return
    if refusal(kind, system_record(ROUTER).principal, recipient.principal, table) is not None:
        return
    header, conversation = message.header, message.conversation_id
    session = root_session_id(f"escalated|{recipient.name}|{conversation}", parts.settings.shards)
    thread = Thread(correlation=derived_uuid("conversation", session))
    title = f"{message.body.type} from {header.sender.agent_name} was not accepted"
    prompt = _prompt(message, rejection, attempts=attempts)
    parties = Parties(sender=ROUTER, recipient=recipient.name, thread=thread)
    if kind == "escalation":
        outgoing = message_factory.escalation(
            task_id=session,
            escalated=header.message_id,
            matter=EscalationMatter(
                title=title,
                description=prompt,
                reason="timeout" if rejection.rule in {"timeout", "expired"} else "validation-error",
            ),
            **parties,
        )
    else:
        task = Task(title=title, description=prompt)
        outgoing = message_factory.delegation(task_id=session, task=task, **parties)
    made = ledger.submit(
        session,
        agent=recipient.name,
        prompt=prompt,
        envelope=outgoing,
        correlation=thread.correlation,
        title=title,
        by=ROUTER,
    )
    if made.other_prompt:  # something of this conversation was escalated before
        try:
            ledger.enqueue(
                session,
                prompt,
                item_id=item_id(session, f"escalated|{header.message_id.lower()}"),
                kind="error",
                priority="critical",
                extra={"agent": ROUTER, "title": title},
                by=ROUTER,
            )
        except (UnknownSession, WrongState) as error:
            get_logger().warning("escalation-not-delivered", session=session, error=str(error))


def _prompt(message: AgentMessage, rejection: Rejection, *, attempts: int) -> str:
    """The prompt of the agent. Names and reasons come from others, so tags in them are defused."""
    header = message.header
    about = {
        "message": header.message_id,
        "type": message.body.type,
        "from": header.sender.agent_name,
        "to": header.recipient.agent_name,
        "conversation": message.conversation_id,
        "sent": str(header.timestamp),
        "rule": rejection.rule,
        "attempts": attempts,
    }
    text = (
        "A message could not be delivered and will not be tried again.\n\n"
        f"{rejection.reason}\n\n{json.dumps(about, indent=2)}\n\n"
        "Find the cause and propose what to do. The operator can replay the message: `orchestra dlq replay`."
    )
    return defuse(text[:_LONGEST])


#: Seconds between two log lines about dropped dead letters: a flood of them must not flood the log.
_LOG_EVERY_S = 10.0
#: Dead letters without a trusted sender that are logged one by one in that time.
_LOGGED = 100
_SESSION = re.compile(rb"<task-id>\s*(ses_[0-9a-f]{26})\s*</task-id>")
_MESSAGE_ID = re.compile(rb"<message-id>\s*([0-9a-fA-F-]{36})\s*</message-id>")
_ERROR_TYPES: dict[str, ErrorType] = {
    "timeout": "timeout",
    "expired": "timeout",
    "dependency-failed": "blocked",
}


class DeadLettering:
    """Gives messages up, for good."""

    def __init__(self, parts: Container) -> None:
        self._parts = parts
        self._redis = parts.redis
        self._ledger = parts.ledger
        self._message_factory = parts.message_factory
        self._table = parts.routing
        self._find_agent = parts.agents.get
        self._shards = parts.settings.shards
        self._scripts = Scripts(parts.redis)
        self._limits = DeadLimits.of(parts.settings)
        #: Dead letters that were dropped and not logged yet, and when the next line about them may be written.
        self._dropped = 0
        self._next_dropped = 0.0
        #: The same of dead letters without a trusted sender; and how many were logged one by one since.
        self._unlogged = self._logged = 0
        self._next_dead = 0.0

    def mark_dead(self, refused: Sequence[tuple[Entry, Rejection]], *, exhausted: bool = False) -> int:
        """Make entries dead letters, fail the sessions they would have started, and report them, in one round trip.

        A refusal is reported to the sender; a message whose attempts are ``exhausted`` also goes up the escalation
        path. Harmless to repeat: every step is carried out once. Returns how many of the entries no other router
        had dealt with.
        """
        if not refused:
            return 0
        batch = self._scripts.batch()
        for entry, rejection in refused:
            # First the session: if this process dies here, the entry is still pending and all of it comes again.
            self._refuse_session(entry, rejection)
            if rejection.rule == "conversation-limit":
                self._warn_root(rejection)
            failpoint("router.refused")
            if exhausted:
                self._escalate(rejection, attempts=attempt_of(entry))
            self._add(batch, entry, rejection, exhausted=exhausted)
        answers = batch.execute()
        failpoint("router.buried")
        for (entry, rejection), answer in zip(refused, answers, strict=True):
            if isinstance(answer, Exception):
                raise answer
            self._log_dead(entry, rejection)
        self._log_dropped(sum(answer[1] for answer in answers if answer))
        return sum(bool(answer) for answer in answers)

    def _add(self, batch: Batch, entry: Entry, rejection: Rejection, *, exhausted: bool) -> None:
        """Add the step that makes an entry a dead letter and reports it."""
        reports = self._reports(rejection, attempts=attempt_of(entry), exhausted=exhausted)
        shard, message = entry.stream.shard, rejection.message
        seen = ""
        if message is not None:
            seen = keys.seen(shard, message.header.sender.agent_name, message.header.message_id.lower())
        errors = stream_key(StreamId(shard, "error", self._table["error"].priority))
        call = dead_call(
            entry,
            dead_letter_fields(entry, rejection),
            group=ROUTER_GROUP,
            sender=verified_sender(rejection),
            limits=self._limits,
            seen=seen,
            reports=(errors, [report.data for report in reports]),
        )
        batch.script("route_dead", *call)

    def _log_dead(self, entry: Entry, rejection: Rejection) -> None:
        """Log a dead letter; of those without a trusted sender some in a while, and how many more there were."""
        now = machine.monotonic()
        if now >= self._next_dead:
            self._logged, self._next_dead = 0, now + _LOG_EVERY_S
            if self._unlogged:
                get_logger().warning("messages-dead", more=self._unlogged)
                self._unlogged = 0
        if not rejection.trusted:
            self._logged += 1
            if self._logged > _LOGGED:
                self._unlogged += 1
                return
        get_logger().warning(
            "message-dead",
            stream=str(entry.stream),
            entry=entry.id,
            rule=rejection.rule,
            reason=rejection.reason,
        )

    def _log_dropped(self, dropped: int) -> None:
        """Log how many dead letters were dropped: at once, and then with all that follow within a while."""
        self._dropped += dropped
        now = machine.monotonic()
        if self._dropped and now >= self._next_dropped:
            get_logger().warning("dead-letters-dropped", dropped=self._dropped, reason="too many, or too old")
            self._dropped, self._next_dropped = 0, now + _LOG_EVERY_S

    def _refuse_session(self, entry: Entry, rejection: Rejection) -> None:
        launch = _named_launch(entry) if rejection.message is None else _launch(entry, rejection.message)
        if launch is None:
            return
        session_id, message_id = launch
        try:
            session = self._ledger.session(session_id)
        except UnknownSession:
            return
        # Only the refusal of the launch itself ends the session, not that of another message that names it, or of a
        # copy. The place of the entry proves it, whether or not its signature still counts.
        here = shard_of(session_id) == entry.stream.shard and session.entry == parked_id(entry)
        if here and session.message.lower() == message_id:
            self._ledger.refuse(session.id, f"{rejection.rule}: {rejection.reason}", by=ROUTER)

    def _warn_root(self, rejection: Rejection) -> None:
        """Warn the root of a conversation that runs away, once."""
        message = rejection.message
        if message is None or not rejection.trusted:
            return
        sessions = self._launched(message, message.header.conversation_chain[-1:])
        if not sessions:
            return
        with contextlib.suppress(UnknownSession, WrongState):  # it is gone, or takes nothing more
            root = self._ledger.session(sessions[0]).root
            self._ledger.enqueue(
                root,
                rejection.reason,
                item_id=item_id(root, f"conversation-limit|{message.conversation_id}"),
                kind="error",
                priority="critical",
                extra={"agent": ROUTER, "title": "A conversation runs away", "status": "failed"},
                by=ROUTER,
            )

    def _escalate(self, rejection: Rejection, *, attempts: int) -> None:
        """Have the agent at the end of the sender's escalation path look at a message that is given up.

        The report goes to the sender, and to whoever gave the sender its task.
        """
        message = rejection.message
        # What the system itself has sent is never escalated: an escalation that is given up would make another one.
        if message is None or not rejection.trusted:
            return
        sender = message.header.sender.agent_name
        record = self._find_agent(sender)
        # Nor is what an external program has sent: it could have agents run at will by messages that are refused.
        if message.body.type == "error" or sender in SYSTEM_AGENTS or record is None or record.external:
            return
        delegator = self._delegator(message)
        next_up = self._above(message, delegator)
        recipient = self._find_agent(next_up)
        if recipient is None or next_up in {sender, delegator, self._table.operator}:
            return
        try:
            escalate(self._parts, recipient, message, rejection, attempts=attempts)
        except KeyringError as error:
            get_logger().error("escalation-not-signed", agent=next_up, error=str(error))

    def _above(self, message: AgentMessage, delegator: str | None) -> str:
        """The next one up from the sender of a message."""
        sender = message.header.sender
        record = self._find_agent(sender.agent_name)
        return above(
            sender.agent_name,
            role=record.role if record else sender.agent_role,
            escalates_to=record.escalates_to if record else "",
            delegator=delegator,
            table=self._table,
            exists=lambda name: self._find_agent(name) is not None,
        )

    def _reports(self, rejection: Rejection, *, attempts: int, exhausted: bool) -> list[Outgoing]:
        message = rejection.message
        # A report about a report could go on for ever; an unverified sender gets no report.
        if message is None or not rejection.trusted or message.body.type == "error":
            return []
        sender = message.header.sender.agent_name
        recipients = [sender]
        if exhausted:
            recipients.append(self._above(message, self._delegator(message)))
        try:
            return [
                self._report(message, rejection, recipient=recipient, attempts=attempts)
                for recipient in dict.fromkeys(recipients)
            ]
        except KeyringError as error:
            get_logger().error("report-not-signed", error=str(error))
            return []

    def _report(
        self, message: AgentMessage, rejection: Rejection, *, recipient: str, attempts: int
    ) -> Outgoing:
        header = message.header
        tries = f" after {attempts} attempts" if attempts > 1 else ""
        return self._message_factory.error(
            sender=ROUTER,
            recipient=recipient,
            thread=Thread(
                correlation=message.conversation_id, chain=(header.message_id, *header.conversation_chain)
            ),
            error=ErrorReport(
                message=f"{message.body.type} {header.message_id} from {header.sender.agent_name} to "
                f"{header.recipient.agent_name} was not accepted{tries}: {rejection.reason}",
                error_type=_ERROR_TYPES.get(rejection.rule, "validation-error"),
                severity="critical" if message.body.type in SESSION_STARTING else "warning",
                recommended_action="retry" if rejection.retryable else "escalate",
            ),
            details=json.dumps({"rule": rejection.rule, "attempts": attempts}),
        )

    def _delegator(self, message: AgentMessage) -> str | None:
        """Return who gave the sender its task, its session's parent or a program, as far as the conversation is
        known.
        """
        sender = message.header.sender.agent_name
        for session in self._ledger.find(
            self._launched(message, message.header.conversation_chain[:NEAREST])
        ):
            if session.agent == sender:
                parent = self._ledger.find([session.parent]) if session.parent else []
                return parent[0].agent if parent else session.delegator or None
        return None

    def _launched(self, message: AgentMessage, references: Sequence[str]) -> list[str]:
        return launched(self._redis, self._shards, message.conversation_id, references)


def _launch(entry: Entry, message: AgentMessage) -> tuple[str, str] | None:
    """Return session and message-id of the launch in a message; None if it is no launch."""
    session = launched_task(entry, message.body) if message.body.type in SESSION_STARTING else ""
    return (session, message.header.message_id.lower()) if is_session_id(session) else None


def _named_launch(entry: Entry) -> tuple[str, str] | None:
    """The same of an entry that cannot be parsed, or ends the process that parses it: enough to compare with."""
    if entry.stream.type not in SESSION_STARTING or entry.data is None:
        return None
    session, message = _SESSION.search(entry.data), _MESSAGE_ID.search(entry.data)
    if session is None or message is None:
        return None
    return session[1].decode(), message[1].decode().lower()

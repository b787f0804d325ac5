"""What happens to a message that is not acted upon: dead letter, report, and the failure of what it would have begun."""

from __future__ import annotations

import re

from orchestrator.envelope.bodies import TaskDelegation
from orchestrator.errors import KeyringError, UnknownSession
from orchestrator.ids import is_session_id
from orchestrator.ledger import Ledger, Outgoing
from orchestrator.letters import ErrorType, Letters, Thread
from orchestrator.log import get_logger
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.deadletters import dead_letter_fields
from orchestrator.router.letter import Rejection
from orchestrator.streams import ROUTER_GROUP, Entry, StreamId, stream_key

#: The name under which the router speaks.
ROUTER = "router"

_SESSION = re.compile(rb"<task-id>\s*(ses_[0-9a-f]{26})\s*</task-id>")
_MESSAGE_ID = re.compile(rb"<message-id>\s*([0-9a-fA-F-]{36})\s*</message-id>")
_ERROR_TYPES: dict[str, ErrorType] = {"timeout": "timeout", "dependency-failed": "blocked"}


class Undelivered:
    """Gives messages up, for good."""

    def __init__(self, ledger: Ledger, letters: Letters) -> None:
        self._ledger = ledger
        self._letters = letters
        self._scripts = Scripts(ledger.redis)

    def bury(self, entry: Entry, rejection: Rejection) -> str | None:
        """Make an entry a dead letter, fail the session it would have started, tell the sender.

        Harmless to repeat: every step is carried out once. Returns the dead letter's id, or None when
        another router was first.
        """
        # First the session: if this process dies here, the entry is still pending and all of it comes again.
        self._refuse_session(entry, rejection)
        report = self._report(rejection)
        reports = StreamId(entry.stream.shard, "error", report.priority if report else "critical")
        answer = self._scripts.run(
            "route_dead",
            [
                stream_key(entry.stream),
                keys.dead(entry.stream.shard),
                stream_key(reports),
                keys.totals(entry.stream.shard),
            ],
            [
                ROUTER_GROUP,
                entry.id,
                report.data if report else "",
                *dead_letter_fields(entry, rejection),
            ],
        )
        get_logger().warning(
            "message-dead",
            stream=str(entry.stream),
            entry=entry.id,
            rule=rejection.rule,
            reason=rejection.reason,
        )
        return f"{entry.stream.shard:02x}-{answer.decode()}" if answer else None

    def _refuse_session(self, entry: Entry, rejection: Rejection) -> None:
        launch = _named_launch(entry) if rejection.rule == "poison" else _launch(rejection)
        if launch is None:
            return
        session_id, message_id = launch
        try:
            session = self._ledger.session(session_id)
        except UnknownSession:
            return
        # Only the launch itself ends with its refusal, not any message that names the session.
        if session.message.lower() == message_id:
            self._ledger.refuse(session.id, f"{rejection.rule}: {rejection.reason}")

    def _report(self, rejection: Rejection) -> Outgoing | None:
        message = rejection.message
        # A report about a report could go on for ever; a name that nobody vouched for is told nothing.
        if message is None or not rejection.trusted or message.body.type == "error":
            return None
        header = message.header
        chain = (header.message_id, *header.conversation_chain)
        try:
            return self._letters.error(
                sender=ROUTER,
                recipient=header.sender.agent_name,
                message=f"message {header.message_id} to {header.recipient.agent_name} was not accepted: "
                f"{rejection.reason}",
                thread=Thread(correlation=message.conversation_id, chain=chain),
                error_type=_ERROR_TYPES.get(rejection.rule, "validation-error"),
                details=f'{{"rule": "{rejection.rule}"}}',
            )
        except KeyringError as error:
            get_logger().error("report-not-signed", error=str(error))
            return None


def _launch(rejection: Rejection) -> tuple[str, str] | None:
    """Session and message-id of the launch that a rejected message is, or None."""
    message = rejection.message
    if message is None or not rejection.trusted or not isinstance(message.body, TaskDelegation):
        return None
    task_id = message.body.task.task_id
    return (task_id, message.header.message_id.lower()) if is_session_id(task_id) else None


def _named_launch(entry: Entry) -> tuple[str, str] | None:
    """The same of an entry that kills whoever parses it: read without a parser, good enough to compare with."""
    if entry.stream.type != "task-delegation" or entry.data is None:
        return None
    session, message = _SESSION.search(entry.data), _MESSAGE_ID.search(entry.data)
    if session is None or message is None:
        return None
    return session[1].decode(), message[1].decode().lower()

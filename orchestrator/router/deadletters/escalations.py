"""Escalation of a message that was given up: a session of the agent at the end of the escalation path.

All messages of one conversation go to one session, so that a storm of dead letters makes one session.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from orchestrator.agents.registry import ROUTER, AgentRecord, system_record
from orchestrator.envelope.model import AgentMessage
from orchestrator.errors import KeyringError, UnknownSession, WrongState
from orchestrator.ids import derived_uuid, item_id, root_session_id
from orchestrator.ledger import Ledger
from orchestrator.log import get_logger
from orchestrator.messages.factory import MessageFactory, Thread
from orchestrator.policy.authorisation import refusal
from orchestrator.policy.guarded_tags import defuse
from orchestrator.policy.routing import RoutingTable
from orchestrator.router.received import Rejection

#: Characters of a prompt that a dead letter makes.
_LONGEST: Final = 4_000


class Escalations:
    """Starts sessions for messages that were given up."""

    def __init__(
        self,
        ledger: Ledger,
        message_factory: MessageFactory,
        *,
        table: RoutingTable,
        find_agent: Callable[[str], AgentRecord | None],
        shards: int,
    ) -> None:
        self._ledger = ledger
        self._message_factory = message_factory
        self._table = table
        self._find_agent = find_agent
        self._shards = shards

    def raise_to(
        self, name: str, message: AgentMessage, rejection: Rejection, *, attempts: int
    ) -> str | None:
        """Have an agent look at a message that was given up; returns its session, or None: the agent cannot.

        Harmless to repeat: the session and the item in its queue derive from the conversation and the message.
        """
        record = self._find_agent(name)
        if record is None or record.external or record.system or message.header.sender.agent_name == name:
            return None
        kind = "escalation" if name == self._table.tech_lead else "task-delegation"
        if refusal(kind, system_record(ROUTER).principal, record.principal, self._table) is not None:
            return None
        try:
            return self._raise(name, message, rejection, attempts=attempts, kind=kind)
        except KeyringError as error:
            get_logger().error("escalation-not-signed", agent=name, error=str(error))
            return None

    def _raise(
        self, name: str, message: AgentMessage, rejection: Rejection, *, attempts: int, kind: str
    ) -> str:
        header, conversation = message.header, message.conversation_id
        session = root_session_id(f"escalated|{name}|{conversation}", self._shards)
        thread = Thread(correlation=derived_uuid("conversation", session))
        title = f"{message.body.type} from {header.sender.agent_name} was not accepted"
        prompt = _prompt(message, rejection, attempts=attempts)
        if kind == "escalation":
            outgoing = self._message_factory.escalation(
                sender=ROUTER,
                recipient=name,
                task_id=session,
                escalated=header.message_id,
                title=title,
                description=prompt,
                reason="timeout" if rejection.rule in {"timeout", "expired"} else "validation-error",
                thread=thread,
            )
        else:
            outgoing = self._message_factory.delegation(
                sender=ROUTER, recipient=name, task_id=session, title=title, description=prompt, thread=thread
            )
        made = self._ledger.submit(
            session,
            agent=name,
            prompt=prompt,
            envelope=outgoing,
            correlation=thread.correlation,
            title=title,
        )
        if made.other_prompt:  # something of this conversation was escalated before
            try:
                self._ledger.enqueue(
                    session,
                    prompt,
                    item_id=item_id(session, f"escalated|{header.message_id.lower()}"),
                    kind="error",
                    priority="critical",
                    extra={"agent": ROUTER, "title": title},
                    by=ROUTER,
                )
            except (UnknownSession, WrongState) as error:
                get_logger().warning("escalation-not-heard", session=session, error=str(error))
        return session


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

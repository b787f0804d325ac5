"""Escalation of a message that was given up: a session of the agent at the end of the escalation path.

All messages of one conversation go to one session, so that a storm of dead letters makes one session.
"""

from __future__ import annotations

import json
from typing import Final

from orchestrator.agents.registry import ROUTER, AgentRecord, system_record
from orchestrator.envelope.model import AgentMessage
from orchestrator.errors import UnknownSession, WrongState
from orchestrator.ids import derived_uuid, item_id, root_session_id
from orchestrator.ledger import Ledger
from orchestrator.log import get_logger
from orchestrator.messages.factory import MessageFactory, Thread
from orchestrator.policy.guarded_tags import defuse
from orchestrator.policy.routing import RoutingTable, refusal
from orchestrator.router.received import Rejection

#: Characters of a prompt that a dead letter makes.
_LONGEST: Final = 4_000


def escalate(
    ledger: Ledger,
    message_factory: MessageFactory,
    recipient: AgentRecord,
    message: AgentMessage,
    rejection: Rejection,
    *,
    attempts: int,
    table: RoutingTable,
    shards: int,
) -> None:
    """Have an agent look at a message that was given up, if the router may give it work.

    Harmless to repeat: the session and the item in its queue derive from the conversation and the message.

    Raises:
        KeyringError: the router cannot sign.
    """
    kind = "escalation" if recipient.name == table.tech_lead else "task-delegation"
    if recipient.external or recipient.system:
        return
    if refusal(kind, system_record(ROUTER).principal, recipient.principal, table) is not None:
        return
    header, conversation = message.header, message.conversation_id
    session = root_session_id(f"escalated|{recipient.name}|{conversation}", shards)
    thread = Thread(correlation=derived_uuid("conversation", session))
    title = f"{message.body.type} from {header.sender.agent_name} was not accepted"
    prompt = _prompt(message, rejection, attempts=attempts)
    if kind == "escalation":
        outgoing = message_factory.escalation(
            sender=ROUTER,
            recipient=recipient.name,
            task_id=session,
            escalated=header.message_id,
            title=title,
            description=prompt,
            reason="timeout" if rejection.rule in {"timeout", "expired"} else "validation-error",
            thread=thread,
        )
    else:
        outgoing = message_factory.delegation(
            sender=ROUTER,
            recipient=recipient.name,
            task_id=session,
            title=title,
            description=prompt,
            thread=thread,
        )
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

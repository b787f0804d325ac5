"""A message as anybody may send it."""

from __future__ import annotations

from orchestrator.envelope.bodies import Message
from orchestrator.envelope.model import AgentMessage, Header, Party
from orchestrator.envelope.model_values import Timestamp
from orchestrator.ids import new_message_id

NOW_MS = 1_700_000_000_000


def message(
    content: str = "hello",
    *,
    sender: str = "lead",
    recipient: str = "reviewer",
    at_ms: int = NOW_MS,
    message_id: str | None = None,
) -> AgentMessage:
    """What a coordinator says to a specialist."""
    return AgentMessage(
        header=Header(
            message_id=message_id or new_message_id(),
            timestamp=Timestamp.from_ms(at_ms),
            sender=Party(agent_name=sender, agent_role="coordinator"),
            recipient=Party(agent_name=recipient, agent_role="specialist"),
        ),
        body=Message(content=content),
    )

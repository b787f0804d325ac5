"""The model of an envelope: frozen, typed, and without loss from and to XML (see ``codec``).

Whatever the rules of layer 2 say, a model that could be built keeps already.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from orchestrator.envelope.message_types import ClearBody
from orchestrator.envelope.model_values import (
    AgentRole,
    BackoffStrategy,
    Base64,
    Moment,
    Name,
    Numbered,
    Part,
    PositiveCount,
    Priority,
    SignatureAlgorithm,
    Tier,
    Traceparent,
    Uuid4,
)
from orchestrator.envelope.opaque import ClaimCheckBody, CompressedBody, EncryptedBody


class Party(Part):
    """The sender or the recipient of an envelope."""

    agent_name: Name
    agent_role: AgentRole
    tier: Tier | None = None


class RetryPolicy(Part):
    """Number and pace of attempts at delivery; the first attempt counts."""

    max_attempts: PositiveCount
    backoff_strategy: BackoffStrategy
    timeout_seconds: PositiveCount


class Header(Part):
    """Data for routing.

    ``conversation_chain`` holds message ids, the previous message first. What is None has a default:
    ``correlation_id`` the message's own id, ``priority`` and ``retry_policy`` what the routing table says for the
    type, ``expiration`` never, ``traceparent`` no trace; a session is named where the sender knows it.
    """

    message_id: Uuid4
    timestamp: Moment
    sender: Party
    recipient: Party
    correlation_id: Uuid4 | None = None
    conversation_chain: Annotated[tuple[Uuid4, ...], Numbered("message-ref")] = ()
    priority: Priority | None = None
    expiration: Moment | None = None
    retry_policy: RetryPolicy | None = None
    traceparent: Traceparent | None = None
    sender_session: Name | None = None
    recipient_session: Name | None = None

    @model_validator(mode="after")
    def _keeps_the_rules(self) -> Self:
        if self.expiration is not None and self.expiration.instant_ns <= self.timestamp.instant_ns:
            raise ValueError("expiration must be later than timestamp")
        refs = [ref.lower() for ref in self.conversation_chain]
        if len(set(refs)) != len(refs) or self.message_id.lower() in refs:
            raise ValueError("conversation_chain names a message twice, or the message itself")
        return self


class Signature(Part):
    """Signature of the envelope; covers all of it but ``signature_value`` itself."""

    algorithm: SignatureAlgorithm
    signer: Name
    timestamp: Moment
    public_key_id: Name
    signature_value: Base64


def _form(body: Any) -> str:
    """Return the form of a body in its message; `clear` if it can be read as it stands."""
    form = body.get("form") if isinstance(body, dict) else getattr(body, "form", None)
    return str(form or "clear")


Body = Annotated[
    Annotated[ClearBody, Field(discriminator="type"), Tag("clear")]
    | Annotated[EncryptedBody, Tag("encrypted")]
    | Annotated[CompressedBody, Tag("compressed")]
    | Annotated[ClaimCheckBody, Tag("claim-check")],
    Discriminator(_form),
]


class AgentMessage(Part):
    """An envelope."""

    version: Literal["1.0"] = "1.0"
    header: Header
    body: Body
    signature: Signature | None = None

    @property
    def conversation_id(self) -> str:
        """The conversation it belongs to, in lower case; its own id if it starts one."""
        return (self.header.correlation_id or self.header.message_id).lower()

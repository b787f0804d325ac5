"""The original of a replay: a message of a dead letter or of the trail, verified, and what it gives somebody to do."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.agents.registry import OPERATOR, system_record
from orchestrator.bootstrap import Container
from orchestrator.envelope.message_types import SESSION_STARTING, LaunchBody, task_id_of
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.opaque import EncryptedBody
from orchestrator.envelope.parse import ParseLimits
from orchestrator.envelope.sealing import Opener
from orchestrator.envelope.validate import check
from orchestrator.errors import DecryptionError, InvalidEnvelope, PayloadError, Unverified
from orchestrator.ids import is_session_id
from orchestrator.machine import Clock
from orchestrator.policy.routing import refusal
from orchestrator.router.received import Rejection
from orchestrator.router.validation.validator import Validator


@dataclass(frozen=True, kw_only=True)
class Original:
    """A message that is to be replayed, and why its sender is not known to have sent it: the rule, and a sentence."""

    message: AgentMessage
    fault: tuple[str, str] | None


class Originals:
    """Verifies messages that are to be replayed."""

    def __init__(self, parts: Container, *, clock: Clock, opener: Opener) -> None:
        self._parts = parts
        self._opener = opener
        self._validator = Validator(parts, clock)

    def verified(self, octets: bytes, what: str, *, sign_unverified: bool) -> Original:
        """Return the message in ``octets``, with the reason why its signature does not count now, if there is one.

        Raises:
            Unverified: it is not valid; or it does not verify and ``sign_unverified`` is false.
        """
        report = check(octets, limits=ParseLimits(size=self._parts.settings.max_message_bytes), advice=False)
        if report.message is None:
            first = next(finding for finding in report.findings if finding.severity == "error")
            raise Unverified(what, first.rule, first.sentence, "drop it, and have its sender send it again")
        digest = self._validator.digest(report.message, report, octets)
        fault = (digest.rule, digest.reason) if isinstance(digest, Rejection) else None
        if fault is not None and not sign_unverified:
            advice = "drop it; or read it, and sign it as the operator by --sign-unverified and its id"
            raise Unverified(what, *fault, advice)
        return Original(message=report.message, fault=fault)

    def own_launch(self, message: AgentMessage) -> LaunchBody | None:
        """Return the task in a message that the stack itself sent for a session of its own; else None.

        A program's message is none, whatever id it names: a replay would make it the operator's.
        """
        launch = self.launch(message)
        if launch is None or not is_session_id(task_id_of(launch)):
            return None
        known = self._parts.ledger.find([task_id_of(launch)])
        if known:
            # The launch that the ledger published, and not another message that names its session.
            return launch if known[0].message.lower() == message.header.message_id.lower() else None
        sender = self._parts.agents.get(message.header.sender.agent_name)
        recipient = self._parts.agents.get(message.header.recipient.agent_name)
        if sender is None or sender.external:
            return None
        if recipient is not None and refusal(
            message.body.type, sender.principal, recipient.principal, self._parts.routing
        ):
            return None
        return launch

    def launch(self, message: AgentMessage) -> LaunchBody | None:
        """Return the task that a message gives, or None."""
        if message.body.type not in SESSION_STARTING:
            return None
        try:
            body = self._opener.open(message).body
        except (PayloadError, DecryptionError, InvalidEnvelope):
            return None
        return body if isinstance(body, LaunchBody) else None

    def is_encrypted(self, message: AgentMessage) -> bool:
        try:
            return isinstance(self._opener.fetch(message).body, EncryptedBody)
        except (PayloadError, InvalidEnvelope):
            return True  # nobody can tell

    def operator_may_send(self, message: AgentMessage) -> bool:
        """Return True if the operator may send a message of that type to that recipient."""
        recipient = self._parts.agents.get(message.header.recipient.agent_name)
        return recipient is not None and not refusal(
            message.body.type, system_record(OPERATOR).principal, recipient.principal, self._parts.routing
        )

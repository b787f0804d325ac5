"""From the bytes of an entry to a message that may be acted upon, or a rejection that names its rule.

Layers 1 and 2 are about the envelope alone; the live rules here need no look into the ledger.
The verdict on any entry is a value; only Redis errors are raised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import Container
from orchestrator.display.text import counted
from orchestrator.envelope import codec, signature
from orchestrator.envelope.findings import Finding
from orchestrator.envelope.message_types import MESSAGE_TYPES, SESSION_STARTING
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.opaque import EncryptedBody, OpaqueBody
from orchestrator.envelope.parse import ParseLimits
from orchestrator.envelope.validate import Report, check
from orchestrator.errors import DecryptionError, InvalidEnvelope, PayloadError, SignatureError, UnknownAgent
from orchestrator.machine import Clock
from orchestrator.policy.routing import refusal
from orchestrator.router.received import ReceivedMessage, Rejection
from orchestrator.streams import Entry
from orchestrator.streams.values import OCTETS_FIELD

#: Rule → (whether trying again may help, what it demands).
RULES: Final[dict[str, tuple[bool, str]]] = {
    "no-envelope": (False, "An entry has the field `envelope` with the XML in it."),
    "stream-mismatch": (False, "A message stands in the stream of its own type and priority."),
    "outbox-sender": (False, "In the outbox of an external program stand its own messages only."),
    "shard": (
        False,
        "A message that gives somebody work stands in a stream of the shard that it belongs to.",
    ),
    "signature-missing": (False, "A message is signed, unless the settings make signatures optional."),
    "key-unknown": (True, "The signer's public key is registered."),
    "expired": (False, "A message is accepted before its expiration."),
    "too-old": (False, "A message is younger than duplicate marks are kept."),
    "from-the-future": (
        False,
        "A message is not dated later than clocks may differ, by when it was appended.",
    ),
    "sender-unknown": (True, "The sender is a registered agent or a part of the system."),
    "sender-role": (False, "The role that the sender claims is the one it is registered with."),
    "recipient-unknown": (True, "The recipient is a registered agent or a part of the system."),
    "unauthorised": (False, "The sender may send this type of message to this recipient."),
    "retry-limit": (False, "No more attempts are asked for than the system makes."),
    "payload": (
        False,
        "A sealed body can be opened: its parts are there, whole, and for a key that is here.",
    ),
    "duplicate": (False, "A message is acted upon once; another copy of it is acknowledged without effect."),
    "message-id": (False, "A sender gives each of its messages an id of its own."),
    "conversation-chain": (
        False,
        "A message with a chain names its conversation, and the chain ends at the first message of that.",
    ),
    "conversation-party": (
        True,
        "Who speaks in a conversation began it, or was given a task or a message in it.",
    ),
    "conversation-limit": (False, "A conversation has no more messages and no longer chains than allowed."),
    "task-id": (False, "A task-id belongs to one delegation of its conversation."),
    "session-unknown": (True, "A message about a session names one that this ledger has."),
    "session-pending": (True, "The session that a message reports the end of has begun."),
    "session-over": (False, "The session that a message is meant for can still take it."),
    "recipient-session": (True, "The conversation shows which session of the recipient is meant."),
    "dependency-cycle": (False, "Tasks do not wait for each other in a circle."),
    "dependency-failed": (False, "The tasks that a delegation waits for complete."),
    "dependency-outside": (
        False,
        "The tasks that a delegation waits for are of its own tree or conversation.",
    ),
    "timeout": (True, "An attempt is accepted within the timeout of its retry policy."),
    "poison": (False, "A message does not end the routers that handle it."),
    "internal-error": (True, "The router can handle the message."),
}

#: Milliseconds that the clocks of sender and router may differ.
CLOCK_SKEW_MS: Final = 300_000
#: Messages that the chain of one message may name.
MAX_CHAIN: Final = 1_000
#: Attempts that a header may ask for.
MAX_ATTEMPTS: Final = 100
#: Seconds that the detailed report on a refused message may take; it is made for those that are signed.
REPORT_S: Final = 0.2
#: Characters of a reason that are kept.
_LONGEST_REASON: Final = 2_000
#: Verdicts on who may send what to whom that are kept.
_REMEMBERED: Final = 10_000


class Validator:
    """Validates entries one by one."""

    def __init__(self, parts: Container, clock: Clock) -> None:
        settings = parts.settings
        self._recipients = parts.recipients
        self._opener = parts.opener
        self._keys = parts.keyring
        self._agents = parts.agents
        self._table = parts.routing
        self._clock = clock
        self._signatures_required = settings.signatures_required
        self._limits = ParseLimits(size=settings.max_message_bytes, detail_s=REPORT_S, findings=1)
        self._max_age_ms = round(settings.message_max_age_s * 1000)
        self._refusals: dict[tuple[str, str, str], tuple[AgentRecord, AgentRecord, str | None]] = {}

    def read(self, entry: Entry) -> Report | None:
        """Check one entry against layers 1 and 2; None: there is nothing to check."""
        if entry.data is None:
            return None
        return check(entry.data, limits=self._limits, advice=False, detailed=False)

    def judge(self, entry: Entry, report: Report | None) -> ReceivedMessage | Rejection:
        """Check what was read of an entry against the rules about its signature, sender, recipient and time."""
        if OCTETS_FIELD in entry.extra and entry.data is None:
            reason = (
                f"it had {entry.extra[OCTETS_FIELD]} bytes, more than the {self._limits.size} of a message "
                "(max_message_bytes); send large content compressed or in parts"
            )
            return Rejection(rule="size", reason=brief(reason))
        if entry.data is None or report is None:
            return reject("no-envelope", "the entry has no field `envelope`; append the XML under that name")
        message = report.message
        if message is None:
            finding = self._finding(entry.data, report)
            return Rejection(rule=finding.rule, reason=finding.sentence)
        header = message.header
        if message.body.type != entry.stream.type or header.priority not in (None, entry.stream.priority):
            return reject(
                "stream-mismatch",
                f"a {message.body.type} of priority {header.priority} stands in the stream of "
                f"{entry.stream.type} messages of priority {entry.stream.priority}; append it to its own",
                message,
            )
        if entry.origin and header.sender.agent_name != entry.origin:
            return reject(
                "outbox-sender",
                f"a message from {header.sender.agent_name!r} stood in the outbox of {entry.origin!r}; "
                "append to your own what you say yourself, and nothing else",
                message,
            )
        # Waiting for another attempt or a dependency makes a message old without any fault of its own.
        digest = self.digest(message, report, entry.data)
        if isinstance(digest, Rejection):
            return digest
        appended_ms = int(entry.id.partition("-")[0])
        fault = next(self.faults(message, waited=entry.waited, appended_ms=appended_ms), None)
        received = fault or self.decrypt_body(entry, message, digest)
        ahead_ms = header.timestamp.instant_ms - self._clock.now_ms()
        if isinstance(received, ReceivedMessage) and ahead_ms > 0:
            received = replace(received, ahead_ms=ahead_ms)
        recipient = self._agents.get(message.header.recipient.agent_name)
        if isinstance(received, ReceivedMessage) and recipient is not None and recipient.external:
            return replace(received, program=recipient.name)
        return received

    def _finding(self, octets: bytes, report: Report) -> Finding:
        """Return why layers 1 and 2 refuse a message: in detail if its signature holds, in short for a stranger."""
        if report.tree is not None:
            try:
                signature.verify(report.tree, self._keys)
            except SignatureError:
                pass
            else:
                report = check(octets, limits=self._limits, advice=False)
        return next(f for f in report.findings if f.severity == "error")

    def digest(self, message: AgentMessage, report: Report, octets: bytes) -> str | Rejection:
        """Return the digest of what the sender has signed, or why the signature does not count."""
        if not self._signatures_required and message.signature is None:
            return signature.digest_of(octets)
        try:
            return signature.verify(
                report.require_tree, self._keys, canonical_octets=report.octets, message=message
            ).digest
        except SignatureError as error:
            rule, reason = str(error.args[0]), brief(str(error))
            retryable = RULES.get(rule, (False, ""))[0]
            return Rejection(rule=rule, reason=reason, retryable=retryable, message=message)

    def too_old(self, message: AgentMessage) -> bool:
        """Return True if the message is older than duplicate marks are kept."""
        return message.header.timestamp.instant_ms < self._clock.now_ms() - self._max_age_ms

    def decrypt_body(self, entry: Entry, message: AgentMessage, digest: str) -> ReceivedMessage | Rejection:
        """The message with its body readable, if anything is to be done with it here.

        ``digest`` is that of what its sender signed.
        What is encrypted and need not be read here is not read, whatever keys there are: it is for its recipient.
        """
        body = message.body
        if not isinstance(body, OpaqueBody):
            return ReceivedMessage(entry, message, body, digest=digest)
        sender = self._agents.get(message.header.sender.agent_name)
        if entry.stream.type not in SESSION_STARTING and not (sender is not None and sender.external):
            return ReceivedMessage(
                entry, message, None, digest=digest
            )  # the ledger has it already, and it may be large
        try:
            fetched = self._opener.fetch(message)
            if (
                isinstance(fetched.body, EncryptedBody)
                and MESSAGE_TYPES[entry.stream.type].passed_on_encrypted
            ):
                fault = self._unanswerable(entry, message)
                if fault is not None:
                    return fault
                return ReceivedMessage(
                    entry, message, None, sealed=codec.encode(fetched).decode(), digest=digest
                )
            opened = self._opener.open(fetched).body
        except InvalidEnvelope as error:
            return reject("payload", f"the body is not valid: {error}", message)
        except (PayloadError, DecryptionError) as error:
            return reject("payload", str(error), message)
        assert not isinstance(opened, OpaqueBody)
        return ReceivedMessage(entry, message, opened, digest=digest)

    def _unanswerable(self, entry: Entry, message: AgentMessage) -> Rejection | None:
        """Return a rejection if the answer to an encrypted task could not be encrypted; else None."""
        sender = message.header.sender.agent_name
        if entry.stream.type not in SESSION_STARTING or self._recipients.can_encrypt_to(sender):
            return None
        return reject(
            "payload",
            f"the task is encrypted, and {sender!r} has no encryption key to encrypt the answer to; make one where it "
            f"runs: orchestra keys generate {sender} --use encrypt",
            message,
        )

    def faults(
        self, message: AgentMessage, *, waited: bool = False, appended_ms: int = 0
    ) -> Iterator[Rejection]:
        """Yield the rejections of a message by the rules about time, limits, sender and recipient, most important
        first.

        ``waited``: the message has been accepted once and waited since, which may make it old. ``appended_ms``: when
        the server appended it to its stream. A clock that was set back since does not make it a message from the
        future.
        """
        header = message.header
        now_ms = self._clock.now_ms()
        expires = header.expiration
        if expires is not None and expires.instant_ms <= now_ms:
            yield reject("expired", f"the message expired at {expires}; send a new one", message)
        if header.timestamp.instant_ms > max(now_ms, appended_ms) + CLOCK_SKEW_MS:
            yield reject(
                "from-the-future",
                f"the message is dated {header.timestamp}, ahead of this clock; set the clocks right",
                message,
            )
        if not waited and self.too_old(message):
            yield reject(
                "too-old",
                f"the message is dated {header.timestamp}; duplicates of it could no longer be recognised: "
                "send a new one",
                message,
            )
        if header.retry_policy is not None and header.retry_policy.max_attempts > MAX_ATTEMPTS:
            yield reject(
                "retry-limit",
                f"{header.retry_policy.max_attempts} attempts are asked for; ask for at most {MAX_ATTEMPTS}",
                message,
            )
        if len(header.conversation_chain) > MAX_CHAIN:
            yield reject(
                "conversation-limit",
                f"the chain names {counted(len(header.conversation_chain), 'message')}; at most {MAX_CHAIN} are allowed",
                message,
            )
        if header.conversation_chain and header.correlation_id is None:
            yield reject(
                "conversation-chain",
                "the chain names earlier messages, and no correlation-id says which conversation they are of; "
                "carry theirs on, or leave the chain out to begin a new conversation",
                message,
            )
        yield from self._faults_of_parties(message)

    def _faults_of_parties(self, message: AgentMessage) -> Iterator[Rejection]:
        header = message.header
        name, role = header.sender.agent_name, header.sender.agent_role
        sender = self._agents.get(name)
        if sender is None:
            yield reject(
                "sender-unknown", f"no agent {name!r} is registered; register it or start its worker", message
            )
        elif sender.role != role:
            yield reject(
                "sender-role", f"{name!r} is registered as a {sender.role} and claims to be a {role}", message
            )
        recipient = self._agents.get(header.recipient.agent_name)
        if recipient is None:
            yield reject(
                "recipient-unknown",
                f"no agent {header.recipient.agent_name!r} is registered "
                f"({UnknownAgent(header.recipient.agent_name, self._agents.names()).known}); start a worker that serves it",
                message,
            )
        if sender is None or recipient is None:
            return
        if recipient.system and message.body.type == "task-delegation":
            reason: str | None = (
                f"{recipient.name!r} is a part of the stack and takes no tasks: no worker serves it; "
                "name an agent, or send the operator an escalation or a message"
            )
        else:
            reason = self._refusal(message.body.type, sender, recipient)
        if reason is not None:
            yield reject("unauthorised", reason, message)

    def _refusal(self, message_type: str, sender: AgentRecord, recipient: AgentRecord) -> str | None:
        """The verdict of the policy, remembered for as long as the registry hands out the same records."""
        key = (message_type, sender.name, recipient.name)
        known = self._refusals.get(key)
        if known is not None and known[0] is sender and known[1] is recipient:
            return known[2]
        reason = refusal(message_type, sender.principal, recipient.principal, self._table)
        if len(self._refusals) >= _REMEMBERED:
            self._refusals.clear()
        self._refusals[key] = (sender, recipient, reason)
        return reason


def brief(reason: str) -> str:
    """A reason, cut: a quoted name may have megabytes."""
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"


def reject(rule: str, reason: str, message: AgentMessage | None = None) -> Rejection:
    """A rejection by a live rule; from the third on, the sender's signature had been verified."""
    untrusted = ("no-envelope", "stream-mismatch", "outbox-sender")
    return Rejection(
        rule=rule,
        reason=brief(reason),
        retryable=RULES[rule][0],
        message=message,
        trusted=message is not None and rule not in untrusted,
    )

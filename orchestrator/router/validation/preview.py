"""The router's verdict on a message that is in no stream yet: layer 3 for `orchestra message validate --online`.

It asks the same rules as the router and rehearses the same step, up to its first write: no mark, no count, no session.
What may change until the message comes is left to the router: the tasks that it waits for, and how long it stands there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lxml import etree

from orchestrator.bootstrap import Container
from orchestrator.envelope.findings import VALUE_LIMIT, Finding, line_of, path_of
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.envelope.validate import Report
from orchestrator.machine import Clock
from orchestrator.redisdb import keys
from orchestrator.redisdb.raw_pipeline import ServerClock
from orchestrator.router.build import build_execution
from orchestrator.router.commands import CommandOutcome, message_id_taken
from orchestrator.router.received import Rejection, shard_of_message
from orchestrator.router.validation.validator import Validator, reject
from orchestrator.runtime.service import shared_keys_of
from orchestrator.streams import Entry, StreamId

#: Rule → the element that it is about; any other rule is about the message as a whole.
_PLACES: Final = {
    "expired": "header/expiration",
    "too-old": "header/timestamp",
    "from-the-future": "header/timestamp",
    "sender-unknown": "header/sender/agent-name",
    "sender-role": "header/sender/agent-role",
    "recipient-unknown": "header/recipient/agent-name",
    "unauthorised": "header/recipient/agent-name",
    "retry-limit": "header/retry-policy/max-attempts",
    "duplicate": "header/message-id",
    "message-id": "header/message-id",
    "conversation-chain": "header/conversation-chain",
    "conversation-party": "header/correlation-id",
    "conversation-limit": "header/conversation-chain",
    "recipient-session": "header/conversation-chain",
    "payload": "body",
    "task-id": "body/*/task-id",
    "session-unknown": "body//task-id",
    "signer-sender": "signature/signer",
    "key-owner": "signature/signer",
    "signature-algorithm": "signature/algorithm",
    "key-unknown": "signature/public-key-id",
    "key-not-certified": "signature/public-key-id",
    "key-revoked": "signature/public-key-id",
    "key-too-young": "signature/timestamp",
    "key-retired": "signature/timestamp",
    "signature-invalid": "signature/signature-value",
}


class Preview:
    """Applies the live rules to messages from files. Safe to use as often as wanted."""

    def __init__(self, parts: Container, *, clock: Clock | None = None) -> None:
        self._parts = parts
        self._validator = Validator(parts, clock or ServerClock(parts.redis))
        self._execution = build_execution(parts, shared_keys_of(parts.redis, parts.settings))
        parts.ledger.attest = None  # nothing is written, and no key is made for it

    def findings(self, octets: bytes, report: Report) -> list[Finding]:
        """Every live rule that a message breaks now, if layers 1 and 2 have passed it.

        Raises:
            redis.RedisError: the server does not answer.
        """
        message, root = report.message, report.tree
        if message is None or root is None:
            return []
        return [_finding(rejection, root) for rejection in self._rejections(message, report, octets)]

    def _rejections(self, message: AgentMessage, report: Report, octets: bytes) -> Iterator[Rejection]:
        digest = self._validator.digest(message, report, octets)
        if isinstance(digest, Rejection):
            yield digest
            digest = ""
        faults = list(self._validator.faults(message))
        yield from faults
        priority = message.header.priority or self._parts.routing[message.body.type].priority
        shard = shard_of_message(message, self._parts.settings.shards)
        received = self._validator.decrypt_body(
            Entry(StreamId(shard, message.body.type, priority), "0-0", octets, {}), message, digest
        )
        if isinstance(received, Rejection):
            yield received
            return
        mark: Any = self._parts.redis.get(keys.seen(shard, received.sender, received.id))
        if mark is not None:
            of = mark.decode().partition(" ")[2]
            if of and received.digest and of != received.digest:
                yield from _of(message_id_taken(received))
            else:
                reason = f"message {received.id} was acted upon already; give a new message an id of its own"
                yield reject("duplicate", reason, message)
            return
        if not faults:
            yield from _of(self._execution.foretell(received))


def _of(outcome: CommandOutcome) -> Iterator[Rejection]:
    if outcome.rejection is not None:
        yield outcome.rejection


def _finding(rejection: Rejection, root: etree._Element) -> Finding:
    """A rejection with the place in the document that it is about."""
    steps = _PLACES.get(rejection.rule, ".").split("/")
    path = "/".join(step if step in {"", ".", "*"} else f"{{{NAMESPACE}}}{step}" for step in steps)
    element = root.find(path)
    if element is None:
        element = root
    value = element.text if len(element) == 0 else None
    if value is not None and len(value) > VALUE_LIMIT:
        value = value[:VALUE_LIMIT] + "…"
    return Finding(rejection.rule, "error", line_of(element), path_of(element), value, rejection.reason)

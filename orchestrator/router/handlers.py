"""Handlers of the router, one for each type of message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import redis

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.message_types import SESSION_STARTING, LaunchBody
from orchestrator.ids import is_session_id, shard_of
from orchestrator.ledger import Ledger
from orchestrator.messages.factory import MessageFactory
from orchestrator.policy.routing import RoutingTable
from orchestrator.router.commands import Batched, ConversationLimits, Resolved, Step, task_unknown
from orchestrator.router.external import ExternalLaunches, ExternalMessages
from orchestrator.router.received import ReceivedMessage
from orchestrator.router.session_resolver import SessionResolver


class Handlers:
    """Chooses the step for a message: a start, an external program's message, or only its mark."""

    def __init__(
        self,
        client: redis.Redis,
        ledger: Ledger,
        *,
        find_agent: Callable[[str], AgentRecord | None],
        table: RoutingTable,
        limits: ConversationLimits,
        shards: int,
        message_factory: MessageFactory,
    ) -> None:
        self._ledger = ledger
        self._resolver = SessionResolver(client, ledger)
        self._launches = ExternalLaunches(
            client, ledger, self._resolver, table=table, limits=limits, shards=shards
        )
        self._messages = ExternalMessages(
            ledger, self._resolver, limits=limits, message_factory=message_factory
        )
        self._find_agent = find_agent
        self._limits = limits
        self._operator = table.operator

    def prepare(self, messages: Sequence[ReceivedMessage]) -> None:
        """Look up at once what the following steps need to know; most messages need nothing."""
        self._resolver.load([received for received in messages if self._needs_resolver(received)])

    def _needs_resolver(self, received: ReceivedMessage) -> bool:
        if received.type in SESSION_STARTING:
            return not is_session_id(received.task_id)
        return self._is_external(received)

    def act(self, received: ReceivedMessage) -> Step:
        """The step that carries the message out."""
        body = received.body
        if received.type == "escalation" and received.recipient == self._operator:
            return Batched.ACK_ONLY  # for people to see: there is nobody to start
        if received.type in SESSION_STARTING:
            assert body is None or isinstance(body, LaunchBody)
            task_id = received.task_id
            if is_session_id(task_id):
                # In a stream of another shard it is a copy that somebody put there.
                here = shard_of(task_id) == received.entry.stream.shard
                return Batched.START_RUN if here else Resolved(task_unknown(task_id, received))
            return self._launches.launch(received, body)
        return self._messages.handle(received) if self._is_external(received) else Batched.ACK_ONLY

    def _is_external(self, received: ReceivedMessage) -> bool:
        """Return True if the sender is an external program, whose messages are not in the ledger yet."""
        sender = self._find_agent(received.sender)
        return sender is not None and sender.external

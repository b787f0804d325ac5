"""Execution: the steps of a round's messages, sent to the server together, and the outcome of each message."""

from __future__ import annotations

from collections.abc import Sequence

import redis

from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.ledger import Ledger
from orchestrator.redisdb import keys
from orchestrator.redisdb.all_keys import SharedKeys
from orchestrator.redisdb.client import refuses_everything
from orchestrator.redisdb.scripts import request, would_write
from orchestrator.router.batching import BatchedCommand, Marking, Starting
from orchestrator.router.commands import DONE, Batched, CommandOutcome, Resolved, ScriptCommand, failed
from orchestrator.router.handlers import Handlers
from orchestrator.router.received import ReceivedMessage
from orchestrator.streams import ROUTER_GROUP, StreamId


class Execution:
    """Carries messages out, as many as there are in one round trip."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        handlers: Handlers,
        starting: Starting,
        marking: Marking,
        most_in_inbox: int,
        shared: SharedKeys,
    ) -> None:
        """``most_in_inbox`` is how many messages the inbox of an external program holds; then the oldest leave it."""
        self._ledger = ledger
        self._shared = shared
        self._most_in_inbox = most_in_inbox
        self._handlers = handlers
        self._marking = marking
        self._batched: dict[Batched, BatchedCommand] = {
            Batched.START_RUN: starting,
            Batched.ACK_ONLY: marking,
        }

    def carry_out(self, messages: Sequence[ReceivedMessage]) -> list[CommandOutcome]:
        """The outcome of each message. All steps go in one round trip.

        A message that follows upon a launch in the same round goes in a second round trip, after the launch.

        Raises:
            redis.RedisError: no fault of a message's: the server is away, refuses everything, or a shared key was
                overwritten. Some of them may have been carried out.
        """
        outcomes: list[CommandOutcome] = []
        while messages:
            now, messages = _independent(messages)
            outcomes += self._at_once(now)
        return outcomes

    def foretell(self, received: ReceivedMessage) -> CommandOutcome:
        """The outcome of a message if it were carried out now; nothing is changed.

        Raises:
            redis.RedisError: as :meth:`carry_out`.
        """
        self._handlers.prepare([received])
        step = self._handlers.act(received)
        if isinstance(step, Resolved):
            return step.outcome
        if isinstance(step, Batched):
            command = self._batched[step]
            names, args = command.call(received.entry.stream.shard, [received])
            step = ScriptCommand(
                script=command.script,
                keys=names,
                args=args,
                read=lambda answer: command.read(answer, [received])[0],
            )
        batch = self._ledger.batch()
        batch.rehearse(step.script, step.keys, step.args)
        (answer,) = batch.execute()
        if would_write(answer):
            return DONE
        return self._fault(answer, step.script, received) or step.read(answer)

    def _at_once(self, messages: Sequence[ReceivedMessage]) -> list[CommandOutcome]:
        batch = self._ledger.batch()
        self._handlers.prepare(messages)
        outcomes: dict[tuple[StreamId, str], CommandOutcome] = {}
        together: dict[Batched, list[ReceivedMessage]] = {kind: [] for kind in self._batched}
        commands: list[tuple[int, ReceivedMessage, ScriptCommand]] = []
        for received in messages:
            match self._handlers.act(received):
                case ScriptCommand() as step:
                    batch.script(step.script, step.keys, step.args)
                    commands.append((len(batch) - 1, received, step))
                case Batched() as kind:
                    together[kind].append(received)
                case Resolved(outcome):
                    outcomes[received.place] = outcome
        calls = [
            (command, *call)
            for kind, command in self._batched.items()
            for call in command.add(batch, together[kind])
        ]
        answers = batch.execute()
        for place, received, act in commands:
            fault = self._fault(answers[place], act.script, received)
            outcomes[received.place] = fault or act.read(answers[place])
        for command, place, part in calls:
            answer = answers[place]
            faults = [fault for received in part if (fault := self._fault(answer, command.script, received))]
            for received, outcome in zip(part, faults or command.read(answer, part), strict=True):
                outcomes[received.place] = outcome
        self._deliver([received for received in messages if received.program], outcomes)
        return [outcomes[received.place] for received in messages]

    def _deliver(
        self, messages: Sequence[ReceivedMessage], outcomes: dict[tuple[StreamId, str], CommandOutcome]
    ) -> None:
        """Put what was carried out into the inboxes of its programs, in one step with the acknowledgement."""
        done = [received for received in messages if outcomes[received.place].kind != "rejected"]
        if not done:
            return
        batch = self._ledger.batch()
        for received in done:
            batch.script(
                "route_inbox",
                [keys.inbox(received.entry.stream.shard, received.program)],
                [
                    request(
                        mark={**self._marking.limits.mark(received), "group": ROUTER_GROUP},
                        program=received.program,
                        most=self._most_in_inbox,
                    ),
                    received.entry.data or b"",
                ],
            )
        for received, answer in zip(done, batch.execute(), strict=True):
            if fault := self._fault(answer, "route_inbox", received):
                outcomes[received.place] = fault

    def _fault(self, answer: object, script: str, received: ReceivedMessage) -> CommandOutcome | None:
        """Map a failed script call to an outcome; None on success."""
        if not isinstance(answer, Exception):
            return None
        if (
            not isinstance(answer, redis.ResponseError)
            or refuses_everything(answer)
            or self._shared.hinder(answer)
        ):
            raise answer  # no fault of the message's
        return failed(script, answer, received)


def _independent(
    messages: Sequence[ReceivedMessage],
) -> tuple[Sequence[ReceivedMessage], Sequence[ReceivedMessage]]:
    """The longest beginning in which no message follows upon a launch among them, and the rest."""
    launches: set[str] = set()
    for number, received in enumerate(messages):
        if launches and any(ref.lower() in launches for ref in received.message.header.conversation_chain):
            return messages[:number], messages[number:]
        if received.type in SESSION_STARTING:
            launches.add(received.id)
    return messages, []

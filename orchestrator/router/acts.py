"""What the router does with a letter of each type: one script call, and what its answer means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.envelope.bodies import TaskDelegation
from orchestrator.ids import is_session_id, run_id
from orchestrator.ledger import Dispatch, Ledger
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Arg
from orchestrator.router.conversations import Conversations
from orchestrator.router.intake import reject
from orchestrator.router.letter import Letter, Rejection
from orchestrator.streams import ROUTER_GROUP, stream_key


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one letter."""

    #: `done`, `duplicate`, or `rejected`.
    kind: str
    #: A run to send to a worker.
    dispatch: Dispatch | None = None
    rejection: Rejection | None = None


DONE = Outcome(kind="done")
DUPLICATE = Outcome(kind="duplicate")


def rejected(rule: str, reason: str, letter: Letter) -> Outcome:
    """The letter breaks a rule that only the ledger could tell."""
    return Outcome(kind="rejected", rejection=reject(rule, reason, letter.message))


@dataclass(frozen=True, kw_only=True)
class Act:
    """One atomic step, and how to read its answer."""

    script: str
    keys: Sequence[str]
    args: Sequence[Arg]
    read: Callable[[Any], Outcome] = field(repr=False)
    #: Plain commands that go before it in the same round trip; harmless by themselves.
    before: Sequence[tuple[str | int, ...]] = ()


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds of the router's own books."""

    #: Milliseconds that a duplicate mark is kept at most.
    max_age_ms: int = 86_400_000
    #: Messages that one conversation may have; 0: any number.
    conversation_messages: int = 1_000_000


class Acts:
    """Makes the act for a letter."""

    def __init__(self, ledger: Ledger, conversations: Conversations, *, limits: Limits) -> None:
        self._ledger = ledger
        self._conversations = conversations
        self._limits = limits

    def act(self, letter: Letter) -> Act:
        """The step that carries the letter out."""
        body = letter.body
        if isinstance(body, TaskDelegation) and is_session_id(body.task.task_id):
            return self._start(letter, body.task.task_id)
        return self._done(letter)

    def mark_ms(self, letter: Letter) -> int:
        """Milliseconds that the letter's duplicate mark is kept: as long as a copy of it may be accepted."""
        dated = letter.message.header.timestamp.instant_ms
        age_ms = max(0, (letter.expires_ms or dated + self._limits.max_age_ms) - dated)
        return min(age_ms, self._limits.max_age_ms) + 600_000

    def _done(self, letter: Letter) -> Act:
        shard = letter.entry.stream.shard

        def read(answer: Any) -> Outcome:
            match answer:
                case b"done":
                    return DONE
                case b"duplicate":
                    return DUPLICATE
            return rejected(*self._conversation_fault(answer.decode(), letter), letter)

        return Act(
            script="route_done",
            keys=[
                stream_key(letter.entry.stream),
                keys.seen(shard, letter.id),
                keys.conversation(shard, letter.conversation),
            ],
            args=[
                ROUTER_GROUP,
                letter.entry.id,
                self.mark_ms(letter),
                letter.first,
                self._limits.conversation_messages,
                self._limits.max_age_ms,
            ],
            read=read,
        )

    def _start(self, letter: Letter, session: str) -> Act:
        call = self._ledger.start_args(
            session_id=session,
            run_id=run_id(session, 1),
            message_id=letter.id,
            stream=stream_key(letter.entry.stream),
            group=ROUTER_GROUP,
            entry=letter.entry.id,
            mark_ms=self.mark_ms(letter),
        )

        def read(answer: Any) -> Outcome:
            match answer[0]:
                case b"duplicate":
                    return DUPLICATE
                case b"unknown":
                    return rejected(
                        "session-unknown",
                        f"no session {session!r} is in this ledger; give the task an id of your own",
                        letter,
                    )
            return Outcome(kind="done", dispatch=self._ledger.started(session, answer))

        note = self._conversations.note(
            shard=letter.entry.stream.shard,
            conversation=letter.conversation,
            message_id=letter.id,
            session=session,
        )
        return Act(script="start", keys=call[0], args=call[1], read=read, before=note)

    def _conversation_fault(self, fault: str, letter: Letter) -> tuple[str, str]:
        if fault == "chain":
            reason = (
                f"the chain ends at {letter.first}, with which conversation {letter.conversation} did not begin; "
                "carry the whole chain on, or leave the correlation-id out to begin a new conversation"
            )
            return "conversation-chain", reason
        reason = (
            f"conversation {letter.conversation} has had {self._limits.conversation_messages} messages; "
            "begin a new one, or raise conversation_max_messages in the settings"
        )
        return "conversation-limit", reason

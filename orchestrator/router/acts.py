"""What the router does with a letter of each type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orchestrator.envelope.bodies import Escalation, ReviewRequest, TaskDelegation
from orchestrator.ids import is_session_id, run_id
from orchestrator.ledger import Ledger
from orchestrator.policy.routing import LAUNCHES
from orchestrator.redisdb import keys
from orchestrator.registry import AgentRecord
from orchestrator.router.conversations import Conversations
from orchestrator.router.foreign import ForeignActs
from orchestrator.router.letter import Letter, task_id_of
from orchestrator.router.steps import DONE, DUPLICATE, Act, Limits, Outcome, Settled, rejected
from orchestrator.streams import ROUTER_GROUP, stream_key


class Acts:
    """Makes the act for a letter: the ledger's own start, a foreign program's word, or nothing but the mark."""

    def __init__(
        self,
        ledger: Ledger,
        conversations: Conversations,
        foreign: ForeignActs,
        *,
        find_agent: Callable[[str], AgentRecord | None],
        limits: Limits,
    ) -> None:
        self._ledger = ledger
        self._conversations = conversations
        self._foreign = foreign
        self._find_agent = find_agent
        self._limits = limits

    def prepare(self, letters: Sequence[Letter]) -> None:
        """Look up at once what the following acts need to know; most letters need nothing."""
        self._foreign.prepare([letter for letter in letters if self._needs_directory(letter)])

    def _needs_directory(self, letter: Letter) -> bool:
        if letter.type in LAUNCHES:
            return not is_session_id(task_id_of(letter.body))
        return self._speaks_for_itself(letter)

    def act(self, letter: Letter) -> Act | Settled:
        """The step that carries the letter out, or its outcome when there is nothing to carry out."""
        body = letter.body
        if letter.type in LAUNCHES:
            assert body is None or isinstance(body, (TaskDelegation, ReviewRequest, Escalation))
            task_id = task_id_of(body)
            step = (
                self._start(letter, task_id) if is_session_id(task_id) else self._foreign.launch(letter, body)
            )
        elif self._speaks_for_itself(letter):
            step = self._foreign.word(letter)
        else:
            return self._done(letter)
        if isinstance(step, Settled) and step.outcome is DONE:
            return self._done(letter)
        return step

    def _speaks_for_itself(self, letter: Letter) -> bool:
        """Whether the sender is a program outside of the stack, whose word is all there is."""
        sender = self._find_agent(letter.sender)
        return sender is not None and sender.foreign

    def _done(self, letter: Letter) -> Act:
        shard = letter.entry.stream.shard

        def read(answer: Any) -> Outcome:
            match answer:
                case b"done":
                    return DONE
                case b"duplicate":
                    return DUPLICATE
            return self._limits.conversation_fault(answer.decode(), letter)

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
                self._limits.mark_ms(letter),
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
            mark_ms=self._limits.mark_ms(letter),
        )

        def read(answer: Any) -> Outcome:
            match answer[0]:
                case b"duplicate":
                    return DUPLICATE
                case b"unknown":
                    reason = f"no session {session!r} is in this ledger; give the task an id of your own"
                    return rejected("session-unknown", reason, letter)
            return Outcome(kind="done", dispatch=self._ledger.started(session, answer))

        return Act(
            script="start",
            keys=call[0],
            args=call[1],
            read=read,
            before=self._conversations.note(
                shard=letter.entry.stream.shard,
                conversation=letter.conversation,
                message_id=letter.id,
                session=session,
                agent=letter.recipient,
            ),
        )

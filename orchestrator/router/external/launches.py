"""Work that reaches us by message alone: the sessions that launches of foreign programs begin."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.agents.registry import SYSTEM_AGENTS
from orchestrator.envelope.bodies import Escalation, ReviewRequest, TaskDelegation
from orchestrator.envelope.prompt_text import prompt_of, title_of
from orchestrator.ids import callback_id, child_session_id, foreign_session_id, run_id, shard_of
from orchestrator.ledger import CLOSED, Dispatch, Ledger
from orchestrator.policy.routing import RoutingTable
from orchestrator.redisdb import keys
from orchestrator.router.commands import (
    DUPLICATE,
    NOTED,
    Act,
    Limits,
    Outcome,
    Settled,
    Step,
    message_id_taken,
    not_taking_part,
    rejected,
    task_taken,
    wrong_shard,
)
from orchestrator.router.external.session_messages import Mailbox
from orchestrator.router.received import SEALED_TITLE, Letter, shard_of_message, task_id_of
from orchestrator.router.session_resolver import Directory
from orchestrator.streams import stream_key

Launch = TaskDelegation | ReviewRequest | Escalation


class ForeignLaunches:
    """Makes the steps for launches that the ledger does not know yet."""

    def __init__(
        self,
        ledger: Ledger,
        directory: Directory,
        *,
        table: RoutingTable,
        limits: Limits,
        shards: int,
    ) -> None:
        self._ledger = ledger
        self._directory = directory
        self._mailbox = Mailbox(ledger, limits)
        self._table = table
        self._limits = limits
        self._shards = shards

    def launch(self, letter: Letter, body: Launch | None) -> Step:
        """Begin a session for the recipient: a root, or a child of the session that the sender runs.

        ``body`` is None if it is sealed: the recipient's worker opens it.
        """
        if letter.recipient == self._table.operator:
            return NOTED  # for people to see: there is nobody to start
        home = self._home(letter)
        if home != letter.entry.stream.shard:
            return Settled(wrong_shard(home, letter))
        if letter.type == "escalation":
            session = self._directory.latest(letter.recipient, letter)
            if session is not None and session.state not in CLOSED:
                if not self._directory.takes_part(letter, session):
                    return Settled(not_taking_part(letter))
                title, prompt = _title_and_prompt(letter, body)
                return self._mailbox.put(letter, session, None, text=prompt, kind="escalation", title=title)
        return self._begin(letter, body)

    def _home(self, letter: Letter) -> int:
        """The one shard in which the letter may begin something: that of the tree it speaks of, else its conversation's.

        In the streams of others it is a copy, and would begin as many sessions.
        """
        if self._shards == 1:
            return 0
        launched = self._directory.launched_anywhere(letter, self._shards)
        return shard_of(launched) if launched else shard_of_message(letter.message, self._shards)

    def _begin(self, letter: Letter, body: Launch | None) -> Act:
        shard = letter.entry.stream.shard
        parent = self._directory.by_chain(letter.sender, letter)
        if parent is not None:
            session = child_session_id(parent.id, f"message|{letter.id}")
        else:
            session = foreign_session_id(shard, letter.sender, letter.id)
        run = run_id(session, 1)
        above = parent.id if parent is not None else session
        root = parent.root if parent is not None else session
        title, prompt = _title_and_prompt(letter, body)
        # A task-id that cannot be read is as good as one of its own.
        task_id = task_id_of(body) or letter.id
        chain = [letter.id, *(ref.lower() for ref in letter.message.header.conversation_chain)]
        facts: dict[str, str] = {
            "agent": letter.recipient,
            "title": title,
            "task": "",
            "priority": letter.entry.stream.priority,
            "correlation": letter.conversation,
            "message": letter.id,
            "chain": json.dumps(chain),
            "delegator": letter.sender,
            "task_id": task_id,
            **({"sealed": "1"} if letter.sealed else {}),
        }

        def read(answer: Any) -> Outcome:
            match answer[0]:
                case b"started":
                    dispatch = Dispatch(
                        run=run,
                        session=session,
                        agent=letter.recipient,
                        cause="start",
                        ring=answer[4] == b"1",
                    )
                    return Outcome(kind="done", dispatch=dispatch)
                case b"other":
                    return message_id_taken(letter)
                case b"stranger":
                    return not_taking_part(letter)
                case b"duplicate":
                    return DUPLICATE
                case b"task":
                    return task_taken(task_id, answer[1].decode(), letter)
                case b"closed":
                    reason = (
                        f"the session it would belong to is {answer[1].decode()} and launches nothing more"
                    )
                    return rejected("session-over", reason, letter)
            return self._limits.conversation_fault(answer[0].decode(), letter)

        return Act(
            script="route_launch",
            keys=[
                keys.session(session),
                keys.bodies(session),
                keys.tree(root),
                keys.roots(shard),
                keys.runs(session),
                keys.run(run),
                keys.dispatch(shard),
                keys.seen(shard, letter.sender, letter.id),
                stream_key(letter.entry.stream),
                keys.conversation(shard, letter.conversation),
                keys.session(above),
                keys.items(above),
                keys.timers(shard),
                keys.ready(shard, letter.recipient),
                keys.turns(shard, letter.recipient),
            ],
            args=[
                "",
                session,
                run,
                letter.group,
                letter.entry.id,
                self._limits.mark_ms(letter),
                prompt,
                parent.id if parent is not None else "",
                callback_id(session),
                task_id,
                letter.first,
                self._limits.conversation_messages,
                self._limits.max_age_ms,
                self._ledger.limits.redispatch_ms,
                letter.digest,
                letter.id,
                letter.recipient,
                self._limits.review_due_ms(letter),
                "" if letter.sender in SYSTEM_AGENTS else letter.sender,
                "1" if letter.conversation == letter.id else "",
                *[part for pair in facts.items() for part in pair],
            ],
            read=read,
        )


def _title_and_prompt(letter: Letter, body: Launch | None) -> tuple[str, str]:
    """Title and prompt of what begins a session."""
    return (SEALED_TITLE, letter.sealed) if body is None else (title_of(body), prompt_of(body))

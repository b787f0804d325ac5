"""Letters that go into the queue of a session: questions, replies, messages, blockers and escalations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from orchestrator.agents.registry import ROUTER
from orchestrator.ids import item_id, question_id, reply_id
from orchestrator.ledger import Ledger, Session, layout
from orchestrator.redisdb import keys
from orchestrator.router.commands import (
    DONE,
    DUPLICATE,
    Act,
    Limits,
    Outcome,
    message_id_taken,
    rejected,
    session_unknown,
)
from orchestrator.router.received import Letter
from orchestrator.streams import stream_key


class Mailbox:
    """Makes the steps that put letters into the queues of sessions."""

    def __init__(self, ledger: Ledger, limits: Limits) -> None:
        self._ledger = ledger
        self._limits = limits

    def put(
        self,
        letter: Letter,
        session: Session,
        speaker: Session | None,
        *,
        text: str,
        kind: str,
        title: str,
        opens: bool = False,
        answers: str = "",
        priority: str = "",
        facts: Sequence[str | int] = (),
    ) -> Act:
        """The step that puts what a letter says into the queue of a session.

        Args:
            letter: the letter.
            session: whose queue it goes into.
            speaker: the session that says it, where that is to be known; or None.
            text: what is said.
            kind: the kind of the item.
            title: what people see of it.
            opens: it is a question of the speaker, which is open from now on.
            answers: the question of ``session`` that it answers; or empty.
            priority: by default that of the letter.
            facts: names and values, in turn, that are written down about the speaker.
        """
        opens = opens and speaker is not None
        record: dict[str, Any] = {
            "kind": kind,
            "priority": priority or letter.entry.stream.priority,
            "child": speaker.id if speaker is not None else "",
            "agent": letter.sender,
            "title": title,
            "status": "",
            "message": letter.id,
            **({"question": True} if opens else {}),
            **({"answers": answers} if answers else {}),
            **({"sealed": True} if letter.sealed else {}),
        }

        def read(answer: Any) -> Outcome:
            match answer[0]:
                case b"done":
                    return DONE
                case b"duplicate":
                    return DUPLICATE
                case b"other":
                    return message_id_taken(letter)
                case b"closed":
                    reason = f"session {session.id} is {answer[1].decode()} and takes nothing more"
                    return rejected("session-over", reason, letter)
                case b"answered":
                    return rejected(
                        "session-over", f"the question of session {session.id} has its reply", letter
                    )
            return session_unknown(letter)

        speaking = speaker.id if (opens or facts) and speaker is not None else session.id
        if answers:
            item = reply_id(answers)
        elif opens:
            item = question_id(speaking, f"message|{letter.sender}|{letter.id}")
        else:
            item = item_id(session.id, f"message|{letter.sender}|{letter.id}")
        # Who signed the letter is known here and nowhere later.
        record["proof"] = self._ledger.vouch_for_item(
            item, session.id, record, text, by=ROUTER, to=session.agent
        )
        return Act(
            script="route_put",
            keys=[
                *layout.mailbox(session.id, speaker=speaking, envelope=None),
                keys.seen(letter.entry.stream.shard, letter.sender, letter.id),
                stream_key(letter.entry.stream),
                keys.conversation(letter.entry.stream.shard, letter.conversation),
            ],
            args=[
                "",
                item,
                json.dumps(record),
                text,
                "1" if opens else "0",
                answers,
                letter.group,
                letter.entry.id,
                self._limits.mark_ms(letter),
                letter.digest,
                self._limits.max_age_ms,
                *facts,
            ],
            read=read,
        )

"""Messages that go into the queue of a session: questions, replies, messages, blockers and escalations."""

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
    CommandOutcome,
    ConversationLimits,
    ScriptCommand,
    message_id_taken,
    rejected,
    session_unknown,
)
from orchestrator.router.received import ReceivedMessage
from orchestrator.streams import stream_key


class SessionMessages:
    """Makes the steps that put messages into the queues of sessions."""

    def __init__(self, ledger: Ledger, limits: ConversationLimits) -> None:
        self._ledger = ledger
        self._limits = limits

    def put(
        self,
        received: ReceivedMessage,
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
        body: str = "",
    ) -> ScriptCommand:
        """The step that puts what a message says into the queue of a session.

        Args:
            message: the message.
            session: whose queue it goes into.
            speaker: the session that says it, where that is to be known; or None.
            text: what is said.
            kind: the kind of the item.
            title: what people see of it.
            opens: it is a question of the speaker, which is open from now on.
            answers: the question of ``session`` that it answers; or empty.
            priority: by default that of the message.
            facts: names and values, in turn, that are written down about the speaker.
            body: what the message says beside the text, as JSON.
        """
        opens = opens and speaker is not None
        record: dict[str, Any] = {
            "kind": kind,
            "priority": priority or received.entry.stream.priority,
            "child": speaker.id if speaker is not None else "",
            "agent": received.sender,
            "title": title,
            "status": "",
            "message": received.id,
            **({"question": True} if opens else {}),
            **({"answers": answers} if answers else {}),
            **({"body": body} if body else {}),
            **({"sealed": True} if received.sealed else {}),
        }

        def read(answer: Any) -> CommandOutcome:
            match answer[0]:
                case b"done":
                    return DONE
                case b"duplicate":
                    return DUPLICATE
                case b"other":
                    return message_id_taken(received)
                case b"closed":
                    reason = f"session {session.id} is {answer[1].decode()} and takes nothing more"
                    return rejected("session-over", reason, received)
                case b"answered":
                    return rejected(
                        "session-over", f"the question of session {session.id} has its reply", received
                    )
                case b"person":
                    reason = f"an approval of session {session.id} is given by a person: `orchestra approve`"
                    return rejected("unauthorised", reason, received)
            return session_unknown(received)

        speaking = speaker.id if (opens or facts) and speaker is not None else session.id
        if answers:
            item = reply_id(answers)
        elif opens:
            item = question_id(speaking, f"message|{received.sender}|{received.id}")
        else:
            item = item_id(session.id, f"message|{received.sender}|{received.id}")
        # Who signed the message is known here and nowhere later.
        record["proof"] = self._ledger.vouch_for_item(
            item, session.id, record, text, by=ROUTER, to=session.agent
        )
        return ScriptCommand(
            script="route_put",
            keys=[
                *layout.mailbox(session.id, speaker=speaking, envelope=None),
                keys.seen(received.entry.stream.shard, received.sender, received.id),
                stream_key(received.entry.stream),
                keys.conversation(received.entry.stream.shard, received.conversation),
            ],
            args=[
                "",
                item,
                json.dumps(record),
                text,
                "1" if opens else "0",
                answers,
                received.group,
                received.entry.id,
                self._limits.mark_ms(received),
                received.digest,
                self._limits.max_age_ms,
                *facts,
            ],
            read=read,
        )

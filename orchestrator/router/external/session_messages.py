"""Messages that go into the queue of a session: questions, replies, messages, blockers and escalations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.agents.registry import ROUTER
from orchestrator.ids import item_id, question_id, reply_id
from orchestrator.ledger import Ledger, Session, layout
from orchestrator.ledger.large_text import MAX_BESIDE_BYTES, beginning
from orchestrator.ledger.sealing import Seal
from orchestrator.router.commands import (
    CommandOutcome,
    ConversationLimits,
    ScriptCommand,
    outcome_of,
    rejected,
    session_unknown,
)
from orchestrator.router.received import ReceivedMessage


def seal_for(session: Session, reader: str) -> Seal | None:
    """Return the seal for an external program's message about or to a session; None if the session is not encrypted."""
    return Seal(label=session.root, by=ROUTER, to=(reader,)) if session.encrypted else None


class SessionMessages:
    """Makes the steps that put messages into the queues of sessions."""

    def __init__(self, ledger: Ledger, limits: ConversationLimits) -> None:
        self._ledger = ledger
        self._limits = limits

    def _as_kept(self, session: Session, record: dict[str, Any], text: str) -> tuple[dict[str, Any], str]:
        """Record and text as the ledger holds them: encrypted, if the session is and the sender has not done it."""
        seals = self._ledger.seals
        if "sealed" in record:
            return record, text
        seal = seal_for(session, session.agent)
        return seals.write_record(record, seal), seals.write(text, seal)

    def facts_as_kept(self, speaker: Session | None, facts: Sequence[str | int]) -> list[str | int]:
        """Names and values, in turn, as the ledger holds them."""
        seal = seal_for(speaker, speaker.delegator) if speaker is not None else None
        write = self._ledger.seals.write
        return [write(one, seal) if at % 2 and isinstance(one, str) else one for at, one in enumerate(facts)]

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
        """The step that puts a message into the queue of a session.

        Args:
            received: the message.
            session: the session whose queue it goes into.
            speaker: the session that sends it, if the ledger records that; or None.
            text: its text.
            kind: the kind of the item.
            title: what people see of it.
            opens: it is a question of the speaker, which is open from now on.
            answers: the question of ``session`` that it answers; or empty.
            priority: by default that of the message.
            facts: names and values, in turn, that are written down about the speaker.
            body: the parts of the message beside the text, as JSON.
        """
        opens = opens and speaker is not None
        record: dict[str, Any] = {
            "kind": kind,
            "priority": priority or received.entry.stream.priority,
            "child": speaker.id if speaker is not None else "",
            "agent": received.sender,
            "title": beginning(title, MAX_BESIDE_BYTES),
            "status": "",
            "message": received.id,
            **({"question": True} if opens else {}),
            **({"answers": answers} if answers else {}),
            **({"body": body} if body else {}),
            **({"sealed": True} if received.sealed else {}),
        }

        def read(answer: Any) -> CommandOutcome:
            if known := outcome_of(answer[0], received):
                return known
            match answer[0]:
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

        facts = self.facts_as_kept(speaker, facts)
        speaking = speaker.id if (opens or facts) and speaker is not None else session.id
        if answers:
            item = reply_id(answers)
        elif opens:
            item = question_id(speaking, f"message|{received.sender}|{received.id}")
        else:
            item = item_id(session.id, f"message|{received.sender}|{received.id}")
        record, text = self._as_kept(session, record, text)
        # Who signed the message is known here and nowhere later.
        record["proof"] = self._ledger.vouch_for_item(
            item, session.id, record, text, by=ROUTER, to=session.agent
        )
        names, args = layout.post(
            session.id,
            text,
            *facts,
            id=item,
            record=record,
            speaker=speaking,
            opens=speaking if opens else "",
            answers=answers,
            mark=self._limits.mark(received),
        )
        return ScriptCommand(script="post", keys=names, args=args, read=read)

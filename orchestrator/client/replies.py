"""How a user answers an agent's question: once, wherever the session that was asked is at that moment."""

from __future__ import annotations

from orchestrator.agents.registry import OPERATOR
from orchestrator.bootstrap import Container
from orchestrator.errors import WrongState
from orchestrator.ids import reply_id
from orchestrator.messages.factory import Thread


def answer_question(parts: Container, asker: str, question: str, text: str) -> None:
    """Put a reply of the operator into the queue of the session that asked.

    Whoever was asked is not bothered with the question any more, unless it is being read already.

    Raises:
        UnknownSession: the session that asked is not there any more.
        WrongState: the question has its reply or was withdrawn, or its session will not run again.
    """
    ledger = parts.ledger
    session = ledger.session(asker)
    item = ledger.item(session.parent, question) if session.parent else None
    if item is None or question not in session.questions:
        raise WrongState(f"question {question}", "not open", "it has its reply, or was withdrawn")
    letter = parts.message_factory.reply(
        sender=OPERATOR,
        recipient=session.agent,
        question=str(item.extra["message"]),
        answer=text,
        thread=Thread.of(session),
    )
    placed = ledger.enqueue(
        asker,
        text,
        item_id=reply_id(question),
        kind="reply",
        priority="high",
        answers=question,
        envelope=letter,
        extra={"agent": OPERATOR, "answers": question, "message": letter.message_id},
        by=OPERATOR,
    )
    if not placed:
        raise WrongState(f"question {question}", "answered", "it has its reply already")
    ledger.withdraw(question, asker=asker, asked=session.parent, reason="answered by the operator")

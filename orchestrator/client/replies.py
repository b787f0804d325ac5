"""Answers of users to agents' questions: each once, wherever the session that was asked is at that moment."""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.agents.registry import OPERATOR
from orchestrator.bootstrap import Container
from orchestrator.errors import WrongState
from orchestrator.ids import reply_id
from orchestrator.ledger import CLOSED, Item, LedgerReader, Session


def open_questions(ledger: LedgerReader, askers: Iterable[Session]) -> list[tuple[Item, str]]:
    """Return the questions of these sessions that have no reply yet, each with its text; none of sessions that have
    ended.
    """
    found = []
    for asker in askers:
        holder = asker.parent or asker.id  # a root asks the user, and has the question itself
        for question in asker.questions if asker.state not in CLOSED else ():
            item = None if question in asker.approvals else ledger.item(holder, question)
            if item is not None:
                found.append((item, ledger.texts(holder, [question]).get(question, "")))
    return found


def answer_question(parts: Container, asker: str, question: str, text: str) -> None:
    """Put a reply of the operator into the queue of the session that asked.

    The question is withdrawn from the session that was asked, unless a run has it already.

    Raises:
        UnknownSession: the session that asked is gone.
        WrongState: the question has its reply or was withdrawn, or its session will not run again.
    """
    from orchestrator.messages.factory import to_session

    ledger = parts.ledger
    session = ledger.session(asker)
    asked = session.parent or session.id  # a root asks the user, and has the question itself
    item = ledger.item(asked, question)
    if item is None or question not in session.questions:
        raise WrongState(f"question {question}", "not open", "it has its reply, or was withdrawn")
    message = str(item.extra["message"])
    envelope = parts.message_factory.reply(
        question=message, answer=text, **to_session(session, after=message)
    )
    placed = ledger.enqueue(
        asker,
        text,
        item_id=reply_id(question),
        kind="reply",
        priority="high",
        answers=question,
        envelope=envelope,
        extra={"agent": OPERATOR, "answers": question, "message": envelope.message_id},
        by=OPERATOR,
    )
    if not placed:
        raise WrongState(f"question {question}", "answered", "it has its reply already")
    ledger.withdraw(question, asker=asker, asked=asked, reason="answered by the operator")

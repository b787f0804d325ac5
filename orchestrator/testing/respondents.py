"""Everybody but the agent under test, as the script says: what they answer when the agent waits for them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.ids import approval_of, child_of, question_of
from orchestrator.ledger import Ledger
from orchestrator.policy.approval import read_request
from orchestrator.testing.answers import (
    Answer,
    Answers,
    Asks,
    Done,
    Failed,
    Lines,
    Never,
    NotScripted,
    Verdict,
)
from orchestrator.testing.others import Others


@dataclass(frozen=True)
class _Asking:
    """A question of a child that waits for the reply of the agent."""

    question: str
    then: str | Done | Failed | Callable[[str], str]


class Respondents:
    """The children, the parent, the user and the person who approves, of one session under test."""

    def __init__(
        self,
        others: Others,
        ledger: Ledger,
        *,
        answers: Answers | None,
        replies: Answer | Sequence[Answer] | None,
        decisions: Verdict | Sequence[Verdict] | None,
    ) -> None:
        self._others = others
        self._ledger = ledger
        self._answers = {name: Lines(lines) for name, lines in (answers or {}).items()}
        self._replies, self._decisions = Lines(replies), Lines(decisions)
        self._asked_before: dict[str, _Asking] = {}
        #: The session under test.
        self.of = ""

    @property
    def agents(self) -> list[str]:
        """The agents that the script names."""
        return [name for name in self._answers if name != "*"]

    def bring(self, item: str) -> bool:
        """Bring the item that the agent waits for. False: the script says that it does not come.

        Raises:
            NotScripted: the script does not say.
        """
        if child := child_of(item):
            return self._bring_child(child)
        if approval := approval_of(item):
            return self._bring_decision(approval)
        question = question_of(item)
        return question is not None and self._bring_reply(question)

    def bring_all(self) -> None:
        """Bring everything that is outstanding, once each.

        Raises:
            NotScripted: the script does not say.
        """
        about = self._ledger.session(self.of)
        for question in about.questions:
            if question in about.approvals:
                self._bring_decision(question)
            else:
                self._bring_reply(question)
        for item in self._ledger.items(self.of):
            if item.kind == "completion" and item.state == "owed":
                asked = self._asked_before.get(item.child)
                if asked is None or self._others.has_reply(asked.question, item.child):
                    self._bring_child(item.child)

    def _bring_child(self, child: str) -> bool:
        about = self._ledger.session(child)
        task = self._ledger.texts(child, ["prompt"]).get("prompt", "")
        lines = self._answers.get(about.agent) or self._answers.get("*")
        if (asked := self._asked_before.pop(child, None)) is not None:
            reply = self._others.reply_to(asked.question, child)
            if reply is None:
                raise NotScripted(
                    f"the agent has not replied to the question of {about.agent!r}: {asked.question}"
                )
            answer: Any = asked.then(reply) if callable(asked.then) else asked.then
        else:
            answer = lines.next(task) if lines is not None else None
        match answer:
            case None:
                raise NotScripted(
                    f"the agent waits for {about.agent!r}, and the script has no (more) answer of it: "
                    f"give answers={{{about.agent!r}: …}}, or Never()"
                )
            case Never():
                return False
            case Asks(question, then):
                self._asked_before[child] = _Asking(self._others.ask_parent(child, question), then)
            case Failed(reason):
                self._others.end_child(child, reason, failed=True)
            case Done(text, attachments):
                self._others.end_child(child, text, attachments=attachments)
            case _:
                self._others.end_child(child, str(answer))
        return True

    def _bring_decision(self, approval: str) -> bool:
        item = self._ledger.item(self.of, approval)
        request = read_request(approval, item.extra.get("context") if item is not None else None)
        match self._decisions.next(request.tool, json.loads(request.arguments)):
            case None:
                raise NotScripted(
                    f"a person is asked to approve {request.tool!r}: give decisions=True or False"
                )
            case Never():
                return False
            case Failed(reason):
                self._others.decide(approval, approved=False, comment=reason)
            case verdict:
                self._others.decide(approval, approved=bool(verdict))
        return True

    def _bring_reply(self, question: str) -> bool:
        about = self._ledger.session(self.of)
        text = self._ledger.texts(about.parent or about.id, [question]).get(question, "")
        match self._replies.next(text):
            case None:
                raise NotScripted(f"the agent asks {text!r}: give replies=…, or Never()")
            case Never():
                return False
            case Failed(reason):
                self._others.reply(about, question, reason, declined=True)
            case reply:
                self._others.reply(about, question, str(reply))
        return True

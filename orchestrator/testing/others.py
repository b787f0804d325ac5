"""Everybody but the agent under test: its children, its parent and the user, by the transitions of real ones."""

from __future__ import annotations

import contextvars
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.agents.registry import OPERATOR, AgentRecord
from orchestrator.client.approvals import answer_approval
from orchestrator.envelope.bodies import Task
from orchestrator.errors import InputError
from orchestrator.ids import child_session_id, item_id, question_id, reply_id, root_session_id, run_id
from orchestrator.ledger import CLOSED, ClaimedRun, Launch, Outcome, Outgoing, Session, SessionState, Start
from orchestrator.ledger.model import ItemState
from orchestrator.ledger.transitions import EndedRun
from orchestrator.messages.factory import Thread, from_session, summary, to_session
from orchestrator.testing.in_memory import InMemoryParts

#: Who holds the runs of the others.
_WORKER = "scripted"


@dataclass(frozen=True, kw_only=True)
class Given:
    """Input with which a session begins."""

    agent: str
    prompt: str
    name: str = ""

    @property
    def title(self) -> str:
        """The title of the task."""
        return self.name or summary(self.prompt)


class Others:
    """Acts in the place of those who are not tested."""

    def __init__(self, parts: InMemoryParts) -> None:
        self._parts = parts
        self._ledger = parts.ledger
        self._held: dict[str, ClaimedRun] = {}

    def know(self, record: AgentRecord) -> None:
        """Register an agent, with its key, unless it is."""
        if self._parts.agents.get(record.name) is None:
            self._parts.keyring.signer(record.name)
            self._parts.agents.announce([record])

    # --- beginning -------------------------------------------------------------------------------

    def begin(self, given: Given, *, below: str = "") -> str:
        """Begin a session, by a user or below a session of an agent that is not tested; its first run is ready."""
        return self._child(below, given) if below else self._root(given)

    def _root(self, given: Given) -> str:
        session = root_session_id(uuid.uuid4().hex)
        correlation = str(uuid.uuid4())
        self._ledger.submit(
            session,
            agent=given.agent,
            prompt=given.prompt,
            envelope=self._delegation(OPERATOR, given, session, Thread(correlation=correlation)),
            correlation=correlation,
            title=given.title,
        )
        self.start(session)
        return session

    def _child(self, parent_agent: str, given: Given) -> str:
        parent = self._root(Given(agent=parent_agent, prompt=f"Have {given.agent} do it."))
        held = self._claim(parent)
        child = child_session_id(parent, "scripted")
        launch = Launch(
            effect="scripted",
            child_id=child,
            agent=given.agent,
            description=given.prompt,
            title=given.title,
            envelope=self._delegation(parent_agent, given, child, Thread.of(held.session), parent),
            correlation=held.session.correlation,
            chain=held.session.chain,
        )
        self._ledger.delegate(held.claim, launch)
        self._commit(held, Outcome(status="completed", text=f"{given.agent} does it"))
        self.start(child)
        return child

    def _delegation(self, sender: str, given: Given, session: str, thread: Thread, by: str = "") -> Outgoing:
        return self._parts.message_factory.delegation(
            sender=sender,
            sender_session=by,
            recipient=given.agent,
            task_id=session,
            task=Task(title=given.title, description=given.prompt),
            thread=thread,
        )

    def start(self, session: str) -> None:
        """Carry out the launch of a session, as the router does."""
        about = self._ledger.session(session)
        if about.state is not SessionState.PENDING or about.run:
            return
        start = Start(
            session=session,
            message=about.message,
            sender=about.delegator or OPERATOR,
            digest="scripted",
            recipient=about.agent,
            conversation=about.correlation,
            stream="scripted",
            entry="0-1",
            mark_ms=86_400_000,
        )
        batch = self._ledger.batch()
        batch.script("start", *self._ledger.start_call(0, [start], group="scripted", keep_ms=86_400_000))
        (answer,) = batch.execute()
        if isinstance(answer, Exception):
            raise answer

    # --- children --------------------------------------------------------------------------------

    def end_child(
        self, child: str, text: str, *, failed: bool = False, attachments: Mapping[str, str] | None = None
    ) -> None:
        """A child ends: its callback is in the queue of its parent.

        Raises:
            InputError: the child has ended before.
        """
        held = self._hold(child)
        for item in self._ledger.items(child):
            if item.state is ItemState.QUEUED:
                self._ledger.claim_item(held.claim, item.id)
        for question in self._ledger.session(child).questions:
            self._ledger.withdraw(
                question,
                asker=child,
                asked=held.session.parent,
                reason="its asker has ended",
                claim=held.claim,
            )
        outcome = Outcome(
            status="failed" if failed else "completed", text=text, attachments=dict(attachments or {})
        )
        self._commit(held, outcome)
        del self._held[child]

    def ask_parent(self, child: str, question: str, *, kind: str = "query") -> str:
        """Let a child ask its parent; return the id of the question."""
        key = f"ask:scripted:{uuid.uuid4().hex}"
        asked = question_id(child, key)
        self._send_up(
            child,
            question,
            lambda **given: self._parts.message_factory.query(question=question, **given),
            effect=key,
            item_id=asked,
            kind=kind,
            priority="critical" if kind == "blocker" else "normal",
            opens=True,
        )
        return asked

    def tell_parent(self, child: str, text: str) -> None:
        """A child says something that needs no reply."""
        key = f"message:scripted:{uuid.uuid4().hex}"
        self._send_up(
            child,
            text,
            lambda **given: self._parts.message_factory.message(text=text, **given),
            effect=key,
            item_id=item_id(self._hold(child).session.parent, key),
            kind="message",
            priority="normal",
        )

    def _send_up(self, child: str, text: str, write: Callable[..., Outgoing], **given: Any) -> None:
        """Send a message of a child to its parent, in the run of the child."""
        held = self._hold(child)
        parent = self._ledger.session(held.session.parent)
        envelope = write(**from_session(held.session, parent.agent))
        about = {"agent": held.session.agent, "title": held.session.title, "message": envelope.message_id}
        self._ledger.send(held.claim, parent.id, text, envelope=envelope, extra=about, **given)

    def has_reply(self, question: str, child: str) -> bool:
        """Return True if the question of a child has its reply."""
        return self._ledger.item(child, reply_id(question)) is not None

    def reply_to(self, question: str, child: str) -> str | None:
        """Take the reply to a child's question and return its text; None if there is none yet."""
        found = self._ledger.claim_item(self._hold(child).claim, reply_id(question))
        return None if found is None else found[1]

    # --- replies ---------------------------------------------------------------------------------

    def reply(self, asker: Session, question: str, text: str, *, declined: bool = False) -> None:
        """The parent, the child or the user that the session under test has asked replies.

        Raises:
            InputError: the session has no such open question.
        """
        holder = asker.parent or asker.id
        asked = self._ledger.item(holder, question)
        if asked is None or question not in asker.questions:
            raise InputError(f"the session has no open question {question!r}")
        by = self._ledger.session(asker.parent).agent if asker.parent else OPERATOR
        about = str(asked.extra["message"])
        envelope = self._parts.message_factory.reply(
            question=about, answer=text, **to_session(asker, after=about, sender=by)
        )
        extra = {"agent": by, "answers": question, "message": envelope.message_id}
        self._ledger.enqueue(
            asker.id,
            text,
            item_id=reply_id(question),
            kind="reply",
            priority="high",
            speaker=asker.parent,
            answers=question,
            envelope=envelope,
            extra=extra | ({"status": "failed"} if declined else {}),
            by=by,
        )
        self._ledger.withdraw(question, asker=asker.id, asked=holder, reason="answered")

    def say(self, session: str, text: str) -> None:
        """A user says something to the session."""
        about = self._ledger.session(session)
        envelope = self._parts.message_factory.message(text=text, **to_session(about))
        self._ledger.enqueue(
            session,
            text,
            item_id=item_id(session, f"user:{uuid.uuid4().hex}"),
            envelope=envelope,
            extra={"message": envelope.message_id},
            by=OPERATOR,
        )

    def decide(self, approval: str, *, approved: bool, comment: str = "") -> None:
        """A person answers an approval.

        Raises:
            WrongState: it was answered, or its time has passed.
        """
        # The rules for code inside of an agent do not hold for the test around it.
        contextvars.Context().run(
            answer_approval,
            self._parts,
            approval,
            approved=approved,
            comment=comment,
            digest="",
            by="scripted",
        )

    # --- runs of the others ------------------------------------------------------------------------

    def _hold(self, session: str) -> ClaimedRun:
        held = self._held.get(session)
        if held is None:
            if self._ledger.session(session).state in {*CLOSED, SessionState.FINISHED}:
                raise InputError(f"session {session} has ended")
            self.start(session)
            held = self._held[session] = self._claim(session)
        return held

    def _claim(self, session: str) -> ClaimedRun:
        about = self._ledger.session(session)
        held = self._ledger.claim(
            about.run or run_id(session, 1),
            uuid.uuid4().hex,
            session_id=session,
            worker=_WORKER,
        )
        if held is None:
            raise InputError(f"session {session} of {about.agent!r} has no run to do this in")
        return held

    def _commit(self, held: ClaimedRun, outcome: Outcome) -> None:
        about, factory = held.session, self._parts.message_factory
        self._parts.keyring.signer(about.agent)
        parties = from_session(about, about.delegator or OPERATOR)

        def envelope() -> Outgoing:
            if outcome.status == "completed":
                return factory.completion(task_id=about.reported_as, result=outcome.text, **parties)
            return factory.error(error=outcome.text, **parties)

        self._ledger.commit(
            EndedRun(
                held.claim,
                outcome,
                make_envelope=envelope,
                about=about,
                expect_over=outcome.status == "completed" and not about.launched,
            )
        )

"""Consequences of a session's stop: resumes for those who wait, and an end for a closed session's children.

Used by the callback service on every event, and by the reaper for what an event missed. Every step is idempotent:
done twice, or by two processes at once, it has the effect of once.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from orchestrator.agents.registry import OPERATOR, AgentRegistry
from orchestrator.crashpoints import failpoint
from orchestrator.errors import DamagedRecord, UnknownSession, WrongState
from orchestrator.ids import asker_of, decision_id, reply_id, session_of_approval
from orchestrator.ledger import CLOSED, Item, ItemState, Ledger, Outgoing, RunRef, Session, SessionState
from orchestrator.ledger.snapshot import take_snapshot
from orchestrator.log import get_logger
from orchestrator.machine import isoformat
from orchestrator.redisdb.client import is_outage

#: Tells workers of runs that are ready; raises when the broker is out of reach.
Send = Callable[[Sequence[RunRef]], None]
#: Writes the message by which the system answers a question: the session, the question's message-id, the text.
WriteReply = Callable[[Session, str, str], Outgoing]

#: Children of a closed session that are looked up in one round trip.
_BATCH = 500

_log = get_logger()


def hand_over(runs: Iterable[RunRef], *, ledger: Ledger, agents: AgentRegistry) -> list[tuple[RunRef, str]]:
    """Ready runs with the Celery queues of their agents. The runs of external programs count as taken from now on.

    The run of an agent that nobody has registered has no queue: it stays ready, and the sweep tells workers of it
    once its agent is registered.
    """
    found = []
    for run in runs:
        record = agents.get(run.agent)
        if record is None:
            _log.info("agent-unknown", agent=run.agent, run=run.run, session=run.session)
        elif record.external:
            ledger.take_external(run)
        else:
            found.append((run, record.queue))
    return found


class Delivery:
    """Turns the ledger's state into dispatched runs."""

    def __init__(self, ledger: Ledger, send: Send, *, write_reply: WriteReply | None = None) -> None:
        self.ledger = ledger
        self._send = send
        self._write_reply = write_reply

    def send(self, ready: Sequence[RunRef]) -> bool:
        """Notify workers of runs. If the broker fails, the runs stay ready and the sweep notifies."""
        try:
            self._send(ready)
        except Exception as error:  # noqa: BLE001  (whatever a broker's client raises, the ledger still has the runs)
            _log.warning("notify-failed", runs=len(ready), error=repr(error))
            return False
        return True

    def flush(self, sessions: Iterable[str], known: Mapping[str, int] | None = None) -> int:
        """Resume each of these sessions that is not busy and has what it waits for; return how many.

        ``known`` spares asking how far they are. It may be out of date: the ledger checks it.
        """
        wanted = list(dict.fromkeys(sessions))
        resumed: list[RunRef] = []
        for session, verdict in zip(wanted, self.ledger.flush_all(wanted, known), strict=True):
            if verdict.dispatch is not None:
                resumed.append(verdict.dispatch)
            elif verdict.outcome == "closed" and verdict.detail != "unknown":
                self._leave_behind(session)
            elif verdict.outcome == "damaged":
                self._fail_damaged(session)
        if resumed:
            failpoint("delivery.flushed")
            self.send(resumed)
            failpoint("delivery.sent")
        return len(resumed)

    def _leave_behind(self, session: str) -> None:
        try:
            self.ledger.finish_cleanup(session)
        except Exception as error:
            if is_outage(error):
                raise
            # Its records are damaged, which must hold up no other session.
            _log.error("close-failed", session=session, error=repr(error))

    def _fail_damaged(self, session_id: str) -> None:
        """Fail a session that cannot be resumed, as something of its records cannot be read; by that name."""
        for session in self.ledger.find([session_id]):
            found = take_snapshot(self.ledger, session.id) if not session.damage else None
            damage = session.damage or (found.damage if found is not None else ())
            try:
                if damage:
                    why = str(DamagedRecord(f"session {session.id}", damage[0]))
                    self.ledger.stop(session.id, why, state="failed", force=True)
            except Exception as error:
                if is_outage(error):
                    raise
                # A key of another type lets it not even end.
                _log.error("close-failed", session=session.id, error=repr(error))

    def close(self, session_id: str) -> None:
        """Deal with the children of a closed session by its policy: stop, abandon, or hand them on to an heir.

        Raises:
            DamagedRecord: the session or something in its records cannot be read.
        """
        try:
            session = self.ledger.session(session_id)
        except UnknownSession:
            return
        if session.damage:
            raise DamagedRecord(f"session {session_id}", session.damage[0])
        if session.state not in CLOSED:
            return
        ended: list[Item] = []
        for item in self.ledger.items(session_id):
            if item.child_at_work:
                self._close_child(session, item)
                failpoint("delivery.child-closed")
            elif item.kind == "completion" and item.child:
                ended.append(item)
            elif item.extra.get("question"):
                self._close_question(session, item)
        if session.state == SessionState.DELETED:
            self._forget(session, ended)
        else:
            self._stop_rest(session, ended)
        self.ledger.finish_cleanup(session_id, seen_as=session.state)
        failpoint("delivery.closed")

    def stop_below(self, sessions: Iterable[Session], reason: str) -> int:
        """Stop the children that finished sessions have left at work without a callback; how many were stopped.

        ``sessions`` are a session and all that is below it.
        """
        stopped = 0
        known = {session.id: session for session in sessions}
        for session in known.values():
            if session.state != SessionState.FINISHED:
                continue
            for item in self.ledger.items(session.id):
                child = known.get(item.child)
                again = child is not None and child.parent == session.id and not _is_over(child)
                if (again or item.child_at_work) and session.policy_for(item.on_close) == "stop":
                    stopped += self.ledger.stop(item.child, reason).outcome in ("ended", "asked")
        return stopped

    def _forget(self, session: Session, ended: Sequence[Item]) -> None:
        """Delete the children of a deleted session, but for those that it abandoned or handed on."""
        for child, policy in self._children(session, ended):
            if child.state == SessionState.DELETED:
                # What was kept of it for this session goes, unless its own children are still to be seen to.
                self.ledger.finish_cleanup(child.id)
                continue
            if child.parent == session.id and (_is_over(child) or policy == "stop"):
                self.ledger.stop(child.id, _why_closed(session), state="deleted")
                failpoint("delivery.forgotten")

    def _stop_rest(self, session: Session, ended: Sequence[Item]) -> None:
        """Stop what is at work below a closed session without a callback to it.

        A user has resumed it, or a finished session has launched it without a callback.
        """
        left = [(session, list(ended))]
        while left:
            parent, items = left.pop()
            for child, policy in self._children(parent, items):
                if child.parent != parent.id or policy != "stop" or child.state in CLOSED:
                    continue
                if not _is_over(child):
                    self.ledger.stop(child.id, _why_closed(session))
                elif child.children:
                    of_child = self.ledger.items(child.id)
                    # Outstanding callbacks, of an heir, resume it.
                    promised = (i for i in of_child if i.child and i.kind == "completion")
                    left.append((child, [i for i in promised if i.state != ItemState.OWED]))

    def _children(self, session: Session, items: Sequence[Item]) -> Iterator[tuple[Session, str]]:
        """Yield the children of these items, each with what is to become of it."""
        for start in range(0, len(items), _BATCH):
            policies = {i.child: session.policy_for(i.on_close) for i in items[start : start + _BATCH]}
            for child in self.ledger.find(list(policies)):
                yield child, policies[child.id]

    def _close_child(self, session: Session, item: Item) -> None:
        policy = session.policy_for(item.on_close)
        if policy.startswith("heir:") and item.callback:
            heir = policy.removeprefix("heir:")
            match self.ledger.inherit(session.id, heir, item.child, item.id):
                case "handed" | "not owed":
                    return
                case "kin":
                    self.ledger.abandon(session.id, item.id, f"let go: heir {heir} is this child or below it")
                    return
        elif policy != "stop":
            self.ledger.abandon(session.id, item.id, f"abandoned: parent {session.state}")
            return
        state: Literal["deleted", "stopped"] = (
            "deleted" if session.state == SessionState.DELETED else "stopped"
        )
        verdict = self.ledger.stop(item.child, _why_closed(session), state=state)
        if verdict.outcome == "unknown":
            self.ledger.abandon(session.id, item.id, "its session is gone")

    def give_up(self, question: str, reason: str) -> None:
        """End an open question or approval that has waited long enough, and tell its asker."""
        asker = asker_of(question) or session_of_approval(question)
        for session in self.ledger.find([asker] if asker else []):
            if question in session.approvals:
                self._answer_approval(session, question, f"no answer will come: {reason}", {})
            elif asked := self.ledger.asked(session.id, question):
                self._refuse_reply(question, asker=session.id, agent=session.delegator, why=reason)
                self.ledger.withdraw(
                    question, asker=session.id, asked=asked, reason=f"no reply in time: {reason}"
                )

    def expire_approval(self, approval: str) -> None:
        """Tell a session that nobody has answered its approval in time, so that its own default counts."""
        for session, item, _, request in self.ledger.approvals.find([approval]):
            if not request.expires_ms or self.ledger.server_ms() < request.expires_ms:
                continue  # a clock that has gone back since
            text = f"nobody answered before {isoformat(request.expires_ms)}"
            verdict = {"approval": approval, "expired": True, "default": request.default}
            message, envelope = str(item.extra.get("message", "")), None
            if self._write_reply is not None and message:
                envelope = self._write_reply(session, message, json.dumps({**verdict, "comment": text}))
            self._answer_approval(session, approval, text, verdict, envelope)

    def _answer_approval(
        self,
        session: Session,
        approval: str,
        text: str,
        verdict: Mapping[str, Any],
        envelope: Outgoing | None = None,
    ) -> None:
        """Tell a session that no person answers an approval of it."""
        facts = {"agent": OPERATOR, "context": json.dumps(dict(verdict))}
        self._fail(approval, decision_id(approval), session.id, text, facts=facts, envelope=envelope)

    def _close_question(self, session: Session, item: Item) -> None:
        """Tell the asker of a question to a closed session that no answer will come."""
        why = f"session {session.id} {session.state}: {session.reason}"
        self._refuse_reply(item.id, asker=item.child, agent=session.agent, why=why)

    def _refuse_reply(self, question: str, *, asker: str, agent: str, why: str) -> None:
        text = f"no reply will come: {why}"
        self._fail(question, reply_id(question), asker, text, facts={"agent": agent})

    def _fail(
        self,
        question: str,
        item: str,
        asker: str,
        text: str,
        *,
        facts: Mapping[str, str],
        envelope: Outgoing | None = None,
    ) -> None:
        """Put a failed answer to a question into the queue of its asker."""
        with contextlib.suppress(UnknownSession, WrongState):  # it has ended, or has its reply
            self.ledger.enqueue(
                asker,
                text,
                item_id=item,
                kind="reply",
                priority="high",
                answers=question,
                envelope=envelope,
                extra={**facts, "status": "failed", "answers": question},
            )


def _why_closed(parent: Session) -> str:
    return f"parent {parent.id} {parent.state}"


def _is_over(session: Session) -> bool:
    return session.state in CLOSED or (session.state == SessionState.FINISHED and not session.busy)

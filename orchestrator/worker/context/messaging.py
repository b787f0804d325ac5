"""What an agent says to its parent and its children, and what it asks them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any

from orchestrator.envelope.bodies import Query, StatusUpdate
from orchestrator.envelope.details import details_of
from orchestrator.envelope.model_values import Priority
from orchestrator.errors import (
    ClaimLost,
    InputError,
    NoReply,
    OrchestraError,
    RunSleeps,
    ServerUnavailable,
    SessionStopped,
)
from orchestrator.ids import reply_id
from orchestrator.log import get_logger
from orchestrator.messages.factory import summary
from orchestrator.messages.given import check_text
from orchestrator.policy.callback import Callback
from orchestrator.policy.sealed_text import ENCRYPTED
from orchestrator.worker.context.arguments import PRIORITIES, check_choice, check_timeout
from orchestrator.worker.context.queries import File, Kind, kind_of, query_of
from orchestrator.worker.context.view import View, callback_of
from orchestrator.worker.context.waits import Taken

#: The part of a run's time that is left for which it waits for a reply, if its agent does not say.
_WAIT_SHARE = 0.9

#: How long a run waits for a person; the reply, or the time limit of the question, ends it before.
_FOREVER_S = 100 * 365 * 86_400

_log = get_logger()


class Messaging(View):
    """One run of a session, with the words that its agent may say."""

    def raise_callback(
        self,
        message: str,
        callback_type: str = "query",
        context: Mapping[str, Any] | None = None,
        priority: str | None = None,
        *,
        wait: bool = True,
        timeout_s: float | None = None,
    ) -> str | None:
        """Raise something with the parent and return its reply.

        Args:
            message: the text.
            callback_type: `query`, `blocker`, `clarification`, `error`, or a word of your own.
            context: further values, which the parent gets with it.
            priority: `critical`, `high`, `normal` or `low`. A blocker is always critical: it comes before
                everything that is queued for the parent.
            wait: False: return at once; end the run then, and be resumed with the reply.
            timeout_s: seconds to wait at most, by default nine tenths of the time that this run has left; after
                that the question is withdrawn. With ``wait=False`` the setting `question_time_limit_s` counts.

        Returns:
            The reply; None if nobody hears of this session, or no reply came for whatever reason, which is logged.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        hidden = self._held.session.encrypted
        log = _log.bind(
            session=self.session,
            agent=self.agent,
            type=callback_type,
            message=ENCRYPTED if hidden else summary(str(message)),
        )
        if not self.has_caller:
            log.warning("callback-without-caller")
            return None
        try:
            if wait:
                return self._ask(message, callback_type, context, priority, timeout_s=timeout_s)
            self._message_sender.ask(message, kind=callback_type, context=context, priority=priority)
        except (ClaimLost, SessionStopped, ServerUnavailable):
            raise
        except OrchestraError as error:
            log.error("callback-failed", error=ENCRYPTED if hidden else str(error))  # noqa: TRY400
        except Exception as error:
            log.error(  # noqa: TRY400
                "callback-failed", error=type(error).__name__, exc_info=None if hidden else error
            )
        return None

    def ask(
        self,
        message: str,
        *,
        kind: Kind = "query",
        context: Mapping[str, Any] | None = None,
        priority: Priority | None = None,
        timeout_s: float | None = None,
        problem: str = "",
        attempted: Sequence[str] = (),
        file: File = (),
        error: str = "",
        urgency: Priority | None = None,
        required_by: datetime | str | None = None,
    ) -> str:
        """Ask the parent and return its reply; as `raise_callback`, for agents that need to know why not.

        It waits as long, too: by default for nine tenths of the time that this run has left.

        A root asks the user. The run parks until the reply is there: its function ends here with `RunSleeps`, which it has
        to let pass through, and is called again from its beginning; this call returns the reply then. Put what is not to
        be done again into `step`. ``timeout_s`` is how long the question stays open, by default
        `question_time_limit_s`.

        Args:
            message: the question.
            kind: `query`, `blocker`, `clarification` or `error`, or what is asked for: `ask-for-help`, `request-review` or
                `request-analysis`. The system itself answers `get-status`, at once: how far the parent is.
            context: further values, which the recipient gets with it.
            priority: `critical`, `high`, `normal` or `low`; by default the urgency. A blocker is always critical.
            timeout_s: seconds to wait at most.
            problem: what the matter is, at length.
            attempted: what was tried, in order.
            file: the file that matters, or several: a path, or a `FileReference` with what stands there.
            error: the full message of an error.
            urgency: how urgent the answer is; it is the priority of the question.
            required_by: when the answer is needed: a time with a zone.

        Raises:
            NoReply: the time has passed, the parent waits for this very session, or it will not run again.
            RunSleeps: a root waits for the user; let it pass through.
            InputError: there is nothing to ask, the time is none, or the plan that launched it names no caller.
            LimitExceeded: the conversation has had more messages than it may.
            WouldDeadlock: too many runs wait for one another in this worker's slot.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if kind == "get-status":
            return details_of(self.get_status(), "")
        query = query_of(
            kind,
            problem=problem,
            attempted=attempted,
            file=file,
            error=error,
            urgency=urgency,
            required_by=required_by,
        )
        return self._ask(message, kind_of(kind), context, priority, timeout_s=timeout_s, query=query)

    def get_status(self, session: str = "") -> StatusUpdate:
        """How far the parent is, or a child: the system answers from the ledger, and nobody is resumed.

        Args:
            session: the id of a child's session; empty: the parent.

        Raises:
            InputError: there is no parent, or the session is no child of this one.
            UnknownSession: there is no such session.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if not session and not self.parent:
            raise InputError(f"session {self.session} is a root and has no parent to ask")
        other = self._find(session or self.parent)
        if other.id != self.parent and other.parent != self.session:
            raise InputError(f"session {session} is no child of {self.session}")
        return self._message_sender.status_of(other)

    def ask_later(
        self,
        message: str,
        *,
        to: str = "",
        kind: Kind = "query",
        context: Mapping[str, Any] | None = None,
        priority: Priority | None = None,
        key: str | None = None,
        problem: str = "",
        attempted: Sequence[str] = (),
        file: File = (),
        error: str = "",
        urgency: Priority | None = None,
        required_by: datetime | str | None = None,
    ) -> str:
        """Ask the parent, a child, or from a root the user, and go on: this session is resumed with the reply, and does not end before.

        Args:
            message: the question.
            to: the id of a child's session; empty: the parent, or the user of a root. A child that has finished is resumed to answer.
            kind: `query`, `blocker`, `clarification` or `error`; `ask-for-help`, `request-review` or `request-analysis`.
            context: further values, which the recipient gets with it.
            priority: `critical`, `high`, `normal` or `low`. A blocker is always critical.
            key: as for `delegate`.
            problem, attempted, file, error, urgency, required_by: as for `ask`.

        Returns:
            The id of the question, which the reply names.

        Raises:
            InputError: there is nothing to ask, no parent, or ``to`` is no child of this session.
            UnknownSession, WrongState: the recipient is gone or will not run again.
            LimitExceeded: the conversation has had more messages than it may.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        child = self._find(to) if to else None
        if child is not None and child.parent != self.session:
            raise InputError(f"session {to} is no child of {self.session}")
        if kind == "get-status":
            raise InputError("the system answers get-status at once: call get_status")
        query = query_of(
            kind,
            problem=problem,
            attempted=attempted,
            file=file,
            error=error,
            urgency=urgency,
            required_by=required_by,
        )
        return self._message_sender.ask(
            message, kind=kind_of(kind), context=context, priority=priority, key=key, to=child, query=query
        )

    def _ask(
        self,
        message: str,
        kind: str,
        context: Mapping[str, Any] | None,
        priority: str | None,
        *,
        timeout_s: float | None,
        query: Query | None = None,
    ) -> str:
        check_timeout(timeout_s)
        send = partial(
            self._message_sender.ask, message, kind=kind, context=context, priority=priority, query=query
        )
        if self.parent:
            item, text = self._ask_parent(send, message, timeout_s)
        else:
            item, text = self._ask_user(send, timeout_s)
        if item.status == "failed":
            raise NoReply(summary(message), text)
        return callback_of(item, text, self._effects).full()

    def _ask_parent(self, send: Callable[[], str], message: str, timeout_s: float | None) -> Taken:
        self._blocking.check_depth("a question")
        if timeout_s is None:  # what is left is for the agent to go on without a reply
            timeout_s = self.patience_s
        question = send()
        taken = self._blocking.answer(reply_id(question), question, awaited=self.parent, timeout_s=timeout_s)
        if taken is None:
            why = f"none came within {timeout_s:.6g} s"
            if not self._effects.withdraw(question, f"no reply in time: {why}", asked=self.parent):
                taken = self._blocking.take(reply_id(question))
                why = "it was withdrawn"
            if taken is None:
                raise NoReply(summary(message), why)
        return taken

    def _ask_user(self, send: Callable[..., str], timeout_s: float | None) -> Taken:
        """Ask the user, and park until the reply is there; the question's own time limit ends the wait."""
        question = send(open_s=timeout_s)
        taken = self._blocking.take(reply_id(question), "wait")
        if taken is None:
            _log.info("run-waits-for-user", question=question)
            raise RunSleeps(f"a user's reply to {question}", f"{_FOREVER_S:.0f}")
        return taken

    @property
    def patience_s(self) -> float:
        """Seconds that a call waits for an answer that nobody has bounded: a part of the time that this run has left."""
        return self._effects.claim_status.left_s * _WAIT_SHARE

    def post_question(
        self,
        message: str,
        *,
        kind: str = "query",
        context: Mapping[str, Any] | None = None,
        priority: str | None = None,
        query: Query | None = None,
    ) -> str:
        """Ask the parent, or the user of a root, and go on; the id of the question, for `reply_to`.

        Raises:
            InputError: there is nobody to ask, or nothing.
            LimitExceeded: the conversation has had more messages than it may.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        return self._message_sender.ask(message, kind=kind, context=context, priority=priority, query=query)

    def reply_to(self, question: str, *, timeout_s: float) -> Callback | None:
        """The reply to a question of this session; None when it has not come after ``timeout_s`` seconds.

        A question that has no reply when the run ends stays open, and its reply resumes the session. The `status` of a
        reply that will not come is `failed`.

        Raises:
            WouldDeadlock: too many runs wait for one another in this worker's slot.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        check_timeout(timeout_s)
        if timeout_s > 0:
            self._blocking.check_depth("a question")
        # A root waits for the user, and lends its slot to whatever is below it.
        taken = self._blocking.answer(
            reply_id(question), question, awaited=self.parent or self.session, timeout_s=timeout_s
        )
        return None if taken is None else callback_of(*taken, self._effects)

    def reply(self, question: Callback | str, text: str) -> bool:
        """Answer a question of a child, which gets it in the call that waits for it, or by being resumed.

        Args:
            question: the callback that asks, or its id; of this run or an earlier one.
            text: the answer.

        Returns:
            False if the answer comes too late: it was answered or withdrawn, or its asker has ended.

        Raises:
            InputError: this session was not asked that, or the text is empty.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        name = question if isinstance(question, str) else question.id
        item = self._effects.retrying("reply", lambda: self._ledger.item(self.session, name))
        if item is None:
            raise InputError(f"{name!r} is not a question that session {self.session} was asked")
        return self._message_sender.reply(item, text)

    def message(self, to: str, text: str, *, priority: Priority = "normal", key: str | None = None) -> str:
        """Send a message to the parent or to a child, which is resumed with it; no answer is waited for.

        Args:
            to: the id of the parent's or a child's session, or `parent`.
            text: the message.
            priority: where it stands in the queue of the other session.
            key: as for `delegate`.

        Returns:
            The id of the message.

        Raises:
            InputError: the session is neither parent nor child of this one, or the text is empty.
            UnknownSession: there is no such session.
            WrongState: the session will not run again.
            LimitExceeded: the conversation has had more messages than it may.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        check_text("text", text)
        check_choice("priority", priority, PRIORITIES)
        if not text.strip():
            raise InputError("a message needs a text")
        if to == "parent" and not self.parent:
            raise InputError(f"session {self.session} is a root and has no parent to talk to")
        other = self._find(self.parent if to == "parent" else to)
        if other.id != self.parent and other.parent != self.session:
            raise InputError(f"session {to} is neither the parent nor a child of {self.session}")
        return self._message_sender.message(other, text, priority=priority, key=key)

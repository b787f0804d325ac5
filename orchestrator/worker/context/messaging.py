"""Messaging: what an agent says and reports to its parent and its children, and asks them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from typing_extensions import Unpack

from orchestrator.envelope.bodies import ErrorReport, StatusUpdate, TaskCompletion
from orchestrator.envelope.prompt_text import details_of, part_of
from orchestrator.errors import (
    ClaimLost,
    InputError,
    NoReply,
    OrchestraError,
    RunSleeps,
    ServerUnavailable,
    SessionStopped,
    TaskFailed,
)
from orchestrator.ids import reply_id
from orchestrator.ledger import Session
from orchestrator.ledger.large_text import beginning, check_text
from orchestrator.log import get_logger
from orchestrator.messages.factory import summary
from orchestrator.operations import requests
from orchestrator.operations.table import ASK, ASK_LATER, MESSAGE, STATUS
from orchestrator.policy.callback import Callback
from orchestrator.policy.moments import check_timeout
from orchestrator.policy.sealed_text import ENCRYPTED
from orchestrator.worker.context.messages import Question
from orchestrator.worker.context.view import View
from orchestrator.worker.context.waits import Taken

#: The part of a run's time that is left for which it waits for a reply, if its agent does not say.
_WAIT_SHARE = 0.9

#: How long a run waits for a person; the reply, or the time limit of the question, ends it before.
_FOREVER_S = 100 * 365 * 86_400

_log = get_logger()

#: Bytes that an attachment may have; of a longer one the beginning is kept.
MAX_ATTACHMENT_BYTES: Final = 4 * 1024 * 1024
#: Texts that one answer may have attached.
MAX_ATTACHMENTS: Final = 100
#: The name of an attachment: it stands in prompts and commands.
_ATTACHMENT: Final = re.compile(r"[A-Za-z0-9._/-]{1,100}")


class Messaging(View):
    """The part of a run's context with which its agent sends messages."""

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
        question = Question(message=message, kind=callback_type, context=context, priority=priority)
        try:
            if wait:
                return self._answer_to(question, timeout_s)
            self._parts.message_sender.send_question(question)
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
        self, message: str, *, timeout_s: float | None = None, **options: Unpack[requests.QuestionOptions]
    ) -> str:
        """Ask the parent and return its reply; as `raise_callback`, for agents that need to know why not.

        It waits as long, too: by default for nine tenths of the time that this run has left.

        A root asks the user. The run parks until the reply is there: its function ends here with `RunSleeps`, which it has
        to let pass through, and is called again from its beginning; this call returns the reply then. Put what is not to
        be done again into `step`. ``timeout_s`` is how long the question stays open, by default
        `question_time_limit_s`.

        Args:
            message: the question.
            timeout_s: seconds to wait at most.
            options: see `QuestionOptions`. The system itself answers the kind `get-status`, at once: how far the parent is.

        Raises:
            NoReply: the time has passed, the parent waits for this very session, or it will not run again.
            RunSleeps: a root waits for the user; let it pass through.
            InputError: there is nothing to ask, the time is none, or the plan that launched it names no caller.
            LimitExceeded: the conversation has had more messages than it may.
            WouldDeadlock: too many runs wait for one another in this worker's slot.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if options.get("kind") == "get-status":
            return details_of(self.get_status(), "")
        request: requests.Ask = ASK.read({"message": message, **options})
        return self._answer_to(Question.of(request), timeout_s)

    def get_status(self, session: str = "") -> StatusUpdate:
        """Return the progress of the parent or a child: the system answers from the ledger, and nobody is resumed.

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
        return self._parts.message_sender.status_of(other)

    def ask_later(
        self,
        message: str,
        *,
        to: str = "",
        key: str | None = None,
        **options: Unpack[requests.QuestionOptions],
    ) -> str:
        """Ask the parent, a child, or from a root the user, and go on: this session is resumed with the reply, and does not end before.

        Args:
            message: the question.
            to: the id of a child's session; empty: the parent, or the user of a root. A child that has finished is resumed to answer.
            key: as for `delegate`.
            options: see `QuestionOptions`.

        Returns:
            The id of the question, which the reply names.

        Raises:
            InputError: there is nothing to ask, no parent, or ``to`` is no child of this session.
            UnknownSession, WrongState: the recipient is gone or will not run again.
            LimitExceeded: the conversation has had more messages than it may.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        request: requests.AskLater = ASK_LATER.read({"message": message, "to": to, "key": key, **options})
        child = self._find(to) if to else None
        if child is not None and child.parent != self.session:
            raise InputError(f"session {to} is no child of {self.session}")
        if request.get("kind") == "get-status":
            raise InputError("the system answers get-status at once: call get_status")
        return self.post_question(request, to=child)

    def _answer_to(self, question: Question, timeout_s: float | None) -> str:
        check_timeout(timeout_s)
        item, text = (self._ask_parent if self.parent else self._ask_user)(question, timeout_s)
        if item.status == "failed":
            raise NoReply(summary(question.message), text)
        return self._callback(item, text).full()

    def _ask_parent(self, asked: Question, timeout_s: float | None) -> Taken:
        self._parts.blocking.check_depth("a question")
        if timeout_s is None:  # what is left is for the agent to go on without a reply
            timeout_s = self.patience_s
        question = self._parts.message_sender.send_question(asked)
        taken = self._parts.blocking.answer(
            reply_id(question), question, awaited=self.parent, timeout_s=timeout_s
        )
        if taken is None:
            why = f"none came within {timeout_s:.6g} s"
            if not self._effects.withdraw(question, f"no reply in time: {why}", asked=self.parent):
                taken = self._parts.blocking.take(reply_id(question))
                why = "it was withdrawn"
            if taken is None:
                raise NoReply(summary(asked.message), why)
        return taken

    def _ask_user(self, asked: Question, timeout_s: float | None) -> Taken:
        """Ask the user, and park until the reply is there; the question's own time limit ends the wait."""
        question = self._parts.message_sender.send_question(asked, open_s=timeout_s)
        taken = self._parts.blocking.take(reply_id(question), "wait")
        if taken is None:
            _log.info("run-waits-for-user", question=question)
            raise RunSleeps(f"a user's reply to {question}", f"{_FOREVER_S:.0f}")
        return taken

    @property
    def patience_s(self) -> float:
        """Seconds that a call waits for an answer that nobody has bounded: a part of the time that this run has left."""
        return self._effects.claim_status.left_s * _WAIT_SHARE

    def post_question(
        self, request: requests.Ask | requests.AskLater | requests.RaiseCallback, *, to: Session | None = None
    ) -> str:
        """Put a question to the parent, to a child, or from a root to the user, and go on; its id, for `reply_to`.

        Raises:
            InputError: there is nobody to ask, or nothing.
            LimitExceeded: the conversation has had more messages than it may.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        return self._parts.message_sender.send_question(Question.of(request), to=to)

    def reply_to(self, question: str, *, timeout_s: float) -> Callback | None:
        """Return the reply to a question of this session; None if it has not come after ``timeout_s`` seconds.

        A question that has no reply when the run ends stays open, and its reply resumes the session. The `status` of a
        reply that will not come is `failed`.

        Raises:
            WouldDeadlock: too many runs wait for one another in this worker's slot.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        check_timeout(timeout_s)
        if timeout_s > 0:
            self._parts.blocking.check_depth("a question")
        # A root waits for the user, and lends its slot to whatever is below it.
        taken = self._parts.blocking.answer(
            reply_id(question), question, awaited=self.parent or self.session, timeout_s=timeout_s
        )
        return None if taken is None else self._callback(*taken)

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
        return self._parts.message_sender.reply(item, text)

    def message(self, to: str, text: str, **options: Unpack[requests.MessageOptions]) -> str:
        """Send a message to the parent or to a child, which is resumed with it; no answer is waited for.

        Args:
            to: the id of the parent's or a child's session, or `parent`.
            text: the message.
            options: see `MessageOptions`.

        Returns:
            The id of the message.

        Raises:
            InputError: the session is neither parent nor child of this one, or the text is empty.
            UnknownSession: there is no such session.
            WrongState: the session will not run again.
            LimitExceeded: the conversation has had more messages than it may.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        request: requests.Message = MESSAGE.read({"to": to, "text": text, **options})
        if not text.strip():
            raise InputError("a message needs a text")
        if to == "parent" and not self.parent:
            raise InputError(f"session {self.session} is a root and has no parent to talk to")
        other = self._find(self.parent if to == "parent" else to)
        if other.id != self.parent and other.parent != self.session:
            raise InputError(f"session {to} is neither the parent nor a child of {self.session}")
        priority, key = request.get("priority") or "normal", request.get("key")
        return self._parts.message_sender.message(other, text, priority=priority, key=key)

    def status(
        self, progress: int | None = None, activity: str = "", **options: Unpack[requests.StatusOptions]
    ) -> None:
        """Report the progress of this session: ``progress`` in percent, and its present activity.

        A parent is resumed with the status of a child that is blocked, and need not reply; ask it with `ask` for a reply.

        Args:
            progress: percent that are done.
            activity: what it is doing now.
            options: see `StatusOptions`.

        Raises:
            InputError: a value is invalid, or the progress is no whole number from 0 to 100.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        request: requests.Status = STATUS.read({"progress": progress, "activity": activity, **options})
        if not any(request.get(name) for name in requests.StatusOptions.__annotations__):
            self._effects.status(progress, activity)
            return
        metrics, status = request.get("metrics") or (), request.get("status")
        named = (
            [{"name": name, "text": str(value)} for name, value in metrics.items()]
            if isinstance(metrics, Mapping)
            else metrics
        )
        body = part_of(
            StatusUpdate,
            {
                "task_id": self._held.session.reported_as,
                "progress_percentage": progress,
                "current_activity": activity or None,
                "blockers": tuple(request.get("blockers") or ()),
                "artifacts_created": tuple(request.get("artifacts") or ()),
                "metrics": tuple(named),
                "next_steps": tuple(
                    {"order": n, "text": s} for n, s in enumerate(request.get("next_steps") or (), 1)
                ),
            },
            name="status",
        )
        blocked = any(blocker.severity == "critical" for blocker in body.blockers)
        self.report_status(
            body.model_copy(update={"status": status or ("blocked" if blocked else "in-progress")})
        )

    def report_status(self, body: StatusUpdate) -> None:
        """As `status`, with a status-update that was made before.

        Raises:
            InputError: it is too large.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        self._parts.message_sender.status(body)

    def report_error(self, error: ErrorReport | Mapping[str, Any]) -> None:
        """Tell the parent of an error, and go on; the parent is resumed with it and need not reply.

        An error that ends the task is returned instead: `return ErrorReport(…)`.

        Raises:
            InputError: this is a root, or it is no error report.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        report = part_of(ErrorReport, error, name="error")
        if not self.has_caller:
            raise InputError(f"session {self.session} has no parent to report an error to; return the report")
        self._parts.message_sender.report(report)

    def attach(self, name: str, text: str) -> None:
        """Attach a text to the answer of this run; the parent reads it with `callback.attachment(name)`.

        A later one of the same name replaces it. Of a text above 4 MiB the beginning is kept. Only what the
        run attaches that ends the session is kept: what an earlier run attached, attach it again (decision 36).

        Args:
            name: up to 100 letters, digits, dots, dashes, underscores and slashes.
            text: what is attached.

        Raises:
            InputError: the name is not allowed, ``text`` is no text, or this run has attached 100 texts.
            ClaimLost, SessionStopped: this run cannot go on.
        """
        if not _ATTACHMENT.fullmatch(name):
            raise InputError(
                f"attach({name!r}): a name has 1 to 100 letters, digits, dots, dashes, underscores and slashes"
            )
        check_text("text", text)
        self._claim_status.check()
        if name not in self.attachments and len(self.attachments) >= MAX_ATTACHMENTS:
            raise InputError(f"attach({name!r}): an answer has {MAX_ATTACHMENTS} attachments at most")
        # Stored by the commit, and only if this run ends the session with an answer (decision 36).
        self.attachments[name] = beginning(text, MAX_ATTACHMENT_BYTES)

    def end_with(self, end: TaskCompletion | ErrorReport) -> str:
        """Report the end of this run in full; its answer as text. An agent returns ``end`` instead of calling this.

        Raises:
            TaskFailed: it says that the task has failed.
        """
        if isinstance(end, ErrorReport):
            self._effects.failure = end
            raise TaskFailed(end.message)
        self._effects.completion = end
        answer = end.result if end.result is not None else end.summary
        if end.status == "failed":
            raise TaskFailed(answer)
        return answer

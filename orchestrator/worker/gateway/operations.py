"""The operations of a session for programs beside its agent: JSON values in, JSON values out, through one context.

Each operation is an effect of the run, or reads what the run may see. Nothing waits for longer than `MAX_WAIT_S`: what
takes longer is asked for again, and the answer says when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.envelope.bodies import Artifact, Blocker
from orchestrator.envelope.model_values import Priority
from orchestrator.errors import InputError
from orchestrator.policy.callback import Callback
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.queries import kind_of, query_of

#: Seconds that one call waits at most, and by default.
MAX_WAIT_S: Final = 50.0
WAIT_S: Final = 20.0
#: Characters of a child's answer that one call reads at most.
MAX_READ_CHARS: Final = 200_000
#: Seconds after which to ask again for what has not come.
AGAIN_S: Final = 1.0

WaitS = Annotated[float, Field(ge=0, le=MAX_WAIT_S)]


class _Parameters(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Nothing(_Parameters):
    """No parameters."""


class AgentsParameters(_Parameters):
    """Which agents: those with a tag, or all."""

    tag: str = ""


class DelegateParameters(_Parameters):
    """What is delegated."""

    agent: str
    task: str
    title: str = ""
    priority: Priority = "high"
    callback: bool = True
    group: str = ""
    after: tuple[str, ...] = ()
    key: str | None = None
    details: dict[str, Any] | None = None  #: what else is said of the task, as the fields of a `Task`
    expires_s: float | None = None
    retry_policy: dict[str, Any] | None = None
    time_limit_s: float | None = None


class WaitParameters(_Parameters):
    """What is waited for: these children, or all that have not ended."""

    sessions: tuple[str, ...] = ()
    timeout_s: WaitS = WAIT_S


class AskParameters(_Parameters):
    """What is asked; the answer is waited for."""

    message: str
    type: str = "query"
    context: dict[str, Any] | None = None
    priority: str | None = None
    timeout_s: WaitS = WAIT_S
    problem: str = ""
    attempted: tuple[str, ...] = ()
    file: tuple[str, ...] = ()
    error: str = ""
    urgency: Priority | None = None
    required_by: str | None = None


class RaiseParameters(_Parameters):
    """What is raised; no answer is waited for."""

    message: str
    type: str = "query"
    context: dict[str, Any] | None = None
    priority: str | None = None


class AnswerParameters(_Parameters):
    """The question whose answer is waited for."""

    question: str
    timeout_s: WaitS = WAIT_S


class ApprovalParameters(_Parameters):
    """What a person is to approve; the answer is waited for."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    reason: str = ""
    key: str | None = None
    timeout_s: WaitS = WAIT_S


class DecisionParameters(_Parameters):
    """The approval whose answer is waited for."""

    approval: str
    timeout_s: WaitS = WAIT_S


class ReplyParameters(_Parameters):
    """The answer to a question of a child."""

    question: str
    text: str


class ReadParameters(_Parameters):
    """A part of what a child answered, or of what it attached to its answer."""

    session: str
    attachment: str = ""
    offset: Annotated[int, Field(ge=0)] = 0
    length: Annotated[int, Field(ge=1, le=MAX_READ_CHARS)] = MAX_READ_CHARS


class MessageParameters(_Parameters):
    """What is said, and to whom: the parent's or a child's session, or `parent`."""

    to: str
    text: str
    priority: Priority = "normal"
    key: str | None = None


class StatusParameters(_Parameters):
    """How far the session is."""

    progress: int | None = None
    activity: str = ""
    blockers: tuple[Blocker, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    metrics: dict[str, Any] = {}
    next_steps: tuple[str, ...] = ()


class Operations:
    """The operations of one run. Threads may call them at the same time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reported: set[str] = set()
        self._lock = threading.Lock()
        self._table: dict[str, tuple[type[_Parameters], Callable[[Any], dict[str, Any]]]] = {
            "session": (Nothing, self._session),
            "delegate": (DelegateParameters, self._delegate),
            "wait": (WaitParameters, self._wait),
            "ask": (AskParameters, self._ask),
            "raise": (RaiseParameters, self._raise),
            "answer": (AnswerParameters, self._answer),
            "approval": (ApprovalParameters, self._approval),
            "decision": (DecisionParameters, self._decision),
            "reply": (ReplyParameters, self._reply),
            "message": (MessageParameters, self._message),
            "status": (StatusParameters, self._status),
            "results": (Nothing, self._results),
            "read": (ReadParameters, self._read),
            "agents": (AgentsParameters, self._agents),
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The operations that there are."""
        return tuple(self._table)

    def call(self, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an operation; its answer.

        Raises:
            InputError: there is no such operation, or a parameter is wrong.
            OrchestraError: as the context raises it.
        """
        if name not in self._table:
            raise InputError(f"there is no operation {name!r} (there are: {', '.join(self._table)})")
        model, carry_out = self._table[name]
        try:
            read = model.model_validate(dict(parameters))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(f"{name}: {where}: {first['msg']}") from None
        return carry_out(read)

    def _session(self, _: Nothing) -> dict[str, Any]:
        context = self._context
        return {
            "session": context.session,
            "agent": context.agent,
            "parent": context.parent,
            "root": context.root,
            "run": context.run,
            "attempt": context.attempt,
            "title": context.title,
            "cause": context.cause,
            "prompt": context.prompt,
            "stopping": context.stopping,
        }

    def _delegate(self, asked: DelegateParameters) -> dict[str, Any]:
        session = self._context.delegate(
            asked.agent,
            asked.task,
            title=asked.title,
            priority=asked.priority,
            callback=asked.callback,
            group=asked.group,
            after=asked.after,
            key=asked.key,
            task=asked.details,
            expires_s=asked.expires_s,
            retry_policy=asked.retry_policy,
            time_limit_s=asked.time_limit_s,
        )
        return {"session": session}

    def _wait(self, asked: WaitParameters) -> dict[str, Any]:
        with self._lock:
            reported = frozenset(self._reported)
        found = self._context.collect(asked.sessions, timeout_s=asked.timeout_s, known=reported)
        with self._lock:
            self._reported |= {callback.id for callback in found.callbacks}
        ended = [c for c in found.callbacks if c.kind == "completion"]
        return {
            "ended": [_ended(callback) for callback in ended],
            "questions": [_question(callback) for callback in found.callbacks if callback.can_reply],
            "outstanding": list(found.outstanding),
            "ask_again_s": AGAIN_S if found.outstanding else None,
        }

    def _ask(self, asked: AskParameters) -> dict[str, Any]:
        query = query_of(
            asked.type,
            problem=asked.problem,
            attempted=asked.attempted,
            file=asked.file,
            error=asked.error,
            urgency=asked.urgency,
            required_by=asked.required_by,
        )
        question = self._context.post_question(
            asked.message,
            kind=kind_of(asked.type),
            context=asked.context,
            priority=asked.priority,
            query=query,
        )
        return self._reply_to(question, asked.timeout_s)

    def _raise(self, asked: RaiseParameters) -> dict[str, Any]:
        if not self._context.has_caller:
            return {"question": None}
        question = self._context.post_question(
            asked.message, kind=asked.type, context=asked.context, priority=asked.priority
        )
        return {"question": question}

    def _answer(self, asked: AnswerParameters) -> dict[str, Any]:
        return self._reply_to(asked.question, asked.timeout_s)

    def _reply_to(self, question: str, timeout_s: float) -> dict[str, Any]:
        reply = self._context.reply_to(question, timeout_s=timeout_s)
        refused = reply is not None and reply.status == "failed"
        return {
            "question": question,
            "reply": None if reply is None or refused else reply.full(),
            "refused": reply.text if reply is not None and refused else None,
            "ask_again_s": AGAIN_S if reply is None else None,
        }

    def _approval(self, asked: ApprovalParameters) -> dict[str, Any]:
        approval = self._context.post_approval(
            asked.tool, asked.arguments, reason=asked.reason, key=asked.key
        )
        return self._decided(approval, asked.timeout_s)

    def _decision(self, asked: DecisionParameters) -> dict[str, Any]:
        return self._decided(asked.approval, asked.timeout_s)

    def _decided(self, approval: str, timeout_s: float) -> dict[str, Any]:
        decision = self._context.approvals.await_decision(approval, timeout_s=timeout_s)
        return {
            "approval": approval,
            "approved": None if decision is None else decision.approved,
            "comment": "" if decision is None else decision.comment,
            "ask_again_s": AGAIN_S if decision is None else None,
        }

    def _reply(self, asked: ReplyParameters) -> dict[str, Any]:
        return {"accepted": self._context.reply(asked.question, asked.text)}

    def _message(self, asked: MessageParameters) -> dict[str, Any]:
        said = self._context.message(asked.to, asked.text, priority=asked.priority, key=asked.key)
        return {"message": said}

    def _status(self, asked: StatusParameters) -> dict[str, Any]:
        self._context.status(
            asked.progress,
            asked.activity,
            blockers=asked.blockers,
            artifacts=asked.artifacts,
            metrics=asked.metrics,
            next_steps=asked.next_steps,
        )
        return {"stopping": self._context.stopping}

    def _results(self, _: Nothing) -> dict[str, Any]:
        return {"results": [_ended(callback) for callback in self._context.all_results]}

    def _agents(self, asked: AgentsParameters) -> dict[str, Any]:
        return {"agents": [record.listed for record in self._context.agents(asked.tag)]}

    def _read(self, asked: ReadParameters) -> dict[str, Any]:
        piece = self._context.read_result(
            asked.session, asked.attachment, offset=asked.offset, length=asked.length
        )
        return {
            "text": piece.text,
            "status": piece.status,
            "size": piece.size,
            "next_offset": piece.following,
        }


def _ended(callback: Callback) -> dict[str, Any]:
    return {
        "session": callback.session,
        "agent": callback.agent,
        "title": callback.title,
        "status": callback.status,
        "text": callback.full(),
        "attachments": list(callback.attachments),
        "details": callback.details,
        "completion": _fields(callback.completion),
        "error_report": _fields(callback.error_report),
    }


def _fields(body: BaseModel | None) -> dict[str, Any] | None:
    """What an agent reported of its end, field by field, without what it left out."""
    return None if body is None else body.model_dump(mode="json", exclude_defaults=True)


def _question(callback: Callback) -> dict[str, Any]:
    return {
        "question": callback.id,
        "session": callback.session,
        "agent": callback.agent,
        "type": callback.kind,
        "text": callback.full(),
        "details": callback.details,
        "context": callback.context,
    }

"""The operations of a session for programs beside its agent: JSON values in, JSON values out, through one context.

Each operation is an effect of the run, or reads what the run may see. Nothing waits for longer than `MAX_WAIT_S`: what
takes longer is asked for again, and the answer says when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, Field, ValidationError, validate_call

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


#: The operations by name, each with the method that carries it out.
_METHODS: Final[dict[str, Callable[..., dict[str, Any]]]] = {}

_Method = TypeVar("_Method", bound=Callable[..., dict[str, Any]])


def _operation(method: _Method) -> _Method:
    """Offer a method as the operation of its name, with parameters of its types."""
    checked = validate_call(method)
    _METHODS[method.__name__.rstrip("_")] = checked
    return checked


class Operations:
    """The operations of one run. Threads may call them at the same time.

    The parameters of an operation are those of its method, whose types pydantic checks at each call.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._reported: set[str] = set()
        self._lock = threading.Lock()

    def call(self, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an operation; its answer.

        Raises:
            InputError: there is no such operation, or a parameter is wrong.
            OrchestraError: as the context raises it.
        """
        if name not in _METHODS:
            raise InputError(f"there is no operation {name!r} (there are: {', '.join(_METHODS)})")
        try:
            return _METHODS[name](self, **parameters)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise InputError(f"{name}: {where}: {first['msg']}") from None

    @_operation
    def session(self) -> dict[str, Any]:
        """What the session is, and why it runs."""
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

    @_operation
    def delegate(
        self,
        *,
        agent: str,
        task: str,
        title: str = "",
        priority: Priority = "high",
        callback: bool = True,
        group: str = "",
        after: tuple[str, ...] = (),
        key: str | None = None,
        details: dict[str, Any] | None = None,
        expires_s: float | None = None,
        retry_policy: dict[str, Any] | None = None,
        time_limit_s: float | None = None,
    ) -> dict[str, Any]:
        """Launch a child; ``details`` are further fields of a `Task`."""
        session = self._context.delegate(
            agent,
            task,
            title=title,
            priority=priority,
            callback=callback,
            group=group,
            after=after,
            key=key,
            task=details,
            expires_s=expires_s,
            retry_policy=retry_policy,
            time_limit_s=time_limit_s,
        )
        return {"session": session}

    @_operation
    def wait(self, *, sessions: tuple[str, ...] = (), timeout_s: WaitS = WAIT_S) -> dict[str, Any]:
        """Wait for children: these, or all that have not ended."""
        with self._lock:
            reported = frozenset(self._reported)
        found = self._context.collect(sessions, timeout_s=timeout_s, known=reported)
        with self._lock:
            self._reported |= {callback.id for callback in found.callbacks}
        return {
            "ended": [_ended(callback) for callback in found.callbacks if callback.kind == "completion"],
            "questions": [_question(callback) for callback in found.callbacks if callback.can_reply],
            "outstanding": list(found.outstanding),
            "ask_again_s": AGAIN_S if found.outstanding else None,
        }

    @_operation
    def ask(
        self,
        *,
        message: str,
        type: str = "query",
        context: dict[str, Any] | None = None,
        priority: str | None = None,
        timeout_s: WaitS = WAIT_S,
        problem: str = "",
        attempted: tuple[str, ...] = (),
        file: tuple[str, ...] = (),
        error: str = "",
        urgency: Priority | None = None,
        required_by: str | None = None,
    ) -> dict[str, Any]:
        """Ask the parent or the user, and wait for the reply."""
        query = query_of(
            type,
            problem=problem,
            attempted=attempted,
            file=file,
            error=error,
            urgency=urgency,
            required_by=required_by,
        )
        question = self._context.post_question(
            message, kind=kind_of(type), context=context, priority=priority, query=query
        )
        return self.answer(question=question, timeout_s=timeout_s)

    @_operation
    def raise_(
        self,
        *,
        message: str,
        type: str = "query",
        context: dict[str, Any] | None = None,
        priority: str | None = None,
    ) -> dict[str, Any]:
        """Ask the parent, and wait for no reply."""
        if not self._context.has_caller:
            return {"question": None}
        question = self._context.post_question(message, kind=type, context=context, priority=priority)
        return {"question": question}

    @_operation
    def answer(self, *, question: str, timeout_s: WaitS = WAIT_S) -> dict[str, Any]:
        """Wait for the reply to a question."""
        reply = self._context.reply_to(question, timeout_s=timeout_s)
        refused = reply is not None and reply.status == "failed"
        return {
            "question": question,
            "reply": None if reply is None or refused else reply.full(),
            "refused": reply.text if reply is not None and refused else None,
            "ask_again_s": AGAIN_S if reply is None else None,
        }

    @_operation
    def approval(
        self,
        *,
        tool: str,
        arguments: dict[str, Any] | None = None,
        reason: str = "",
        key: str | None = None,
        timeout_s: WaitS = WAIT_S,
    ) -> dict[str, Any]:
        """Ask a person to approve something, and wait for the answer."""
        approval = self._context.post_approval(tool, arguments or {}, reason=reason, key=key)
        return self.decision(approval=approval, timeout_s=timeout_s)

    @_operation
    def decision(self, *, approval: str, timeout_s: WaitS = WAIT_S) -> dict[str, Any]:
        """Wait for the answer to an approval."""
        decision = self._context.approvals.await_decision(approval, timeout_s=timeout_s)
        return {
            "approval": approval,
            "approved": None if decision is None else decision.approved,
            "comment": "" if decision is None else decision.comment,
            "ask_again_s": AGAIN_S if decision is None else None,
        }

    @_operation
    def reply(self, *, question: str, text: str) -> dict[str, Any]:
        """Answer a question of a child."""
        return {"accepted": self._context.reply(question, text)}

    @_operation
    def message(
        self, *, to: str, text: str, priority: Priority = "normal", key: str | None = None
    ) -> dict[str, Any]:
        """Send a text to the parent's or a child's session; `parent` is the parent."""
        return {"message": self._context.message(to, text, priority=priority, key=key)}

    @_operation
    def status(
        self,
        *,
        progress: int | None = None,
        activity: str = "",
        blockers: tuple[Blocker, ...] = (),
        artifacts: tuple[Artifact, ...] = (),
        metrics: dict[str, Any] | None = None,
        next_steps: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Show how far the session is."""
        self._context.status(
            progress,
            activity,
            blockers=blockers,
            artifacts=artifacts,
            metrics=metrics or {},
            next_steps=next_steps,
        )
        return {"stopping": self._context.stopping}

    @_operation
    def results(self) -> dict[str, Any]:
        """What children have answered so far."""
        return {"results": [_ended(callback) for callback in self._context.all_results]}

    @_operation
    def read(
        self,
        *,
        session: str,
        attachment: str = "",
        offset: Annotated[int, Field(ge=0)] = 0,
        length: Annotated[int, Field(ge=1, le=MAX_READ_CHARS)] = MAX_READ_CHARS,
    ) -> dict[str, Any]:
        """Read a part of what a child answered, or of what it attached to its answer."""
        piece = self._context.read_result(session, attachment, offset=offset, length=length)
        return {
            "text": piece.text,
            "status": piece.status,
            "size": piece.size,
            "next_offset": piece.following,
        }

    @_operation
    def agents(self, *, tag: str = "") -> dict[str, Any]:
        """The agents that the session may delegate to: those with a tag, or all."""
        return {
            "agents": [
                {"agent": a.name, "role": a.role, "description": a.description, "tags": list(a.tags)}
                for a in self._context.agents(tag)
            ]
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

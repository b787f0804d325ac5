"""The session that this code works for: a function that an agent calls, or a program that it started.

    from orchestrator import current_session

    answer = current_session().raise_callback("config.py is missing", "blocker")

In the process of the run this is the context itself. A program that the agent started reaches the run over its
socket; socket and token are in its environment.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, Unpack

from orchestrator import errors, machine
from orchestrator.errors import ConfigurationError, NoReply, OrchestraError, ServerUnavailable, SessionFailed

if TYPE_CHECKING:
    from orchestrator.envelope.bodies import Task
    from orchestrator.operations import requests

SOCKET_VARIABLE: Final = "ORCHESTRA_SESSION_SOCKET"
TOKEN_VARIABLE: Final = "ORCHESTRA_SESSION_TOKEN"  # noqa: S105  (a name)
#: Seconds that a single request waits for an answer of the run, beyond what it asks the run to wait.
_PATIENCE_S: Final = 60.0
#: Seconds that one request asks the run to wait.
_STEP_S: Final = 20.0


P = ParamSpec("P")
R = TypeVar("R")


class CurrentSession(Protocol):
    """The session for which this code works, in any process."""

    def delegate(
        self, agent: str, task: str | Task | Mapping[str, Any], **options: Unpack[requests.DelegateOptions]
    ) -> str:
        """Launch a session of ``agent`` and go on; its id. Its end comes back as a callback."""
        ...

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
        """Raise a callback to the caller of this session, and return the reply; None if none comes."""
        ...

    def reply(self, question: str, text: str) -> bool:
        """Answer a question of a child; False when the answer comes too late."""
        ...

    def message(self, to: str, text: str, **options: Unpack[requests.MessageOptions]) -> str:
        """Send a message to the parent (`parent`) or to a child, without waiting for an answer."""
        ...

    def status(
        self, progress: int | None = None, activity: str = "", **options: Unpack[requests.StatusOptions]
    ) -> None:
        """Show how far the session is."""
        ...


_running: ContextVar[CurrentSession | None] = ContextVar("orchestra_session", default=None)


@contextmanager
def working_for(session: CurrentSession) -> Iterator[None]:
    """Make :func:`current_session` return ``session`` in this block."""
    token = _running.set(session)
    try:
        yield
    finally:
        _running.reset(token)


def is_running() -> bool:
    """Return True if the agent of a run calls this code."""
    return _running.get() is not None


def current_session() -> CurrentSession:
    """Return the session that this code works for.

    Raises:
        ConfigurationError: there is none.
    """
    found = _running.get()
    return found if found is not None else RemoteSession.from_environment()


def _remote(
    method: Callable[Concatenate[CurrentSession, P], R],
) -> Callable[Concatenate[RemoteSession, P], R]:
    """Return a method that has the run carry out a verb: what it is called with is the request of the verb's row."""
    verb, signature = method.__name__, inspect.signature(method)

    @functools.wraps(method)
    def call(self: RemoteSession, /, *args: P.args, **kwargs: P.kwargs) -> R:
        from orchestrator.operations.table import OF_SESSIONS

        request = signature.bind(self, *args, **kwargs).arguments
        del request["self"]
        answer = self.call(verb, **request.pop("options", {}), **request)
        result: R = answer.get(OF_SESSIONS[verb].answer)  # type: ignore[assignment]  # as the row says
        return result

    return call


class RemoteSession(CurrentSession):
    """The session of a run in another process, over the socket of that run. Threads may share it."""

    def __init__(self, path: str, token: str) -> None:
        self._path = path
        self._token = token

    @classmethod
    def from_environment(cls) -> RemoteSession:
        """Return the session that started this program.

        Raises:
            ConfigurationError: no agent of a running session did.
        """
        path, token = os.environ.get(SOCKET_VARIABLE, ""), os.environ.get(TOKEN_VARIABLE, "")
        if not path or not token:
            raise ConfigurationError(
                f"this program works for no session: {SOCKET_VARIABLE} and {TOKEN_VARIABLE} are not set; "
                "start it from an agent"
            )
        return cls(path, token)

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """Have the run carry out an operation; its answer. The parameter `timeout_s` says how long the run may wait.

        Raises:
            InputError: there is no such operation, or a parameter is wrong.
            ServerUnavailable: the run has ended, or its worker was lost.
            OrchestraError: the error that the run answers with.
        """
        from orchestrator.operations.table import operation_of_sessions

        row = operation_of_sessions(operation)
        request = {"token": self._token, "operation": operation, "parameters": row.dump(row.read(parameters))}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(float(parameters.get("timeout_s") or 0) + _PATIENCE_S)
                connection.connect(self._path)
                connection.sendall(json.dumps(request).encode() + b"\n")
                with connection.makefile("rb") as answers:
                    line = answers.readline()
        except OSError as error:
            raise ServerUnavailable(
                f"the run of this session does not answer ({error}): it has ended"
            ) from error
        if not line.endswith(b"\n"):
            raise ServerUnavailable("the run of this session ended before it answered")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise _error(answer["error"]["type"], answer["error"]["message"])
        return dict(answer["answer"])

    delegate = _remote(CurrentSession.delegate)
    reply = _remote(CurrentSession.reply)
    message = _remote(CurrentSession.message)
    status = _remote(CurrentSession.status)

    def wait(self, sessions: Sequence[str] = (), *, timeout_s: float | None = None) -> dict[str, Any]:
        """Wait until a child has ended or asks something: `ended`, `questions` and `outstanding`."""
        return self._poll("wait", timeout_s, sessions=sessions)

    def end_of(self, session: str, *, timeout_s: float | None = None) -> dict[str, Any] | None:
        """Wait for the end of a child: its `status` and `text`; None if it has not ended in time.

        A question of the child meanwhile is refused: use :meth:`wait` and :meth:`reply` to answer questions.
        """
        until = None if timeout_s is None else machine.monotonic() + timeout_s
        while True:
            left_s = None if until is None else max(0.0, until - machine.monotonic())
            answer = self.wait([session], timeout_s=left_s)
            for ended in answer["ended"]:
                return dict(ended)
            for question in answer["questions"]:
                self.reply(
                    question["question"], "no reply will come: a program waits for this session to end"
                )
            if until is not None and machine.monotonic() >= until:
                return None

    def ask(
        self, message: str, *, timeout_s: float | None = None, **options: Unpack[requests.QuestionOptions]
    ) -> str:
        """As `ctx.ask`. A question that is not answered in time stays open: its reply resumes the session.

        Raises:
            NoReply: no reply came in time, or none will come.
        """
        asked = self.call("ask", message=message, timeout_s=0, **options)
        answer = self._answer_to(asked["question"], timeout_s)
        if answer["reply"] is None:
            raise NoReply(message, answer["refused"] or "none came in time")
        return str(answer["reply"])

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
        """As `ctx.raise_callback`."""
        raised = self.call(
            "raise_callback", message=message, kind=callback_type, context=context, priority=priority
        )
        if raised["question"] is None or not wait:
            return None
        answer = self._answer_to(raised["question"], timeout_s)
        return None if answer["reply"] is None else str(answer["reply"])

    def read_result(self, session: str, attachment: str = "") -> str:
        """Return a child's answer, or what it attached to its answer under a name.

        Raises:
            InputError: it is no child that has ended, or has no such attachment.
            SessionFailed: it has failed, and an attachment was not asked for.
        """
        pieces, offset = [], 0
        while True:
            piece = self.call("read_result", session=session, attachment=attachment, offset=offset)
            pieces.append(str(piece["text"]))
            if piece["next_offset"] is None and piece["status"] == "failed" and not attachment:
                raise SessionFailed(session, "".join(pieces))
            if piece["next_offset"] is None:
                return "".join(pieces)
            offset = int(piece["next_offset"])

    def _answer_to(self, question: str, timeout_s: float | None) -> dict[str, Any]:
        return self._poll("answer", timeout_s, question=question)

    def _poll(self, operation: str, timeout_s: float | None, **parameters: Any) -> dict[str, Any]:
        """Call an operation that waits until it is done, or the time has passed; the last answer."""
        until = None if timeout_s is None else machine.monotonic() + timeout_s
        while True:
            left_s = _STEP_S if until is None else max(0.0, min(_STEP_S, until - machine.monotonic()))
            answer = self.call(operation, **parameters, timeout_s=left_s)
            done = answer["ask_again_s"] is None or answer.get("ended") or answer.get("questions")
            if done or (until is not None and machine.monotonic() >= until):
                return answer


def _error(kind: str, message: str) -> OrchestraError:
    """Return the error that a run answered with: of its own class where its sentence is its only argument."""
    found = getattr(errors, kind, None)
    if isinstance(found, type) and issubclass(found, OrchestraError):
        raised = found(message)
        if str(raised) == message:
            return raised
    return _Answered(kind, message)


class _Answered(OrchestraError):
    """An error of the run. Raised with (its class, its sentence)."""

    template = "{1}"

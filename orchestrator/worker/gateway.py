"""The operations of a session for programs beside its agent: JSON values in, JSON values out, through one context.

Each operation is an effect of the run, or reads what the run may see. Nothing waits for longer than `MAX_WAIT_S`: what
takes longer is asked for again, and the answer says when.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import socketserver
import struct
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel

from orchestrator.client.current import SOCKET_VARIABLE, TOKEN_VARIABLE
from orchestrator.errors import InputError, OrchestraError
from orchestrator.log import get_logger
from orchestrator.operations import requests
from orchestrator.operations.table import operation_of_sessions
from orchestrator.operations.values import MAX_READ_CHARS
from orchestrator.policy.callback import Callback
from orchestrator.runtime.process import folders_for_sockets
from orchestrator.worker.context.context import Context
from orchestrator.worker.git import scratch_folder

#: Seconds that one call waits by default.
WAIT_S: Final = 20.0
#: Seconds after which to ask again for what has not come.
AGAIN_S: Final = 1.0


class Operations:
    """The operations of one run. Threads may call them at the same time.

    A row of the table with the name of an answer is a call of the context; every other has its method here.
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
        operation = operation_of_sessions(name)
        request = operation.read(parameters)
        if operation.answer:
            return {operation.answer: getattr(self._context, name)(**request)}
        answer: dict[str, Any] = getattr(self, f"_{name}")(request)
        return answer

    def _session(self, _: requests.ShowSession) -> dict[str, Any]:
        """What the session is, and why it runs."""
        ids = ("session", "agent", "parent", "root", "run", "attempt")
        names = (*ids, "title", "cause", "prompt", "stopping")
        return {name: getattr(self._context, name) for name in names}

    def _wait(self, request: requests.Wait) -> dict[str, Any]:
        """Wait for children: these, or all that have not ended."""
        with self._lock:
            reported = frozenset(self._reported)
        found = self._context.collect(
            request.get("sessions") or (), timeout_s=_wait_s(request), known=reported
        )
        with self._lock:
            self._reported |= {callback.id for callback in found.callbacks}
        return {
            "ended": [_ended(callback) for callback in found.callbacks if callback.kind == "completion"],
            "questions": [_question(callback) for callback in found.callbacks if callback.can_reply],
            "outstanding": list(found.outstanding),
            "ask_again_s": AGAIN_S if found.outstanding else None,
        }

    def _ask(self, request: requests.Ask) -> dict[str, Any]:
        """Ask the parent or the user, and wait for the reply."""
        return self._reply_to(self._context.post_question(request), _wait_s(request))

    def _raise_callback(self, request: requests.RaiseCallback) -> dict[str, Any]:
        """Ask the parent, and wait for no reply."""
        return {"question": self._context.post_question(request) if self._context.has_caller else None}

    def _answer(self, request: requests.Answer) -> dict[str, Any]:
        """Wait for the reply to a question."""
        return self._reply_to(request["question"], _wait_s(request))

    def _reply_to(self, question: str, wait_s: float) -> dict[str, Any]:
        reply = self._context.reply_to(question, timeout_s=wait_s)
        refused = reply is not None and reply.status == "failed"
        return {
            "question": question,
            "reply": None if reply is None or refused else reply.full(),
            "refused": reply.text if reply is not None and refused else None,
            "ask_again_s": AGAIN_S if reply is None else None,
        }

    def _request_approval(self, request: requests.RequestApproval) -> dict[str, Any]:
        """Ask a person to approve something, and wait for the answer."""
        approval = self._context.post_approval(
            request["tool"],
            request.get("arguments") or {},
            reason=request.get("reason") or "",
            key=request.get("key"),
        )
        return self._decided(approval, _wait_s(request))

    def _decision(self, request: requests.Decide) -> dict[str, Any]:
        """Wait for the answer to an approval."""
        return self._decided(request["approval"], _wait_s(request))

    def _decided(self, approval: str, wait_s: float) -> dict[str, Any]:
        decision = self._context.approvals.await_decision(approval, timeout_s=wait_s)
        return {
            "approval": approval,
            "approved": None if decision is None else decision.approved,
            "comment": "" if decision is None else decision.comment,
            "ask_again_s": AGAIN_S if decision is None else None,
        }

    def _status(self, request: requests.Status) -> dict[str, Any]:
        """Show how far the session is."""
        self._context.status(**request)
        return {"stopping": self._context.stopping}

    def _results(self, _: requests.Results) -> dict[str, Any]:
        """What children have answered so far."""
        return {"results": [_ended(callback) for callback in self._context.all_results]}

    def _read_result(self, request: requests.ReadResult) -> dict[str, Any]:
        """Read a part of what a child answered, or of what it attached to its answer."""
        piece = self._context.read_result(
            request["session"],
            request.get("attachment") or "",
            offset=request.get("offset") or 0,
            length=request.get("length") or MAX_READ_CHARS,
        )
        return {
            "text": piece.text,
            "status": piece.status,
            "size": piece.size,
            "next_offset": piece.following,
        }

    def _agents(self, request: requests.ListAgents) -> dict[str, Any]:
        """The agents that the session may delegate to: those with a tag, or all."""
        return {"agents": [record.listed for record in self._context.agents(request.get("tag") or "")]}


def _wait_s(
    request: requests.Wait | requests.Ask | requests.Answer | requests.RequestApproval | requests.Decide,
) -> float:
    """The seconds that a call waits."""
    return WAIT_S if (given := request.get("timeout_s")) is None else given


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
    """Return the fields of an agent's own report of its end, without those at their defaults; None without a report."""
    return None if body is None else body.model_dump(mode="json", exclude_defaults=True)


def _question(callback: Callback) -> dict[str, Any]:
    return {
        "question": callback.id,
        "session": callback.session,
        "agent": callback.agent,
        "kind": callback.kind,
        "text": callback.full(),
        "details": callback.details,
        "context": callback.context,
    }


#: The beginning of the name of a socket's folder.
FOLDER_PREFIX: Final = "orchestra-run-"
_SOCKET: Final = "run.sock"
#: Octets of the longest request.
MAX_REQUEST: Final = 16 * 1024 * 1024
#: Seconds that a connection may be silent.
_SILENT_S: Final = 3600.0

_log = get_logger()


def folder_of_sockets() -> Path:
    """Return where the folders of runs' sockets are made; one that is made there has eight letters of its own."""
    return folders_for_sockets(f"{FOLDER_PREFIX}12345678/{_SOCKET}")[0]


class Gateway:
    """Serves one run. Use it as a ``with`` block, or end it with :meth:`close`."""

    def __init__(self, context: Context) -> None:
        self._operations = Operations(context)
        self._token = secrets.token_urlsafe(32)
        self._folder = ExitStack()
        self._path = self._folder.enter_context(scratch_folder(folder_of_sockets(), FOLDER_PREFIX)) / _SOCKET
        self._server = _Server(str(self._path), self)
        self._closed = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables by which a child process reaches this run."""
        return {SOCKET_VARIABLE: str(self._path), TOKEN_VARIABLE: self._token}

    def close(self) -> None:
        """Refuse everything from now on, and remove the socket; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._server.shutdown()
        self._server.server_close()
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def answer(self, line: bytes) -> dict[str, Any]:
        """The answer to a request. Nothing is raised: an error is an answer, too."""
        try:
            return {"answer": self._carry_out(line)}
        except OrchestraError as error:
            return _failure(type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001  (a caller of another process must not wait for ever)
            _log.exception("gateway-failed")
            return _failure(type(error).__name__, str(error))

    def _carry_out(self, line: bytes) -> dict[str, Any]:
        try:
            request = json.loads(line)
            token, operation = str(request["token"]), str(request["operation"])
            parameters = dict(request.get("parameters") or {})
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InputError("a request is a JSON object with token, operation and parameters") from None
        if self._closed or not hmac.compare_digest(token.encode(), self._token.encode()):
            raise InputError("the token is not of this run, or the run has ended")
        return self._operations.call(operation, parameters)


def _failure(kind: str, message: str) -> dict[str, Any]:
    return {"error": {"type": kind, "message": message}}


class _Handler(socketserver.StreamRequestHandler):
    """Handler of one connection."""

    server: _Server
    timeout = _SILENT_S

    def handle(self) -> None:
        while line := self.rfile.readline(MAX_REQUEST):
            if line.endswith(b"\n"):
                answer = self.server.gateway.answer(line)
            else:
                # The rest is read, too: a program reads no answer before it has written its request.
                while line and not line.endswith(b"\n"):
                    line = self.rfile.readline(MAX_REQUEST)
                if not line:
                    return
                answer = _failure(
                    "InputError", f"a request has at most {MAX_REQUEST} bytes; write long text to a file"
                )
            self.wfile.write(json.dumps(answer).encode() + b"\n")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, path: str, gateway: Gateway) -> None:
        self.gateway = gateway
        super().__init__(path, _Handler)
        os.chmod(path, 0o600)  # noqa: PTH101  (a socket)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Return True if the peer is the user that this process runs as, or the system cannot tell."""
        if not hasattr(socket, "SO_PEERCRED"):
            return True
        size = struct.calcsize("3i")
        _, user, _ = struct.unpack("3i", request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return bool(user == os.getuid())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is nobody's error."""
        _log.debug("gateway-connection-broken")

"""The socket of a run: programs that its agent started have effects under the token of that run.

The socket is a file that only this user may open (0600, in a folder of its own, 0700). Its server lives in the process
that holds the run's claim and ends with the run, and the token with it: a token that is used later reaches nobody, or
the socket of another run, which refuses it. Every request goes through the one context of the run, whose claim the
ledger checks at each effect.

A request is one line of JSON, ``{"token", "operation", "parameters"}``; so is its answer, ``{"answer"}`` or
``{"error": {"type", "message"}}``.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import socketserver
import struct
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from orchestrator.client.current import SOCKET_VARIABLE, TOKEN_VARIABLE
from orchestrator.errors import InputError, OrchestraError
from orchestrator.log import get_logger
from orchestrator.worker.context.context import Context
from orchestrator.worker.gateway.operations import Operations
from orchestrator.worker.scratch import scratch_folder

#: The beginning of the name of a socket's folder.
FOLDER_PREFIX: Final = "orchestra-run-"
#: Octets of the longest request.
MAX_REQUEST: Final = 16 * 1024 * 1024
#: Seconds that a connection may be silent.
_SILENT_S: Final = 3600.0

_log = get_logger()


class Gateway:
    """Serves one run. Use it as a ``with`` block, or end it with :meth:`close`."""

    def __init__(self, context: Context) -> None:
        self._operations = Operations(context)
        self._token = secrets.token_urlsafe(32)
        # The system's own folder for such things: the path of a socket must be short.
        self._folder = ExitStack()
        above = Path(tempfile.gettempdir())
        self._path = self._folder.enter_context(scratch_folder(above, FOLDER_PREFIX)) / "run.sock"
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

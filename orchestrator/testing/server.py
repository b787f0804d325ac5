"""A local HTTP server that speaks the formats of Anthropic Messages and OpenAI Chat Completions, by a script, and waits for it."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Collection, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Final, Self

from orchestrator.ids import callback_id
from orchestrator.testing.formats import (
    answer_of,
    anthropic_events,
    anthropic_whole,
    openai_events,
    openai_whole,
)
from orchestrator.testing.replies import Fail, Hang, Reply, Request, WireReply, read_anthropic, read_openai
from orchestrator.testing.script import Decide
from orchestrator.worker.context.waits import Blocking, Taken

_PATHS: Final[dict[str, Callable[[dict[str, Any], int], Request]]] = {
    "/v1/messages": read_anthropic,
    "/v1/chat/completions": read_openai,
}


class WireServer:
    """Answers model requests on loopback; use it as a ``with`` block, or `start` and `stop` it."""

    def __init__(self, script: Decide, *, port: int = 0) -> None:
        self._script = script
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.owner = self
        # It looks this often whether it is to end, and whoever ends it waits for that.
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._lock = threading.Lock()
        #: Every request so far, in the order in which they came.
        self.requests: list[Request] = []
        #: The key that each of them came with; empty: none.
        self.keys: list[str] = []
        #: Requests that got a complete answer: what a provider would have charged for.
        self.answered: list[Request] = []
        #: When each request came, on the monotonic clock.
        self.times: list[float] = []
        #: When the first piece of each streamed answer was written, on the monotonic clock, with its request.
        self.first_pieces: list[tuple[float, Request]] = []

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def environment(self) -> dict[str, str]:
        """Environment variables that send the providers' clients to this server."""
        return {
            "ANTHROPIC_BASE_URL": self.url,
            "ANTHROPIC_API_KEY": "test-key-anthropic",
            "OPENAI_BASE_URL": f"{self.url}/v1",
            "OPENAI_API_KEY": "test-key-openai",
        }

    def start(self) -> Self:
        """Listen; returns the server itself."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the server, also if it was never started; requests that hang are given up."""
        self._server.stopping.set()
        if self._thread.ident is not None:
            self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def note(self, path: str, body: dict[str, Any], key: str) -> Request:
        """Take a request into the list."""
        with self._lock:
            self.keys.append(key)
            request = _PATHS[path](body, len(self.requests))
            self.requests.append(request)
            self.times.append(time.monotonic())
            return request

    def decide(self, request: Request) -> Reply:
        """Return the script's reply to a request."""
        return self._script(request)

    def note_answered(self, request: Request) -> None:
        """Take a request into the list of those that got a complete answer."""
        with self._lock:
            self.answered.append(request)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    owner: WireServer

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.stopping = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no error of the server."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        # Small pieces of a stream are to arrive as they are written.
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is written: the requests are in the server's list."""

    def do_POST(self) -> None:
        path = self.path.partition("?")[0]
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length)
        if path not in _PATHS:
            self._write_json(404, {"error": {"type": "not_found_error", "message": f"no such path: {path}"}})
            return
        try:
            body = json.loads(raw)
        except ValueError:
            self._write_json(400, {"error": {"type": "invalid_request_error", "message": "no JSON"}})
            return
        owner = self.server.owner
        key = self.headers.get("x-api-key") or self.headers.get("authorization") or ""
        request = owner.note(path, body, key.removeprefix("Bearer "))
        answer: Fail | Hang | WireReply
        try:
            reply = owner.decide(request)
            answer = reply if isinstance(reply, Fail | Hang) else answer_of(reply, request)
        except Exception as error:  # noqa: BLE001  (the client gets it)
            answer = Fail(400, f"the script raised {type(error).__name__}: {error}")
        match answer:
            case Fail():
                self._fail(answer, request)
            case Hang():
                self.server.stopping.wait(answer.seconds)
                self.close_connection = True
            case WireReply():
                # Before its last byte is written: a client may act on it before this thread goes on.
                if not (answer.cut or answer.stop == "none" or request.stream):
                    owner.note_answered(request)
                self._answer(answer, request)

    def _fail(self, reply: Fail, request: Request) -> None:
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(reply.status, "overloaded_error" if reply.status == 529 else "api_error")
        error = {"type": kind, "message": reply.message}
        body = {"type": "error", "error": error} if request.provider == "anthropic" else {"error": error}
        headers = {} if reply.retry_after_s is None else {"retry-after": f"{reply.retry_after_s:g}"}
        self._write_json(reply.status, body, headers)

    def _answer(self, answer: WireReply, request: Request) -> None:
        anthropic = request.provider == "anthropic"
        if not request.stream:
            document = (anthropic_whole if anthropic else openai_whole)(answer, request)
            self._write_json(200, document, cut=answer.cut)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        events = list((anthropic_events if anthropic else openai_events)(answer, request))
        self.server.owner.first_pieces.append((time.monotonic(), request))
        for number, (name, event) in enumerate(events):
            if answer.cut and number >= len(events) // 2:
                self._break_off()
                return
            if number == len(events) - 1 and answer.stop != "none":
                self.server.owner.note_answered(request)
            self._write_event(name, json.dumps(event))
            if answer.pace_s:
                self.server.stopping.wait(answer.pace_s)
        if not anthropic:
            self._write_event("", "[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _write_event(self, name: str, data: str) -> None:
        text = (f"event: {name}\n" if name else "") + f"data: {data}\n\n"
        octets = text.encode()
        self.wfile.write(f"{len(octets):x}\r\n".encode() + octets + b"\r\n")
        self.wfile.flush()

    def _write_json(
        self, status: int, body: dict[str, Any], headers: dict[str, str] | None = None, *, cut: bool = False
    ) -> None:
        octets = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(octets)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if cut:
            self.wfile.write(octets[: len(octets) // 2])
            self._break_off()
            return
        self.wfile.write(octets)

    def _break_off(self) -> None:
        self.wfile.flush()
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)


#: Brings what an item id stands for, as the script says; False: the script says that it does not come.
Bring = Callable[[str, float | None], bool]


class ScriptedBlocking(Blocking):
    """The waiting of one run, whose answers are brought by ``bring``."""

    def __init__(self, *args: Any, bring: Bring, **given: Any) -> None:
        super().__init__(*args, **given)
        self._bring = bring

    def look(self, children: Sequence[str], *, timeout_s: float, known: Collection[str]) -> list[Taken]:
        """As a real run looks, after the script has brought what it has."""
        if timeout_s > 0:
            found = self._ended_or_asked(children, "wait")
            if not any(item.id not in known for item, _ in found):
                for child in children:
                    self._bring(callback_id(child), timeout_s)
        return super().look(children, timeout_s=0.0, known=known)

    def _wait(
        self, item: str, *, awaited: str, timeout_s: float | None, tend: Callable[[], bool]
    ) -> Taken | None:
        while True:
            taken = self.take(item, "wait")
            if taken is not None:
                return taken
            if not tend():
                return self.take(item, "give up")
            if not self._bring(item, timeout_s):
                return self.take(item, "give up")

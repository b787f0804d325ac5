"""A model on this machine for real programs: Anthropic Messages, OpenAI Responses and Gemini generateContent, by a script.

It is their proxy, too, and lets nothing through: what a program wants of the network is in `refused`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from orchestrator.testing.formats import anthropic_events, anthropic_whole
from orchestrator.testing.replies import WireReply, read_anthropic

INPUT, OUTPUT = 100, 20
#: Of the input, what the provider's cache took and what it gave.
WRITTEN, READ = 10, 30


@dataclass(frozen=True)
class Call:
    """A tool that the model calls; a name without its prefix is enough."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Cut:
    """An answer that the limit of its tokens cut off."""

    text: str


@dataclass(frozen=True)
class Ask:
    """What a program asks the model for."""

    said: str  #: the whole conversation, as JSON
    last: str  #: what came since the model's last answer, as JSON
    tools: tuple[str, ...]
    body: dict[str, Any]


#: What the model says; a number is the status of a failure.
Script = Callable[[Ask], str | Call | Cut | int]


class ModelServer:
    """Listens on loopback as long as its ``with`` block lasts."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Ask] = []
        self.refused: list[str] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"model": self}))
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that goes away
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: ModelServer

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is written."""

    def do_CONNECT(self) -> None:
        self._refuse()

    def do_GET(self) -> None:
        self._refuse()

    def _refuse(self) -> None:
        self.model.refused.append(f"{self.command} {self.path}")
        self._write(404, b"{}", "application/json")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.partition("?")[0]
        if path.endswith(("count_tokens", ":countTokens")):
            self._write(
                200, json.dumps({"input_tokens": INPUT, "totalTokens": INPUT}).encode(), "application/json"
            )
        elif path == "/v1/messages":
            self._answer(_ask(json.loads(raw), "messages", "assistant"), _anthropic)
        elif path == "/v1/responses":
            self._answer(_ask(json.loads(raw), "input", "assistant"), _responses)
        elif "GenerateContent" in path or ":generateContent" in path:
            self._answer(_ask(json.loads(raw), "contents", "model"), _gemini)
        else:
            self._refuse()

    def _answer(self, ask: Ask, events: Callable[[Ask, str | Call | Cut], Iterator[tuple[str, Any]]]) -> None:
        self.model.asked.append(ask)
        reply = self.model.script(ask)
        if isinstance(reply, int):
            error = {
                "code": reply,
                "type": "rate_limit_error",
                "message": "no more",
                "status": "RESOURCE_EXHAUSTED",
            }
            self._write(reply, json.dumps({"type": "error", "error": error}).encode(), "application/json")
            return
        if isinstance(reply, Call):
            named = [name for name in ask.tools if name.endswith(reply.tool)]
            reply = Call(named[0] if named else reply.tool, reply.arguments)
        made = list(events(ask, reply))
        if ask.body.get("stream", True) is False or ":generateContent" in self.path:
            self._write(200, json.dumps(made[-1][1]).encode(), "application/json")
            return
        lines = [
            (f"event: {name}\n" if name else "") + f"data: {json.dumps(event)}\n\n" for name, event in made
        ]
        self._write(200, "".join(lines).encode(), "text/event-stream")

    def _write(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _ask(body: dict[str, Any], key: str, own: str) -> Ask:
    items = body.get(key) or []
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    last: list[Any] = []
    for item in reversed(items):
        if item.get("role") == own or item.get("type") in ("function_call", "reasoning"):
            break
        last.insert(0, item)
    tools = [tool for tool in body.get("tools") or () if isinstance(tool, dict)]
    names = [tool.get("name") for tool in tools if not tool.get("tools")]
    names += [one.get("name") for tool in tools for one in tool.get("functionDeclarations") or ()]
    # Codex puts the tools of a server into a namespace.
    names += [f"{tool['name']}.{one.get('name')}" for tool in tools for one in tool.get("tools") or ()]
    return Ask(json.dumps(items), json.dumps(last), tuple(name for name in names if name), body)


def _anthropic(ask: Ask, reply: str | Call | Cut) -> Iterator[tuple[str, Any]]:
    request = read_anthropic(ask.body, 0)
    # Here, and not with the others, the cache's are no part of the input.
    used = {"input_tokens": INPUT - WRITTEN - READ, "output_tokens": OUTPUT}
    if isinstance(reply, Call):
        call = (f"toolu_{request.digest}", reply.tool, json.dumps(reply.arguments))
        answer = WireReply(calls=(call,), stop="tool", **used)
    elif isinstance(reply, Cut):
        answer = WireReply(text=reply.text, stop="length", **used)
    else:
        answer = WireReply(text=reply, **used)
    made = anthropic_events(answer, request) if request.stream else [("", anthropic_whole(answer, request))]
    for name, event in made:
        usage = event.get("message", event).get("usage")
        if usage is not None and "input_tokens" in usage:
            usage |= {"cache_creation_input_tokens": WRITTEN, "cache_read_input_tokens": READ}
        yield name, event


def _responses(ask: Ask, reply: str | Call | Cut) -> Iterator[tuple[str, Any]]:
    cut = isinstance(reply, Cut)
    reply = reply.text if isinstance(reply, Cut) else reply
    number = f"{len(ask.said)}"
    base = {"id": f"resp_{number}", "object": "response", "model": ask.body.get("model"), "output": []}
    if isinstance(reply, str):
        content = [{"type": "output_text", "text": reply, "annotations": []}]
        item = {
            "type": "message",
            "id": f"msg_{number}",
            "role": "assistant",
            "status": "completed",
            "content": content,
        }
    else:
        namespace, _, tool = reply.tool.rpartition(".")
        item = {
            "type": "function_call",
            "id": f"fc_{number}",
            "call_id": f"call_{number}",
            "name": tool,
            "arguments": json.dumps(reply.arguments),
            **({"namespace": namespace} if namespace else {}),
        }
    usage = {
        "input_tokens": INPUT,
        "output_tokens": OUTPUT,
        "total_tokens": INPUT + OUTPUT,
        "input_tokens_details": {"cached_tokens": READ},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    status = "incomplete" if cut else "completed"
    whole = {**base, "status": status, "output": [item], "usage": usage}
    if cut:
        whole["incomplete_details"] = {"reason": "max_output_tokens"}
    for kind, more in (
        ("response.created", {"response": {**base, "status": "in_progress"}}),
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        (f"response.{status}", {"response": whole}),
    ):
        yield kind, {"type": kind, **more}


def _gemini(ask: Ask, reply: str | Call | Cut) -> Iterator[tuple[str, Any]]:
    reason = "MAX_TOKENS" if isinstance(reply, Cut) else "STOP"
    reply = reply.text if isinstance(reply, Cut) else reply
    part: dict[str, Any] = (
        {"text": reply}
        if isinstance(reply, str)
        else {"functionCall": {"name": reply.tool, "args": reply.arguments}}
    )
    yield (
        "",
        {
            "candidates": [
                {"content": {"role": "model", "parts": [part]}, "finishReason": reason, "index": 0}
            ],
            "usageMetadata": {
                "promptTokenCount": INPUT,
                "cachedContentTokenCount": READ,
                "candidatesTokenCount": OUTPUT,
                "totalTokenCount": INPUT + OUTPUT,
            },
        },
    )

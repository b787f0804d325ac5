"""Answers that are not whole: streams that break off, and those that end in good order without saying why."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from orchestrator.testing import Call, Cut, Reply, Say, Script
from tests.kit import Kit

from .conftest import Model, Serve

PROVIDERS = ["anthropic:claude-sonnet-5-5", "openai-chat:gpt-5"]
HALF = Cut("The answer is not", in_order=True)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("half", [HALF, Cut("", calls=[Call("roll")], in_order=True)], ids=["text", "call"])
def test_a_stream_that_does_not_say_why_it_ends_is_tried_again(
    kit: Kit, model: Model, serve: Serve, provider: str, half: Reply
) -> None:
    rolled: list[int] = []
    server = serve(Script(half, Say("The answer is not known.")))
    model("speaker", model=provider, tools=[_roll(rolled)])
    session = kit.begin("speaker", ends="retry")
    assert kit.again(session) == "finished"
    assert kit.answer(session) == "The answer is not known."
    assert (len(server.requests), rolled) == (2, [])


def _roll(rolled: list[int]) -> Callable[[], str]:
    def roll() -> str:
        """Roll a die."""
        rolled.append(1)
        return "four"

    return roll


@pytest.mark.parametrize("provider", PROVIDERS)
def test_one_that_never_says_why_fails_and_is_named(
    kit: Kit, model: Model, serve: Serve, provider: str
) -> None:
    serve(Script(*[HALF] * 3))
    model("speaker", model=provider, attempts=2)
    session = kit.begin("speaker", ends="retry")
    assert kit.again(session) == "failed"
    reason = kit.ledger.session(session).reason
    assert "half an answer" in reason
    assert "finish_reason" in reason


class _Responses(BaseHTTPRequestHandler):
    """The Responses format of OpenAI: the first stream ends early, the second one is whole."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is written."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).asked += 1
        whole = self.asked > 1
        text = "All of it." if whole else "Half"
        response = {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "model": "gpt-5",
            "output": [],
            "status": "in_progress",
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [],
        }
        part = {"type": "output_text", "text": "", "annotations": []}
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        events = [
            {"type": "response.created", "response": response},
            {"type": "response.output_item.added", "output_index": 0, "item": message},
            {"type": "response.content_part.added", **place, "part": part},
            {"type": "response.output_text.delta", **place, "delta": text, "logprobs": []},
        ]
        if whole:
            usage = {
                "input_tokens": 100,
                "output_tokens": 20,
                "total_tokens": 120,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            }
            done = {**response, "status": "completed", "usage": usage}
            events.append({"type": "response.completed", "response": done})
        lines = [
            f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n"
            for number, event in enumerate(events)
        ]
        octets = "".join(lines).encode()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("content-length", str(len(octets)))
        self.end_headers()
        self.wfile.write(octets)


@pytest.fixture
def responses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    _Responses.asked = 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Responses)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "test-key")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("responses")
def test_so_it_is_in_the_responses_format(kit: Kit, model: Model) -> None:
    model("speaker", model="openai-responses:gpt-5")
    session = kit.begin("speaker", ends="retry")
    assert kit.again(session) == "finished"
    assert kit.answer(session) == "All of it."
    assert kit.ledger.session(session).used.tokens >= 120

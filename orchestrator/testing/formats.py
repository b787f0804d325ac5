"""Answers in the formats of the providers: as one document, and as the events of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from orchestrator.testing.replies import Call, Cut, Empty, Malformed, Request, Say, Truncated, WireReply

#: Characters of one piece of a streamed text.
_PIECE: Final = 12
_ANTHROPIC_STOP: Final = {"end": "end_turn", "tool": "tool_use", "length": "max_tokens", "none": None}
_OPENAI_STOP: Final = {"end": "stop", "tool": "tool_calls", "length": "length", "none": None}


def answer_of(reply: Say | Cut | Malformed | Empty | Truncated, request: Request) -> WireReply:
    """Return a reply of a script in the terms that both formats share; ids derive from the conversation."""
    match reply:
        case Say():
            calls = _calls(reply.calls, request)
            return WireReply(
                text=reply.text,
                calls=calls,
                stop="tool" if calls else "end",
                input_tokens=reply.input_tokens,
                output_tokens=reply.output_tokens,
                pace_s=reply.pace_s,
                usage=reply.usage,
            )
        case Cut():
            calls = _calls(reply.calls, request)
            stop = "none" if reply.in_order else "end"
            return WireReply(text=reply.text, calls=calls, stop=stop, cut=not reply.in_order)
        case Malformed():
            return WireReply(calls=((_call_id(request, 0), reply.tool, reply.arguments),), stop="tool")
        case Truncated():
            return WireReply(
                text=reply.text,
                calls=_calls(reply.calls, request),
                stop="length",
                input_tokens=reply.input_tokens,
                output_tokens=reply.output_tokens,
            )
        case Empty():
            return WireReply()
        case _:
            raise TypeError(f"a script answers with Say, Fail or another reply, not {reply!r}")


def _calls(calls: Sequence[Call], request: Request) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (_call_id(request, number), call.tool, json.dumps(call.arguments))
        for number, call in enumerate(calls)
    )


def _call_id(request: Request, number: int) -> str:
    return f"call_{request.digest}_{number}"


def anthropic_whole(answer: WireReply, request: Request) -> dict[str, Any]:
    """Return the answer as one message of Anthropic."""
    content: list[dict[str, Any]] = [{"type": "text", "text": answer.text}] if answer.text else []
    for call, tool, arguments in answer.calls:
        content.append({"type": "tool_use", "id": call, "name": tool, "input": _parsed(arguments)})
    return {
        "id": f"msg_{request.digest}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": _ANTHROPIC_STOP[answer.stop],
        "stop_sequence": None,
        "usage": {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens},
    }


def anthropic_events(answer: WireReply, request: Request) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the answer as the events of a stream of Anthropic."""
    message = {**anthropic_whole(answer, request), "content": [], "stop_reason": None}
    message["usage"] = {"input_tokens": answer.input_tokens, "output_tokens": 1}
    yield "message_start", {"type": "message_start", "message": message}
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if answer.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(answer.text)]
        blocks.append(({"type": "text", "text": ""}, deltas))
    for call, tool, arguments in answer.calls:
        deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(arguments)]
        blocks.append(({"type": "tool_use", "id": call, "name": tool, "input": {}}, deltas))
    for index, (block, deltas) in enumerate(blocks):
        start = {"type": "content_block_start", "index": index, "content_block": block}
        yield "content_block_start", start
        for delta in deltas:
            yield "content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta}
        yield "content_block_stop", {"type": "content_block_stop", "index": index}
    if answer.stop == "none":
        return
    yield (
        "message_delta",
        {
            "type": "message_delta",
            "delta": {"stop_reason": _ANTHROPIC_STOP[answer.stop], "stop_sequence": None},
            "usage": {"output_tokens": answer.output_tokens},
        },
    )
    yield "message_stop", {"type": "message_stop"}


def openai_whole(answer: WireReply, request: Request) -> dict[str, Any]:
    """Return the answer as a chat completion of OpenAI."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = [
            {"id": call, "type": "function", "function": {"name": tool, "arguments": arguments}}
            for call, tool, arguments in answer.calls
        ]
    return {
        "id": f"chatcmpl-{request.digest}",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": _OPENAI_STOP[answer.stop]}],
        **({"usage": _openai_usage(answer)} if answer.usage else {}),
    }


def openai_events(answer: WireReply, request: Request) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the answer as the chunks of a stream of OpenAI."""
    base = {**openai_whole(answer, request), "object": "chat.completion.chunk"}
    base.pop("usage", None)

    def chunk(delta: dict[str, Any], finish: str | None = None) -> tuple[str, dict[str, Any]]:
        return "", {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in _pieces(answer.text):
        yield chunk({"content": piece})
    for index, (call, tool, arguments) in enumerate(answer.calls):
        function = {"name": tool, "arguments": ""}
        yield chunk({"tool_calls": [{"index": index, "id": call, "type": "function", "function": function}]})
        for piece in _pieces(arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    if answer.stop == "none":
        return
    yield chunk({}, _OPENAI_STOP[answer.stop])
    if answer.usage:
        yield "", {**base, "choices": [], "usage": _openai_usage(answer)}


def _openai_usage(answer: WireReply) -> dict[str, int]:
    total = answer.input_tokens + answer.output_tokens
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": total,
    }


def _pieces(text: str) -> list[str]:
    return [text[i : i + _PIECE] for i in range(0, len(text), _PIECE)]


def _parsed(arguments: str) -> Any:
    """Return the arguments of a tool call, parsed; text that is no JSON stays text."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments

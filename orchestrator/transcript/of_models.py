"""Turns of a model agent, of the messages of its conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from pydantic import BaseModel
from pydantic_ai import capture_run_messages
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse

from orchestrator.policy.budget import Cost
from orchestrator.transcript.model import PartKind, Turn

#: Ends of an answer that say nothing.
_USUAL_ENDS: Final = ("stop", "tool_call", None)
_SAID: Final[dict[str, PartKind]] = {"text": "text", "thinking": "thinking", "compaction": "note"}


@contextmanager
def listening(
    turns: list[BaseModel], history: Sequence[ModelMessage], price: Callable[..., Cost], prices: Any
) -> Iterator[None]:
    """Add the turns of the conversation that goes on in the block, also if it fails.

    Args:
        turns: gets them.
        history: the conversation before.
        price: returns the cost of a request to a model.
        prices: its own prices; None: it has none.
    """
    earlier = {message.run_id for message in history}
    with capture_run_messages() as messages:
        try:
            yield
        finally:
            new = [one for one in messages if one.run_id not in earlier]
            try:
                turns += turns_of(new, partial(price, prices=prices))
            except Exception as error:  # noqa: BLE001  (nobody loses an answer because it cannot be shown)
                unread = Turn()
                unread.add("note", f"what was said cannot be shown: {error!r}")
                turns.append(unread)


def turns_of(messages: Sequence[ModelMessage], price: Callable[..., Cost]) -> list[Turn]:
    """Return a turn for each answer, with what led to it; what nobody answered is one of its own."""
    turns, present, instructions = [], Turn(), ""
    for message in messages:
        if isinstance(message, ModelRequest):
            if message.instructions and message.instructions != instructions:
                instructions = message.instructions
                present.add("instructions", instructions)
            for part in message.parts:
                _add_given(present, part)
        else:
            _add_answer(present, message, price)
            turns.append(present)
            present = Turn()
    if present.parts and turns and all(part.kind == "result" for part in present.parts):
        turns[-1].parts += present.parts  # the run ended with them
    elif present.parts:
        turns.append(present)
    return turns


def _add_given(turn: Turn, part: Any) -> None:
    retried = part.part_kind in ("retry-prompt", "retry-feedback") or getattr(part, "retry", None) is not None
    tool, call = getattr(part, "tool_name", None) or "", getattr(part, "tool_call_id", None) or ""
    if retried:
        turn.add("retry", _faults(part.content), tool=tool, call=call)
    elif part.part_kind == "tool-return":
        turn.add("result", part.model_response_str(), tool=tool, call=call)
    elif part.part_kind in ("user-prompt", "system-prompt"):
        content = part.content
        pieces = [content] if isinstance(content, str) else [_piece(one) for one in content]
        turn.add("prompt" if part.part_kind == "user-prompt" else "instructions", "\n".join(pieces))


def _add_answer(turn: Turn, answer: ModelResponse, price: Callable[..., Cost]) -> None:
    for part in answer.parts:
        kind = part.part_kind
        if kind in ("tool-call", "builtin-tool-call", "native-tool-call"):
            called: Any = part
            turn.add("call", called.args_as_json_str(), tool=called.tool_name, call=called.tool_call_id)
        elif kind in ("builtin-tool-return", "native-tool-return"):
            given: Any = part
            turn.add("result", given.model_response_str(), tool=given.tool_name, call=given.tool_call_id)
        elif kind in _SAID:
            if content := str(getattr(part, "content", "") or ""):
                turn.add(_SAID[kind], content)
        else:
            turn.add("note", _piece(part))
    usage = answer.usage
    turn.at_ms = round(answer.timestamp.timestamp() * 1000)
    turn.model = ":".join(filter(None, (answer.provider_name, answer.model_name)))
    turn.input_tokens, turn.output_tokens = max(0, usage.input_tokens), max(0, usage.output_tokens)
    turn.nano_usd = price(
        answer.model_name or "",
        provider=answer.provider_name,
        input_tokens=turn.input_tokens,
        output_tokens=turn.output_tokens,
        cache_read_tokens=max(0, usage.cache_read_tokens),
        cache_write_tokens=max(0, usage.cache_write_tokens),
    ).nano_usd
    if answer.state == "interrupted":
        turn.stopped = "it was interrupted"
    elif answer.finish_reason not in _USUAL_ENDS:
        turn.stopped = str(answer.finish_reason)
    if refusal := (answer.provider_details or {}).get("refusal"):
        turn.add("text", str(refusal))


def _faults(content: Any) -> str:
    """Return why something was not accepted: of errors of a form where, what, and what stood there."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False, default=str)
    lines = []
    for fault in content:
        where = ".".join(str(step) for step in fault.get("loc", ())) or "the answer"
        lines.append(f"{where}: {fault.get('msg', '')}, and it said {fault.get('input')!r}")
    return "\n".join(lines)


def _piece(value: Any) -> str:
    """Return a piece of content that is not text, in words."""
    if isinstance(value, str):
        return value
    media = getattr(getattr(value, "content", value), "media_type", "")
    data = getattr(getattr(value, "content", value), "data", b"")
    if isinstance(data, bytes) and data:
        return f"[{media or type(value).__name__}, {len(data)} bytes]"
    return f"[{getattr(value, 'url', '') or getattr(value, 'kind', '') or type(value).__name__}]"

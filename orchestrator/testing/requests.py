"""A model request as a script reads it, whichever provider's format it came in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Message:
    """A message of the conversation."""

    role: Literal["user", "assistant"]
    text: str = ""
    calls: tuple[str, ...] = ()  #: tools that the model called
    results: tuple[str, ...] = ()  #: results of tools


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request of a client to the server."""

    provider: Literal["anthropic", "openai"]
    model: str
    instructions: str  #: what came in the system's role
    messages: tuple[Message, ...]
    tools: tuple[str, ...]  #: names of the tools that the model may call
    stream: bool
    number: int  #: how many requests the server had before
    body: dict[str, Any] = field(repr=False)

    @property
    def turn(self) -> int:
        """The number of the model's answers in the conversation so far."""
        return sum(message.role == "assistant" for message in self.messages)

    @property
    def last(self) -> str:
        """Everything that the model got since its last answer, results of tools included."""
        texts: list[str] = []
        for message in reversed(self.messages):
            if message.role == "assistant":
                break
            texts = [*message.results, message.text, *texts]
        return "\n".join(filter(None, texts))

    @property
    def size(self) -> int:
        """Characters of the request: four of them are about a token."""
        return len(json.dumps(self.body, ensure_ascii=False))

    @property
    def digest(self) -> str:
        """The same for the same conversation, however often it is asked for."""
        messages = json.dumps(self.body.get("messages"), sort_keys=True)
        return hashlib.sha256(f"{self.instructions}{messages}".encode()).hexdigest()[:16]


def read_anthropic(body: dict[str, Any], number: int) -> Request:
    """Return a request in the format of Anthropic Messages."""
    messages = []
    for message in body.get("messages", ()):
        blocks = _blocks(message.get("content"))
        messages.append(
            Message(
                role="assistant" if message.get("role") == "assistant" else "user",
                text=_join(block.get("text", "") for block in blocks if block.get("type") == "text"),
                calls=tuple(str(block.get("name")) for block in blocks if block.get("type") == "tool_use"),
                results=tuple(
                    _text(block.get("content")) for block in blocks if block.get("type") == "tool_result"
                ),
            )
        )
    return Request(
        provider="anthropic",
        model=str(body.get("model", "")),
        instructions=_text(body.get("system")),
        messages=tuple(messages),
        tools=tuple(str(tool.get("name", "")) for tool in body.get("tools") or ()),
        stream=bool(body.get("stream")),
        number=number,
        body=body,
    )


def read_openai(body: dict[str, Any], number: int) -> Request:
    """Return a request in the format of OpenAI Chat Completions."""
    instructions, messages = [], []
    for message in body.get("messages", ()):
        text = _text(message.get("content"))
        match message.get("role"):
            case "system" | "developer":
                instructions.append(text)
            case "assistant":
                calls = tuple(call["function"]["name"] for call in message.get("tool_calls") or ())
                messages.append(Message(role="assistant", text=text, calls=calls))
            case "tool":
                messages.append(Message(role="user", results=(text,)))
            case _:
                messages.append(Message(role="user", text=text))
    return Request(
        provider="openai",
        model=str(body.get("model", "")),
        instructions="\n".join(instructions),
        messages=tuple(messages),
        tools=tuple(str(tool["function"]["name"]) for tool in body.get("tools") or ()),
        stream=bool(body.get("stream")),
        number=number,
        body=body,
    )


def _blocks(content: Any) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or () if isinstance(block, dict)]


def _text(content: Any) -> str:
    return _join(str(block.get("text", "")) for block in _blocks(content))


def _join(texts: Iterable[str]) -> str:
    return "\n".join(filter(None, texts))

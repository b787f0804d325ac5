"""Replies of a scripted provider, the requests it got, and who responds: a text, tool calls, or a way in which a provider fails."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.ids import approval_of, child_of, question_of
from orchestrator.ledger import Ledger
from orchestrator.policy.approval import read_request
from orchestrator.testing.answers import (
    Answer,
    Answers,
    Asks,
    Done,
    Failed,
    Lines,
    Never,
    NotScripted,
    Verdict,
)
from orchestrator.testing.others import Others


class Call:
    """A tool call: ``Call("search", query="leases")``."""

    def __init__(self, tool: str, /, **arguments: Any) -> None:
        self.tool = tool
        self.arguments = arguments

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"Call({self.tool!r}{', ' if given else ''}{given})"


@dataclass(frozen=True)
class Say:
    """An answer: a text, tool calls, or both."""

    text: str = ""
    calls: Sequence[Call] = ()
    input_tokens: int = 100
    output_tokens: int = 20
    #: Seconds between two pieces of a stream.
    pace_s: float = 0
    #: Whether the answer tells what it took.
    usage: bool = True


@dataclass(frozen=True)
class Fail:
    """An HTTP error, such as 429 with ``retry_after_s``, 529 (overloaded), 500, 401."""

    status: int
    message: str = "scripted failure"
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Hang:
    """No answer for so many seconds, then the connection is closed."""

    seconds: float


@dataclass(frozen=True)
class Cut:
    """The connection breaks in the middle of the answer."""

    text: str = "this is where the connection"
    calls: Sequence[Call] = ()
    #: A stream that ends in good order all the same: nothing but the missing reason tells that it is half an answer.
    in_order: bool = False


@dataclass(frozen=True)
class Malformed:
    """A tool call whose arguments are no JSON."""

    tool: str
    arguments: str = '{"never": "closed'


@dataclass(frozen=True)
class Empty:
    """An answer without any content."""


@dataclass(frozen=True)
class Truncated:
    """An answer that was cut by the token limit."""

    text: str = ""
    calls: Sequence[Call] = ()
    input_tokens: int = 100
    output_tokens: int = 20


#: What a script may say.
Reply = Say | Fail | Hang | Cut | Malformed | Empty | Truncated


@dataclass(frozen=True)
class WireReply:
    """A reply in the terms that both formats share."""

    text: str = ""
    #: Of each tool call: its id, the tool, the arguments as JSON text.
    calls: tuple[tuple[str, str, str], ...] = ()
    stop: str = "end"  #: end, tool, length, or `none`: the stream does not say why it ends
    input_tokens: int = 100
    output_tokens: int = 20
    pace_s: float = 0
    cut: bool = False
    usage: bool = True


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


@dataclass(frozen=True)
class _Asking:
    """A question of a child that waits for the reply of the agent."""

    question: str
    then: str | Done | Failed | Callable[[str], str]


class Respondents:
    """The children, the parent, the user and the person who approves, of one session under test."""

    def __init__(
        self,
        others: Others,
        ledger: Ledger,
        *,
        answers: Answers | None,
        replies: Answer | Sequence[Answer] | None,
        decisions: Verdict | Sequence[Verdict] | None,
    ) -> None:
        self._others = others
        self._ledger = ledger
        self._answers = {name: Lines(lines) for name, lines in (answers or {}).items()}
        self._replies, self._decisions = Lines(replies), Lines(decisions)
        self._asked_before: dict[str, _Asking] = {}
        #: The session under test.
        self.of = ""

    @property
    def agents(self) -> list[str]:
        """The agents that the script names."""
        return [name for name in self._answers if name != "*"]

    def bring(self, item: str) -> bool:
        """Bring the item that the agent waits for. False: the script says that it does not come.

        Raises:
            NotScripted: the script does not say.
        """
        if child := child_of(item):
            return self._bring_child(child)
        if approval := approval_of(item):
            return self._bring_decision(approval)
        question = question_of(item)
        return question is not None and self._bring_reply(question)

    def bring_all(self) -> None:
        """Bring everything that is outstanding, once each.

        Raises:
            NotScripted: the script does not say.
        """
        about = self._ledger.session(self.of)
        for question in about.questions:
            if question in about.approvals:
                self._bring_decision(question)
            else:
                self._bring_reply(question)
        for item in self._ledger.items(self.of):
            if item.kind == "completion" and item.state == "owed":
                asked = self._asked_before.get(item.child)
                if asked is None or self._others.has_reply(asked.question, item.child):
                    self._bring_child(item.child)

    def _bring_child(self, child: str) -> bool:
        about = self._ledger.session(child)
        task = self._ledger.texts(child, ["prompt"]).get("prompt", "")
        lines = self._answers.get(about.agent) or self._answers.get("*")
        if (asked := self._asked_before.pop(child, None)) is not None:
            reply = self._others.reply_to(asked.question, child)
            if reply is None:
                raise NotScripted(
                    f"the agent has not replied to the question of {about.agent!r}: {asked.question}"
                )
            answer: Any = asked.then(reply) if callable(asked.then) else asked.then
        else:
            answer = lines.next(task) if lines is not None else None
        match answer:
            case None:
                raise NotScripted(
                    f"the agent waits for {about.agent!r}, and the script has no (more) answer of it: "
                    f"give answers={{{about.agent!r}: …}}, or Never()"
                )
            case Never():
                return False
            case Asks(question, then):
                self._asked_before[child] = _Asking(self._others.ask_parent(child, question), then)
            case Failed(reason):
                self._others.end_child(child, reason, failed=True)
            case Done(text, attachments):
                self._others.end_child(child, text, attachments=attachments)
            case _:
                self._others.end_child(child, str(answer))
        return True

    def _bring_decision(self, approval: str) -> bool:
        item = self._ledger.item(self.of, approval)
        request = read_request(approval, item.extra.get("context") if item is not None else None)
        match self._decisions.next(request.tool, json.loads(request.arguments)):
            case None:
                raise NotScripted(
                    f"a person is asked to approve {request.tool!r}: give decisions=True or False"
                )
            case Never():
                return False
            case Failed(reason):
                self._others.decide(approval, approved=False, comment=reason)
            case verdict:
                self._others.decide(approval, approved=bool(verdict))
        return True

    def _bring_reply(self, question: str) -> bool:
        about = self._ledger.session(self.of)
        text = self._ledger.texts(about.parent or about.id, [question]).get(question, "")
        match self._replies.next(text):
            case None:
                raise NotScripted(f"the agent asks {text!r}: give replies=…, or Never()")
            case Never():
                return False
            case Failed(reason):
                self._others.reply(about, question, reason, declined=True)
            case reply:
                self._others.reply(about, question, str(reply))
        return True

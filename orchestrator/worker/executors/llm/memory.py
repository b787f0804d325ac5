"""The memory of a model agent's session: the messages so far, and what its tool calls wait for.

It is written with the commit of a run, compressed, beside the session's large texts. It is bounded: what is old is
shortened, by a function of the agent's author or by the one here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, PlainSerializer, PlainValidator, ValidationError
from pydantic_ai.messages import (
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from orchestrator.agents.options import LlmOptions
from orchestrator.errors import DamagedRecord
from orchestrator.worker.executors.llm.current import Pending

#: Characters of a token, about.
CHARS_PER_TOKEN: Final = 4
#: Characters that are kept of a long text in an old message.
OLD_TEXT_CHARS: Final = 600
#: Format of what is written.
_VERSION: Final = 1


class Memory(BaseModel):
    """Memory of a model agent's session."""

    version: int = _VERSION
    messages: Annotated[
        list[ModelMessage],
        PlainValidator(ModelMessagesTypeAdapter.validate_python),
        PlainSerializer(lambda messages: ModelMessagesTypeAdapter.dump_python(messages, mode="json")),
    ] = []
    pending: dict[str, Pending] = {}
    #: Results of tool calls, while others of the same response still wait.
    arrived: dict[str, str] = {}
    #: Tool calls whose approvals have an answer, while others of the same response still wait.
    decided: list[str] = []
    #: What else has come while an approval is open, as the model is to see it afterwards.
    held: str = ""
    #: Questions of the parent among that.
    asked: list[str] = []


def load(text: str) -> Memory:
    """The memory that was kept as this text; an empty memory for an empty text.

    Raises:
        DamagedRecord: it cannot be read, or is of a newer version.
    """
    if not text:
        return Memory()
    try:
        memory = Memory.model_validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise DamagedRecord("a session's memory", " ".join(first["msg"].split())) from None
    if memory.version > _VERSION:
        raise DamagedRecord("a session's memory", f"it has the format {memory.version} of a newer version")
    return memory


def shorten(messages: Sequence[ModelMessage], options: LlmOptions) -> list[ModelMessage]:
    """The messages to keep: by the agent's own function, else by :func:`keep_ends`."""
    if options.shorten is not None:
        return list(options.shorten(list(messages)))
    return keep_ends(messages, max_tokens=options.memory_tokens)


def tokens_of(messages: Sequence[ModelMessage]) -> int:
    """Return the number of tokens of messages, estimated by their length."""
    return len(ModelMessagesTypeAdapter.dump_json(list(messages))) // CHARS_PER_TOKEN


def keep_ends(messages: Sequence[ModelMessage], *, max_tokens: int) -> list[ModelMessage]:
    """Messages of at most ``max_tokens``: the task, the plan that follows it, and the last turns.

    First the long texts of old messages are shortened, results of children to their beginning and the reference that
    reads on. Then turns after the plan are left out, oldest first. A tool call and its result stay together.
    """
    if tokens_of(messages) <= max_tokens:
        return list(messages)
    turns = _turns([_with_short_texts(message) for message in messages[:-2]] + list(messages[-2:]))
    first, rest = turns[:2], turns[2:]
    left_out = 0
    while rest[1:] and tokens_of(_flat(first + rest)) > max_tokens:
        left_out += len(rest.pop(0))
    kept = _flat(first + rest)
    if tokens_of(kept) > max_tokens:
        kept = [_with_short_texts(message) for message in kept]
    if left_out and isinstance(kept[0], ModelRequest):
        note = UserPromptPart(f"[{left_out} messages of this conversation were left out here]")
        kept[0] = dataclasses.replace(kept[0], parts=[*kept[0].parts, note])
    return kept


def shorter(messages: Sequence[ModelMessage]) -> Iterator[list[ModelMessage]]:
    """The messages with more and more of the older ones left out: half of them, all but the task, at last the task, too.

    The newest is whole in each of them: nobody's question is cut and then answered.
    """
    older, newest = messages[:-1], messages[-1]
    if older:
        yield [*keep_ends(older, max_tokens=tokens_of(older) // 2), newest]
    turns = _turns([*map(_with_short_texts, older), newest])
    if turns[2:]:
        yield _flat([turns[0], turns[-1]])
    if turns[1:] and not any(isinstance(part, ToolReturnPart) for part in newest.parts):
        yield [newest]


def _turns(messages: Sequence[ModelMessage]) -> list[list[ModelMessage]]:
    """The first request; then each response with the requests that follow it, which hold the results of its calls."""
    turns: list[list[ModelMessage]] = []
    for message in messages:
        if not turns or isinstance(message, ModelResponse):
            turns.append([])
        turns[-1].append(message)
    return turns


def _flat(turns: Sequence[Sequence[ModelMessage]]) -> list[ModelMessage]:
    return [message for turn in turns for message in turn]


def _with_short_texts(message: ModelMessage) -> ModelMessage:
    parts: Any = [_short_part(part) for part in message.parts]
    return dataclasses.replace(message, parts=parts)


def _short_part(part: Any) -> Any:
    if isinstance(part, ToolReturnPart | UserPromptPart | TextPart):
        return dataclasses.replace(part, content=_short_text(part.content))
    if isinstance(part, ToolCallPart) and isinstance(part.args, dict):
        return dataclasses.replace(part, args={name: _short_text(value) for name, value in part.args.items()})
    return part


def _short_text(text: Any) -> Any:
    if not isinstance(text, str) or len(text) <= OLD_TEXT_CHARS:
        return text
    closing = "\n</agent-callback>" if text.startswith("<agent-callback") else ""
    return f"{text[:OLD_TEXT_CHARS]}\n[shortened, {len(text)} characters; read_result reads results of children]{closing}"

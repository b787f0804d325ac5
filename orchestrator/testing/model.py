"""A model object that follows a script, for tests of an agent that need no server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigurationError
from orchestrator.testing.formats import answer_of
from orchestrator.testing.replies import Fail, Hang, Message, Request
from orchestrator.testing.script import Decide

if TYPE_CHECKING:
    from pydantic_ai.models.function import FunctionModel


def scripted_model(script: Decide) -> FunctionModel:
    """Return a model for `model_agent(model=…)` and `Agent.override(model=…)` that answers by a script.

    Raises:
        ConfigurationError: pydantic-ai is not installed.
    """
    try:
        from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
        from pydantic_ai.models.function import FunctionModel
    except ImportError:
        raise ConfigurationError(
            "a scripted model needs pydantic-ai: pip install 'agent-orchestra[llm]'"
        ) from None

    def respond(messages: Any, info: Any) -> ModelResponse:
        request = _request(messages, info)
        reply = script(request)
        if isinstance(reply, Fail | Hang):
            raise ConnectionError(f"scripted: {reply!r}")
        answer = answer_of(reply, request)
        parts: list[Any] = [TextPart(answer.text)] if answer.text else []
        parts += [ToolCallPart(tool, arguments, tool_call_id=call) for call, tool, arguments in answer.calls]
        return ModelResponse(parts=parts)

    async def stream(messages: Any, info: Any) -> Any:
        from pydantic_ai.models.function import DeltaToolCall

        response = respond(messages, info)
        for index, part in enumerate(response.parts):
            if isinstance(part, TextPart):
                yield part.content
            elif isinstance(part, ToolCallPart):
                arguments = part.args_as_json_str()
                yield {index: DeltaToolCall(part.tool_name, arguments, tool_call_id=part.tool_call_id)}

    return FunctionModel(respond, stream_function=stream, model_name="scripted")


def _request(messages: Any, info: Any) -> Request:
    from pydantic_ai.messages import (
        ModelRequest,
        RetryPromptPart,
        SystemPromptPart,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    found: list[Message] = []
    system: list[str] = []
    for message in messages:
        if isinstance(message, ModelRequest):
            texts = [str(p.content) for p in message.parts if isinstance(p, UserPromptPart)]
            back = [str(p.content) for p in message.parts if isinstance(p, ToolReturnPart | RetryPromptPart)]
            system += [p.content for p in message.parts if isinstance(p, SystemPromptPart)]
            found.append(Message(role="user", text="\n".join(texts), results=tuple(back)))
        else:
            texts = [p.content for p in message.parts if isinstance(p, TextPart)]
            calls = tuple(p.tool_name for p in message.parts if isinstance(p, ToolCallPart))
            found.append(Message(role="assistant", text="\n".join(texts), calls=calls))
    plain = [{"role": m.role, "text": m.text, "calls": m.calls, "results": m.results} for m in found]
    return Request(
        provider="anthropic",
        model="scripted",
        instructions="\n".join([*system, str(info.instructions or "")]),
        messages=tuple(found),
        tools=tuple(tool.name for tool in info.function_tools),
        stream=False,
        number=0,
        body={"messages": plain},
    )

"""Long waits as MCP tasks (extension `io.modelcontextprotocol/tasks`), for clients that declare the extension.

A tool that waits answers at once: with what is there, or with a task that the client asks for again. The id of a task says
what the task waits for, so that a restarted server knows it, and nothing is kept here. A client without tasks gets the same
answers with `ask_again_s`.
"""

from __future__ import annotations

import base64
import hashlib
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, RequestParams, TextContent

from orchestrator.machine import SystemClock, isoformat

IDENTIFIER: Final = "io.modelcontextprotocol/tasks"
#: Milliseconds after which to ask for a task again.
POLL_MS: Final = 1000

#: Calls a tool of the server with arguments; raises ToolError.
CallTool = Callable[..., Awaitable[dict[str, Any]]]
#: How a tool goes on waiting: a tool, and its arguments.
FollowUp = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[str, dict[str, Any]]]


class TaskParams(RequestParams):
    """Which task."""

    task_id: str


class LongWaits(Extension):
    """Makes tasks of the calls of tools that wait."""

    identifier = IDENTIFIER

    def __init__(self, tools: Mapping[str, CallTool], follow_ups: Mapping[str, FollowUp]) -> None:
        self._tools = tools
        self._follow_ups = follow_ups
        #: Digests of what calls of tools have brought already.
        self._known: set[str] = set()
        self._clock = SystemClock()

    def methods(self) -> Sequence[MethodBinding]:
        """The methods of the extension."""
        return (
            MethodBinding("tasks/get", TaskParams, self._get),
            MethodBinding("tasks/cancel", TaskParams, self._acknowledge),
            MethodBinding("tasks/update", TaskParams, self._acknowledge),
        )

    async def intercept_tool_call(
        self, params: CallToolRequestParams, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """What a tool answers; a task where it waits and the client knows tasks."""
        capabilities = ctx.session.client_capabilities
        known = capabilities is not None and IDENTIFIER in (capabilities.extensions or {})
        follow_up = self._follow_ups.get(params.name)
        if not known or follow_up is None:
            return await call_next(ctx)
        asked = dict(params.arguments or {})
        params.arguments = {**asked, "timeout_s": 0}
        result = await call_next(ctx)
        if not isinstance(result, CallToolResult) or result.is_error or not result.structured_content:
            return result
        answer = result.structured_content
        news = _digest(answer)
        if answer["ask_again_s"] is None or (_brought(answer) and news not in self._known):
            self._known.add(news)
            return result
        tool, arguments = follow_up(asked, answer)
        now_ms = self._clock.now_ms()
        task = {"tool": tool, "arguments": arguments, "known": news, "created_ms": now_ms}
        return {"resultType": "task", **_shown(_id_of(task), task, "working", now_ms)}

    async def _get(self, _: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        task, now_ms = self._task(params.task_id), self._clock.now_ms()
        try:
            answer = await self._tools[task["tool"]](**task["arguments"], timeout_s=0)
        except ToolError as error:
            failed = CallToolResult(content=[TextContent(type="text", text=str(error))], is_error=True)
            return self._completed(params.task_id, task, failed, now_ms)
        news = _digest(answer)
        if answer["ask_again_s"] is not None and (not _brought(answer) or news == task["known"]):
            return _shown(params.task_id, task, "working", now_ms)
        self._known.add(news)
        text = TextContent(type="text", text=json.dumps(answer, indent=2))
        done = CallToolResult(content=[text], structured_content=answer)
        return self._completed(params.task_id, task, done, now_ms)

    def _completed(
        self, task_id: str, task: Mapping[str, Any], result: CallToolResult, now_ms: int
    ) -> dict[str, Any]:
        shown = _shown(task_id, task, "completed", now_ms)
        return {**shown, "result": result.model_dump(by_alias=True, mode="json", exclude_none=True)}

    async def _acknowledge(self, _: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        """Nothing waits here for a task that nobody asks for again; and no task takes input."""
        self._task(params.task_id)
        return {}

    def _task(self, task_id: str) -> dict[str, Any]:
        try:
            task = json.loads(base64.urlsafe_b64decode(task_id.encode()))
            # A client may make up an id: the tool checks its arguments as in a call.
            inspect.signature(self._tools[task["tool"]]).bind(**task["arguments"], timeout_s=0)
            return {**task, "created_ms": int(task["created_ms"]), "known": str(task["known"])}
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise MCPError(code=INVALID_PARAMS, message="there is no such task")


def _id_of(task: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(task, separators=(",", ":")).encode()).decode()


def _shown(task_id: str, task: Mapping[str, Any], status: str, now_ms: int) -> dict[str, Any]:
    return {
        "taskId": task_id,
        "status": status,
        "createdAt": isoformat(task["created_ms"]),
        "lastUpdatedAt": isoformat(now_ms),
        "ttlMs": None,
        "pollIntervalMs": POLL_MS,
    }


def _brought(answer: Mapping[str, Any]) -> list[str]:
    """The ends and questions that an answer brings, by id."""
    found = []
    for name, key in (("ended", "session"), ("questions", "question")):
        listed = answer.get(name)
        found += [str(one[key]) for one in listed] if isinstance(listed, list) else []
    return sorted(found)


def _digest(answer: Mapping[str, Any]) -> str:
    """Tells two answers apart by what they bring."""
    return hashlib.sha256(json.dumps(_brought(answer)).encode()).hexdigest()[:16]

"""Serves a table of operations as tools: over standard input and output, or over HTTP on loopback with a token."""

from __future__ import annotations

import hmac
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import anyio.to_thread
import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from orchestrator.client.current import RemoteSession
from orchestrator.errors import OrchestraError
from orchestrator.operations.table import OF_SESSIONS, Operation

HOST: Final = "127.0.0.1"
PATH: Final = "/mcp"
#: What an agent reads of its session's tools.
SESSION_INSTRUCTIONS: Final = (
    "You work for one session of agent-orchestra. Delegate work to other agents, wait for it, ask who gave you your "
    "task, and answer your children. Nothing waits longer than 50 seconds: where ask_again_s is a number, call the same "
    "tool again after so many seconds. What has not come when you finish resumes you later."
)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def build_server(
    name: str,
    instructions: str,
    operations: Mapping[str, Operation],
    call: Callable[[str, Mapping[str, Any]], Mapping[str, Any]],
) -> Server[Any]:
    """A server whose tools are operations; ``call`` carries one out, in a thread, so that others go on meanwhile.

    The client gets the sentence of an error of ours.
    """

    async def list_tools(_context: Any, _page: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(name=one.name, description=one.schema["description"], input_schema=one.schema)
                for one in operations.values()
            ]
        )

    async def call_tool(_context: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        if asked.name not in operations:
            return _refused(f"there is no tool {asked.name!r} (there are: {', '.join(operations)})")
        try:
            answer = await anyio.to_thread.run_sync(
                call, asked.name, asked.arguments or {}, abandon_on_cancel=True
            )
        except OrchestraError as error:
            return _refused(str(error))
        text = types.TextContent(type="text", text=json.dumps(answer, indent=2))
        return types.CallToolResult(content=[text], structured_content=dict(answer))

    return Server(name, instructions=instructions, on_list_tools=list_tools, on_call_tool=call_tool)


def _refused(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=sentence)], is_error=True)


def build_session_server(session: RemoteSession) -> Server[Any]:
    """A server whose tools act for a session."""
    return build_server(
        "agent-orchestra", SESSION_INSTRUCTIONS, OF_SESSIONS, lambda name, given: session.call(name, **given)
    )


def serve_stdio(server: Server[Any]) -> None:
    """Serve one client over standard input and output, until it closes them."""

    async def serve() -> None:
        async with stdio_server() as (requests, answers):
            await server.run(requests, answers, server.create_initialization_options())

    anyio.run(serve)


def serve_http(server: Server[Any], *, port: int, token: str) -> None:
    """Serve clients that know the token, on loopback, until this process gets a signal."""
    app = require_token(server.streamable_http_app(streamable_http_path=PATH, host=HOST), token)
    uvicorn.run(app, host=HOST, port=port, log_level="warning")


def require_token(app: App, token: str) -> App:
    """An ASGI application that refuses requests without ``Authorization: Bearer`` and the token."""
    wanted = f"Bearer {token}".encode()

    async def guarded(scope: Message, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "lifespan" or hmac.compare_digest(given, wanted):
            await app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": b"the token is missing or wrong\n"})

    return guarded

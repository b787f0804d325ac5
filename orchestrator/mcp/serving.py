"""Serves over standard input and output, or over HTTP on loopback with a token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import anyio
import uvicorn
from mcp.server import MCPServer

HOST: Final = "127.0.0.1"
PATH: Final = "/mcp"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]


def serve_stdio(server: MCPServer[Any]) -> None:
    """Serve one client over standard input and output, until it closes them."""
    anyio.run(server.run_stdio_async)


def serve_http(server: MCPServer[Any], *, port: int, token: str) -> None:
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

"""`orchestra program mcp`: a server of the Model Context Protocol for the session of an agent, or for the operator."""

from __future__ import annotations

import os
import secrets
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

import click

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.options import stack_options
from orchestrator.cli.output import say

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings

#: Holds the token of an operator's server over HTTP. Without it a new token is made and printed.
TOKEN_VARIABLE: Final = "ORCHESTRA_MCP_TOKEN"  # noqa: S105  (a name)
#: Bytes of the shortest token that is taken from there.
_SHORTEST: Final = 16


@click.command()
@click.option("--operator", is_flag=True, help="Serve a person's assistant: submit, watch, answer.")
@click.option(
    "--may-approve",
    is_flag=True,
    help="With --operator: the assistant may also approve and deny, when the person says so.",
)
@click.option(
    "--http", is_flag=True, help="Serve over HTTP on loopback instead of standard input and output."
)
@click.option("--port", type=click.IntRange(1, 65535), default=8765, show_default=True, help="With --http.")
@stack_options
def mcp(settings: Settings, *, operator: bool, may_approve: bool, http: bool, port: int) -> None:
    """Serve MCP (Model Context Protocol) for the session that started this program; needs the extra `mcp`.

    The session is found by the environment that its agent gave. Over HTTP a client sends the token of the session
    (ORCHESTRA_SESSION_TOKEN) as `Authorization: Bearer TOKEN`; an operator's client sends ORCHESTRA_MCP_TOKEN, or the
    token that is printed.
    """
    if find_spec("mcp") is None:
        raise Refused("MCP needs its SDK: pip install 'agent-orchestra[mcp]'")
    if may_approve and not operator:
        raise click.UsageError("--may-approve is for the server of an operator: add --operator")
    from orchestrator.mcp.serving import HOST, PATH, serve_http, serve_stdio

    if operator:
        from orchestrator.client.client import Client
        from orchestrator.mcp.operator_server import build_operator_server

        client = Client(settings)
        server, token = (
            build_operator_server(client, may_approve=may_approve),
            os.environ.get(TOKEN_VARIABLE, ""),
        )
        if token and len(token) < _SHORTEST:
            raise Refused(f"{TOKEN_VARIABLE} is too short: give at least {_SHORTEST} characters")
    else:
        from orchestrator.client.current import TOKEN_VARIABLE as SESSION_TOKEN
        from orchestrator.client.current import RemoteSession
        from orchestrator.mcp.serving import build_session_server

        session = RemoteSession.from_environment()
        session.call("session")  # fails now if there is no such session
        server, token = build_session_server(session), os.environ[SESSION_TOKEN]
    if not http:
        serve_stdio(server)
        return
    if not token:
        token = secrets.token_urlsafe(32)
        say(f"token: {token}", err=True)
    say(f"serving http://{HOST}:{port}{PATH}", err=True)
    serve_http(server, port=port, token=token)

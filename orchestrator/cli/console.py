"""`orchestra console` and `open`: the web console, and an address that lets its bearer in once."""

from __future__ import annotations

import os
import webbrowser
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import print_json, say
from orchestrator.runtime.process import user_name

if TYPE_CHECKING:
    import redis

    from orchestrator.config.settings import Settings
    from orchestrator.console.serving import ConsoleService

#: What is said where libraries are missing.
INSTALL = "the console needs its libraries: pip install 'agent-orchestra[console]'"


def require_templates() -> None:
    """Raise Refused if the library is missing that makes pages as files."""
    if find_spec("jinja2") is None:
        raise Refused("a page needs Jinja2, which is missing: pip install 'agent-orchestra[report]'")


@click.command()
@click.option("--host", metavar="ADDRESS", help="Address to listen on. Default: the setting `console_host`.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0: any. Default: the setting `console_port`.",
)
@click.option("--prefix", metavar="PATH", default="", help="Path below which it is served, such as /console.")
@click.option("--read-only", is_flag=True, help="Nobody may act: everybody is a viewer.")
@stack_options
def console(settings: Settings, *, host: str | None, port: int | None, prefix: str, read_only: bool) -> None:
    """Serve the web console of the stack in the foreground; needs the extra `console`.

    It prints an address with a token that lets its bearer in once; `orchestra open` prints another. On an address that
    others reach it starts only with a lasting token (ORCHESTRA_CONSOLE_TOKEN) or behind a named proxy
    (ORCHESTRA_CONSOLE_PROXIES).
    """
    from orchestrator.config.stack import resolve_redis_url
    from orchestrator.deployment.local_stack import has_console

    if not has_console():
        raise Refused(INSTALL)
    from orchestrator.console.access import Access
    from orchestrator.console.serving import ConsoleService, listen, place_of, rules_of
    from orchestrator.runtime.service import READY_VARIABLE, serve

    host, port = host or settings.console_host, settings.console_port if port is None else port
    access = Access(rules_of(settings, host, read_only=read_only))
    resolve_redis_url(settings)  # without a stack there is nothing to show
    supervised = READY_VARIABLE in os.environ
    sock = listen(host, port, or_any=supervised)
    place = place_of(sock, host, prefix)
    if not supervised:
        say(f"console: {place.url}/?token={access.make_token(user_name('operator'))}")
        say("The address lets its bearer in once; `orchestra open` prints another. Ctrl-C stops the console.")

    def build(_client: redis.Redis, settings: Settings) -> ConsoleService:
        return ConsoleService(settings, access, sock, place, prefix=prefix)

    serve("console", build, settings)


@click.command("open")
@click.option("--viewer", is_flag=True, help="Who comes in with it may look and not act.")
@click.option(
    "--name",
    default="",
    metavar="NAME",
    help="Name under which the audit trail notes actions. Default: yours.",
)
@click.option("--print", "print_only", is_flag=True, help="Print the address and start no browser.")
@json_option
@stack_options
def open_(settings: Settings, *, viewer: bool, name: str, print_only: bool, as_json: bool) -> None:
    """Open the console that runs here in a browser, with a token that lets its bearer in once."""
    from orchestrator.deployment.local_stack import has_console

    if not has_console():
        raise Refused(INSTALL)
    from orchestrator.console.serving import address

    name = name or user_name("operator")
    url = address(settings.data, name, "viewer" if viewer else "operator")
    if as_json:
        from orchestrator.cli.documents.stack import ConsoleAddress

        print_json(ConsoleAddress(address=url))
        return
    say(url)
    if not print_only:
        with suppress(webbrowser.Error):
            webbrowser.open(url)

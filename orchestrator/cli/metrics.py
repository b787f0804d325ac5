"""`orchestra metrics`: the metrics of a stack for Prometheus, over HTTP."""

from __future__ import annotations

import signal
import threading
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.options import stack_options
from orchestrator.cli.output import say

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9464, show_default=True, help="0: any free one."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--otlp", metavar="URL", help="Send traces there, too: a collector, such as http://127.0.0.1:4318."
)
@click.option(
    "--token",
    is_flag=True,
    help="Serve nothing: print the token with which Prometheus may read /metrics of the web console.",
)
@stack_options
def metrics(settings: Settings, *, port: int, host: str, otlp: str | None, token: bool) -> None:
    """Serve Prometheus metrics of the stack on /metrics, and /healthz and /readyz; needs the extra `metrics`.

    With --otlp it also sends a span for each attempt of a run (OTLP over HTTP, JSON).

    It reads the ledger and the audit database and changes neither. Whoever reaches the address may read the names of
    agents and models, numbers and costs; no text of a session is among them.
    """
    if token:
        _print_token(settings)
        return
    if find_spec("prometheus_client") is None:
        from orchestrator.telemetry.catalogue import INSTALL

        raise Refused(INSTALL)
    from orchestrator.cli.stack import open_stack
    from orchestrator.log import configure_logging
    from orchestrator.telemetry.exporter import Exporter
    from orchestrator.telemetry.otlp import TraceSender
    from orchestrator.telemetry.server import MetricsServer

    traces = TraceSender(otlp) if otlp else None
    configure_logging(settings, service="metrics")
    with open_stack(settings, "metrics") as parts:
        try:
            server = MetricsServer(Exporter(parts, traces=traces), host=host, port=port)
        except OSError as error:
            raise Refused(f"nothing can listen on {host}:{port}: {error.strerror or error}") from error
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: threading.Thread(target=server.shutdown).start())
        shown = f"[{host}]" if ":" in host else host
        say(f"serving http://{shown}:{server.server_port}/metrics", err=True)
        try:
            server.serve_forever()
        finally:
            server.server_close()


def _print_token(settings: Settings) -> None:
    from orchestrator.cli.console import INSTALL
    from orchestrator.deployment.local_stack import has_console

    if not has_console():
        raise Refused(INSTALL)
    from orchestrator.console.access import Access, Rules

    say(Access(Rules(folder=settings.data / "console")).make_scrape_token())

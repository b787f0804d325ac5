"""`orchestra up`: the whole stack in one terminal."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.options import agents_options, data_option, settings_of
from orchestrator.cli.output import say
from orchestrator.cli.stack import open_stack

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings


#: What the doctor warns of that is said before any work is taken.
_LOSES = ("no-append-only-file", "eviction")


@click.command()
@agents_options
@click.option(
    "--review",
    "review_roots",
    multiple=True,
    metavar="DIR",
    type=click.Path(exists=True, path_type=Path),
    help="Serve the bundled agents `lead` and `reviewer` for the Python sources below; may be given several times.",
)
@click.option(
    "--redis-url",
    metavar="URL",
    help="Redis 6.2 or newer, or Valkey. Default: ORCHESTRA_REDIS_URL, else an embedded Valkey in the data folder.",
)
@data_option
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="Runs that the worker executes at once."
)
@click.option(
    "--reload",
    is_flag=True,
    help="Replace the worker when an agents file changes, or a .py or .toml file beside one; what runs is finished. "
    "A file that cannot be loaded changes nothing but is named here.",
)
@click.option(
    "--console/--no-console",
    default=None,
    help="Also run the web console, where the extra `console` is installed. Default: the setting `console`.",
)
@click.option("--verbose", "-v", is_flag=True, help="Show the processes' logs here, too.")
def up(
    *,
    reload: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Run the whole stack in this terminal: server, services and a worker. Ctrl-C stops it.

    Without a URL it runs on an embedded Valkey whose data stays in the data folder. A process that dies is
    started again. Several of them on one data folder or one Redis are one bigger stack.
    """
    from orchestrator.config.urls import redact_url
    from orchestrator.deployment.local_stack import LocalStack, describe

    settings = settings_of(
        **{
            name: (list(value) or None) if isinstance(value, tuple) else value
            for name, value in options.items()
        }
    )
    began = time.monotonic()
    stack = LocalStack(settings, reload=reload, notify=lambda notice: say(f"  {describe(notice)}"))
    asked = 0

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal asked
        asked += 1
        stack.stop(at_once=asked > 1)

    try:
        # Until the stack is open there is nothing to stop in order, and a signal ends the command at once.
        stack.open()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, on_signal)
        place = f"an embedded Valkey in {settings.data}" if stack.embedded else redact_url(stack.url)
        say(f"starting a stack on {place}")
        if stack.joined:
            pids = ", ".join(str(other.pid) for other in stack.joined)
            say(
                f"it joins the stack of process {pids}: each adds its services and workers, and Ctrl-C here ends this one only"
            )
        lost = None if stack.embedded else _loses_data(stack.settings)
        for warning in filter(None, (lost, stack.warning)):
            say(f"Warning: {warning}", err=True)
        follower = _LogFollower(stack.logs) if verbose else None
        announced = False

        def on_tick() -> None:
            nonlocal announced
            if follower is not None:
                follower.show()
            if stack.ready and not announced:
                workers = [pid for name, pid in stack.pids.items() if name.startswith("worker")]
                if welcome := _welcome(stack.settings, time.monotonic() - began, workers):
                    announced = True
                    say(welcome, lines=True)

        stack.run(on_tick)
    finally:
        stack.close()
    say("stopped")


def _loses_data(settings: Settings) -> str | None:
    """Return what a server of the user's own may lose when it ends; None if nothing, or it does not say."""
    import redis

    from orchestrator.doctor.health import setup
    from orchestrator.errors import ServerUnavailable

    with suppress(redis.RedisError, ServerUnavailable), open_stack(settings, "up") as parts:
        problems = [problem for problem in setup(parts.redis, settings) if problem.rule in _LOSES]
        return "; ".join(problem.message for problem in problems) or None
    return None


def _welcome(settings: Settings, seconds: float, workers: list[int]) -> str | None:
    """Return the message of a stack that is ready; None if Redis is away again, which must not end the stack."""
    import redis

    from orchestrator.errors import ServerUnavailable
    from orchestrator.runtime.service import is_served, living_agents

    try:
        with open_stack(settings, "up") as parts:
            living, agents = living_agents(parts.redis), parts.agents.all()
    except (redis.RedisError, ServerUnavailable):
        return None
    names = ", ".join(record.name for record in agents if is_served(record, living))
    idle = ", ".join(record.name for record in agents if not is_served(record, living))
    return (
        f"ready after {seconds:.1f} s; agents: {names or 'none'}\n"
        + (f"worker: process {', '.join(map(str, workers))}\n" if workers else "")
        + (f"registered, but served by no living worker: {idle}\n" if idle else "")
        + _about_console(settings)
        + "In another terminal: orchestra submit AGENT PROMPT --wait. Stop with Ctrl-C."
    )


def _about_console(settings: Settings) -> str:
    """Return the line about the web console; empty where it is switched off."""
    from orchestrator.cli.console import INSTALL
    from orchestrator.deployment.local_stack import has_console

    if not settings.console:
        return ""
    return "console: orchestra open\n" if has_console() else f"{INSTALL}\n"


class _LogFollower:
    """Shows what is appended to log files, each line with the name of its process."""

    def __init__(self, logs: dict[str, Path]) -> None:
        self._positions = {path: path.stat().st_size if path.exists() else 0 for path in logs.values()}
        self._labels = {path: name.ljust(max(map(len, logs))) for name, path in logs.items()}

    def show(self) -> None:
        """Print the complete lines that were added since the last call."""
        for path, position in self._positions.items():
            with suppress(FileNotFoundError), path.open("rb") as log:
                if path.stat().st_size < position:
                    position = 0  # it was trimmed
                log.seek(position)
                added = log.read()
                complete = added[: added.rfind(b"\n") + 1]
                for line in complete.decode(errors="replace").splitlines():
                    say(f"{self._labels[path]} | {line}")
                self._positions[path] = position + len(complete)

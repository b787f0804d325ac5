"""`orchestra demo`: the whole system at work on a source tree, with nothing to set up."""

from __future__ import annotations

import signal
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from orchestrator.cli.exit_codes import Exit
from orchestrator.cli.options import settings_of
from orchestrator.cli.output import say
from orchestrator.cli.stack import open_client
from orchestrator.display.text import counted
from orchestrator.runtime.process import set_soon

if TYPE_CHECKING:
    from orchestrator.config.settings import Settings
    from orchestrator.deployment.local_stack import LocalStack
    from orchestrator.deployment.supervisor import Notice
    from orchestrator.ledger import Session

#: A killed worker is to be noticed within the time that somebody watches a demo.
_SETTINGS = {
    "lease_s": 4,
    "heartbeat_s": 1,
    "sweep_interval_s": 0.5,
    "stop_grace_s": 0.3,
    "log_format": "json",
}


class _Interrupted(Exception):
    """The user has had enough."""


class _Interruption:
    """Signals that ask the demo to end: heard between two steps, so that nothing is torn down within one."""

    def __init__(self) -> None:
        self._asked = threading.Event()
        self.stack: LocalStack | None = None

    def handle(self, _number: int, _frame: object) -> None:
        """Note a signal."""
        if self._asked.is_set() and self.stack is not None:
            self.stack.stop(at_once=True)  # asked again: what runs is not waited for
        set_soon(self._asked)

    def check(self, wait_s: float = 0) -> None:
        """Return, after ``wait_s`` seconds.

        Raises:
            _Interrupted: the demo is to end.
        """
        if self._asked.wait(wait_s):
            raise _Interrupted


@click.command()
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="DIR", help="Keep the data here. Default: nowhere."
)
@click.option(
    "--concurrency", type=click.IntRange(min=1), metavar="N", help="Runs that the worker executes at once."
)
def demo(path: Path | None, data: Path | None, concurrency: int | None) -> None:
    """Review the Python modules below PATH (default: this project's own) with the bundled agents.

    It starts an embedded Valkey, the services and a worker, and gives the coordinator `lead` the tree to review.
    `lead` delegates one review for each module, and is resumed with what its reviewers found. Everything is gone when it ends.
    """
    interruption = _Interruption()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interruption.handle)
    own = (
        nullcontext(data)
        if data
        else TemporaryDirectory(prefix="orchestra-demo-", ignore_cleanup_errors=True)
    )
    with own as folder:
        targets = _targets(path)
        try:
            _run(_settings(Path(folder), concurrency, targets), targets, interruption)
        except _Interrupted:
            say("interrupted; everything is stopped", err=True)
            sys.exit(Exit.INTERRUPTED)


def _run(settings: Settings, targets: list[Path], interruption: _Interruption) -> None:
    from orchestrator.deployment.local_stack import LocalStack

    began = time.monotonic()
    say(f"starting an embedded Valkey, the services and a worker to review {_names(targets)}")
    with LocalStack(settings, notify=_notice) as stack:
        interruption.stack = stack
        _wait_ready(stack, interruption)
        ready = time.monotonic()
        say(f"ready after {ready - began:.1f} s")
        tree, answer, sizes = _review(stack, targets, interruption)
        took = time.monotonic() - ready
    say(f"\n{answer}\n", lines=True)
    _conclude(tree, sizes, took_s=took, total_s=time.monotonic() - began, path=targets[0])


def _review(
    stack: LocalStack, targets: list[Path], interruption: _Interruption
) -> tuple[list[Session], str, list[int]]:
    """Return the final picture of the tree, the report, and how many callbacks each resume carried."""
    from orchestrator.cli.watch import tree_display

    with open_client(stack.settings) as client, tree_display() as show:
        session = client.submit("lead", "\n".join(map(str, targets)), title=f"Review {_names(targets)}").id
        watching = client.watching(session)
        picture: list[Session] = []
        while not watching.over:
            interruption.check()
            if stack.failure is not None:
                raise stack.failure
            seen = client.step(watching)
            if seen is not None:
                picture = seen
                show(seen, ())
        carried = [len(run.items) for run in client.runs(session) if run.items]
        return picture, client.answer(session), carried


def _conclude(tree: list[Session], sizes: list[int], *, took_s: float, total_s: float, path: Path) -> None:
    from orchestrator.ledger.model import Tally

    children = len(tree) - 1
    rate = f", {children / took_s:.0f} sessions a second" if children else ""
    resumes, callbacks = counted(len(sizes), "resume"), counted(sum(sizes), "callback")
    say(f"{resumes} of `lead` carried {callbacks}, up to {max(sizes, default=0)} at once")
    say(str(Tally.of(tree)))
    say(
        f"{counted(children, 'module')} reviewed in {took_s:.1f} s{rate}; {total_s:.1f} s with start and stop"
    )
    say(
        "\nWhat to try next:\n"
        f'  a stack that stays:   orchestra up --review "{path}"\n'
        f'  in another terminal:  orchestra submit lead "{path}" --wait\n'
        "  what became of it:    orchestra sessions; orchestra tree SESSION\n"
        "  agents of your own:   orchestra init my-project",
        lines=True,
    )


def _targets(path: Path | None) -> list[Path]:
    if path is not None:
        return [path.absolute()]
    import orchestrator

    return [Path(orchestrator.__file__).parent]


def _names(targets: list[Path]) -> str:
    return ", ".join(target.name or str(target) for target in targets)


def _settings(folder: Path, concurrency: int | None, targets: list[Path]) -> Settings:
    settings = settings_of(data=folder, concurrency=concurrency, **_SETTINGS)
    # Whatever stack the environment names, the demo has one of its own.
    own = {"redis_url": None, "broker_url": None, "agents": (), "shards": 1, "review_roots": tuple(targets)}
    return settings.model_copy(update=own)


def _wait_ready(stack: LocalStack, interruption: _Interruption) -> None:
    while not stack.ready:
        interruption.check(0.02)
        if stack.failure is not None:
            raise stack.failure


def _notice(notice: Notice) -> None:
    from orchestrator.deployment.local_stack import describe

    if notice.kind in ("restarting", "died", "recovered"):
        say(f"  {describe(notice)}", err=True)

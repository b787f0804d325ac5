"""``orchestra audit report``: what was said, refused, answered, promised and spent in a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestrator.cli.options import json_option, stack_options
from orchestrator.cli.output import json_text, say, write_raw

if TYPE_CHECKING:
    from orchestrator.audit import AuditStore
    from orchestrator.audit.report import Report, Unit
    from orchestrator.config.settings import Settings


#: Messages of a conversation that the HTML draws.
_DRAWN = 60


@click.command("report")
@click.option("--since", help="How long ago (90s, 15m, 2h, 7d) or a time (2026-01-31T08:00:00Z).")
@click.option("--until", help="The same, for the end of the time reported on.")
@click.option(
    "--by",
    type=click.Choice(["hour", "day"]),
    help="What the time line is divided by. Default: hours of up to three days, else days.",
)
@click.option(
    "--format",
    "wanted",
    type=click.Choice(["text", "json", "html"]),
    default="text",
    show_default=True,
    help="How the report is written; html needs the extra `report`.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file to write. Default: standard output.",
)
@click.option(
    "--conversation",
    metavar="CORRELATION-ID",
    help="What the HTML draws as a sequence. Default: the longest.",
)
@json_option
@stack_options
def report(
    *,
    settings: Settings,
    since: str | None,
    until: str | None,
    by: Unit | None,
    wanted: str,
    out: Path | None,
    conversation: str | None,
    as_json: bool,
) -> None:
    """Report on a time: messages, failures, hops, callbacks, costs.

    The database does the counting, so that memory is bounded however many messages there are. The HTML is one file, which needs
    no network and runs no script.
    """
    from orchestrator.audit import AuditStore
    from orchestrator.audit.report import make_report
    from orchestrator.cli.audit import parse_time
    from orchestrator.cli.documents import AuditReport
    from orchestrator.cli.report_text import lines_of
    from orchestrator.clock import SystemClock

    store = AuditStore(settings.audit_database, read_only=True)
    with _progress() as progress:
        found = make_report(
            store,
            made_ms=SystemClock().now_ms(),
            since_ms=parse_time(since),
            until_ms=parse_time(until),
            by=by,
            progress=progress,
        )
    if as_json or wanted == "json":
        text = json_text(AuditReport.of(found).model_dump(mode="json"))
    elif wanted == "html":
        text = _page(store, found, conversation)
    else:
        text = "\n".join(lines_of(found))
    if out is None and wanted == "html":
        write_raw(text)
        return
    if out is None:
        say(text, lines=True)
        return
    out.write_text(text + "\n", encoding="utf-8")
    say(f"wrote {out}", err=True)


def _page(store: AuditStore, found: Report, conversation: str | None) -> str:
    from orchestrator.audit import AuditReader
    from orchestrator.audit.report.html import html_of

    drawn = conversation or found.longest_conversation
    reader = AuditReader(store)
    records = reader.conversation(drawn, limit=_DRAWN) if drawn else []
    if conversation and not records:
        raise click.ClickException(f"no conversation {conversation!r} is in {store.name}")
    left_out = reader.count(drawn) - len(records) if len(records) == _DRAWN else 0
    return html_of(found, records, left_out)


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], object]]:
    """A bar on the terminal of standard error; nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _what, _done, _whole: None
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("report", total=None)
        yield lambda what, done, whole: bar.update(task, description=what, completed=done, total=whole)

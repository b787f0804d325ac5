"""``orchestra audit report``: messages, refusals, replies, callbacks and spending in a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.options import json_option, period_options, stack_options
from orchestrator.cli.output import json_text, say, write_raw
from orchestrator.cli.progress import progress_bar

if TYPE_CHECKING:
    from orchestrator.audit import AuditStore
    from orchestrator.audit.report import Report
    from orchestrator.config.settings import Settings


#: Messages of a conversation that the HTML draws.
_DRAWN = 60


@click.command("report")
@period_options
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
    wanted: str,
    out: Path | None,
    conversation: str | None,
    as_json: bool,
    **period: Any,
) -> None:
    """Report on a time: messages, failures, hops, callbacks, costs.

    The database does the counting, so that memory is bounded however many messages there are. The HTML is one file, which needs
    no network and runs no script.
    """
    from orchestrator.audit import AuditStore
    from orchestrator.audit.report import make_report
    from orchestrator.cli.documents.audit import AuditReport
    from orchestrator.cli.report_text import lines_of
    from orchestrator.machine import SystemClock

    store = AuditStore(settings.audit_database, read_only=True)
    with progress_bar("report") as progress:
        made = make_report(
            store,
            made_ms=SystemClock().now_ms(),
            progress=progress,
            **period,
        )
    if as_json or wanted == "json":
        text = json_text(AuditReport.of(made).model_dump(mode="json"))
    elif wanted == "html":
        text = _page(store, made, conversation)
    else:
        text = "\n".join(lines_of(made))
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
        raise Refused(f"no conversation {conversation!r} is in {store.name}")
    left_out = reader.count(drawn) - len(records) if len(records) == _DRAWN else 0
    return html_of(found, records, left_out)

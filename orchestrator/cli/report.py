"""``orchestra audit report``: messages, refusals, replies, callbacks and spending in a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.cells import cell_len, set_cell_size

from orchestrator.audit.report import Report
from orchestrator.cli.exit_codes import Refused
from orchestrator.cli.options import json_option, period_options, stack_options
from orchestrator.cli.output import json_text, say, write_raw
from orchestrator.cli.render import cut, progress_bar
from orchestrator.display.figures import money, number, share, size, span
from orchestrator.display.text import counted, visible
from orchestrator.machine import SystemClock, isoformat

if TYPE_CHECKING:
    from orchestrator.audit import AuditStore
    from orchestrator.config.settings import Settings


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
    help="How the report is written; html needs the extra `report` or `console`.",
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
    from orchestrator.cli.console import require_templates

    require_templates()
    from orchestrator.console.rendering import conversation_in, report_page

    records, left_out = conversation_in(store, conversation or found.longest_conversation)
    if conversation and not records:
        raise Refused(f"no conversation {conversation!r} is in {store.name}")
    return report_page(found, records, left_out)


_WIDTH: Final = 80
#: Hours or days that are shown: the last ones.
_BUCKETS: Final = 48
_BAR: Final = 40


def lines_of(report: Report) -> Iterator[str]:
    """Yield the lines of a report; what came from elsewhere is made visible."""
    yield f"Audit report, {_period(report)}"
    yield visible(f"of {report.database}, made {isoformat(report.made_ms)}")
    yield ""
    yield from _totals(report)
    yield from _timeline(report)
    yield from _counts("Messages by type", report.by_type)
    yield from _counts("Messages by priority", report.by_priority)
    if report.failures:
        failures = [(f.rule, f.checked_by, number(f.count)) for f in report.failures]
        yield from _table(("Dead letters by rule", "checked by", "number"), failures)
    hops = [(hop.what, number(hop.times.count), *_times(hop.times)) for hop in report.hops if hop.times.count]
    yield from _table(("How long it took", "number", "p50", "p95", "p99", "longest"), hops)
    callbacks = [
        (
            row.agent or "(not known)",
            *map(number, (row.carried, row.launched, row.delivered, row.pending, row.dead)),
        )
        for row in report.callbacks_by_agent
    ]
    header = ("Callbacks to", "carried", "launched", "delivered", "pending", "dead")
    yield from _table(header, callbacks)
    agents = [
        (a.agent, *map(number, (a.sent, a.received, a.dead, a.tasks.count)), *_times(a.tasks)[:2])
        for a in report.agents
    ]
    yield from _table(("Agents", "sent", "received", "dead", "tasks", "p50", "p95"), agents)
    if report.other_agents:
        yield f"and {counted(report.other_agents, 'other')}"
    spent = [
        (
            row.agent or "(not known)",
            *map(number, (row.cost.requests, row.cost.input_tokens, row.cost.output_tokens)),
            money(row.cost.usd),
        )
        for row in report.spent_by_agent
    ]
    yield from _table(("Calls of models by", "requests", "tokens in", "tokens out", "cost"), spent)


def _period(report: Report) -> str:
    first, last = report.since_ms or report.first_ms, report.until_ms or report.last_ms
    if first is None or last is None:
        return "of a time in which nothing was published"
    return f"{_minute(first)} to {_minute(last)} UTC"


def _minute(ms: int) -> str:
    return isoformat(ms)[:16].replace("T", " ")


def _totals(report: Report) -> Iterator[str]:
    messages = counted(report.messages, "message").split()[1]
    conversations = (
        f"{number(report.conversations)} {counted(report.conversations, 'conversation').split()[1]}"
    )
    yield f"{number(report.messages):>10}  {messages} in {conversations}, {size(report.bytes)}"
    attempts = f", with up to {report.attempts} attempts" if report.retried else ""
    yield (
        f"{share(report.delivered):>10}  delivered: {number(report.dead)} dead, {number(report.retried)} "
        f"tried again{attempts}"
    )
    if report.sessions:
        done = {state: report.sessions.get(state, 0) for state in ("finished", "failed", "stopped")}
        ends = ", ".join(f"{number(count)} {state}" for state, count in done.items())
        again = f"; {counted(report.runs_retried, 'retry', 'retries')}" if report.runs_retried else ""
        yield f"{number(report.sessions.get('begun', 0)):>10}  sessions begun: {ends}{again}"
    row = report.callbacks
    if row.launched or row.carried:
        before = f" and {number(row.carried)} from before" if row.carried else ""
        yield (
            f"{number(row.launched):>10}  callbacks launched{before}: {number(row.delivered)} delivered, "
            f"{number(row.pending)} pending, {number(row.dead)} dead"
        )
    if report.spent.requests:
        cost = report.spent
        yield f"{money(cost.usd):>10}  for {number(cost.tokens)} tokens in {number(cost.requests)} calls of models"


def _timeline(report: Report) -> Iterator[str]:
    shown = report.timeline[-_BUCKETS:]
    if not shown:
        return
    yield ""
    earlier = (
        f", the last {len(shown)} of {len(report.timeline)}" if len(shown) < len(report.timeline) else ""
    )
    yield f"Messages by {report.by}{earlier}"
    most = max(*(bucket.messages for bucket in shown), 1)
    for bucket in shown:
        when = _minute(bucket.start_ms) if report.by == "hour" else _minute(bucket.start_ms)[:10]
        filled = "█" * round(_BAR * bucket.messages / most)
        dead = f" {number(bucket.dead)} dead" if bucket.dead else ""
        yield f"  {when}  {number(bucket.messages):>9}  {filled}{dead}".rstrip()


def _counts(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    if not counts:
        return
    most = max(*counts.values(), 1)
    yield ""
    yield title
    for name, count in counts.items():
        bar = "█" * round(_BAR * count / most)
        yield f"  {set_cell_size(visible(name), 16)}  {number(count):>9}  {bar}".rstrip()


def _times(times: object) -> tuple[str, ...]:
    return tuple(span(getattr(times, name)) for name in ("p50_ms", "p95_ms", "p99_ms", "max_ms"))


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table whose first column is as wide as there is room for; the others, of numbers, are flush right."""
    if not rows:
        return
    shown = [[visible(cell) for cell in row] for row in rows]
    widths = [max(cell_len(row[at]) for row in (header, *shown)) for at in range(len(header))]
    widths[0] = min(widths[0], _WIDTH - sum(widths[1:]) - 2 * len(widths))
    yield ""
    for row in (header, *shown):
        margin = "" if row is header else "  "
        first = set_cell_size(margin + cut(row[0], widths[0]), widths[0] + 2)
        yield first + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))

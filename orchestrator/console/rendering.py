"""The templates of the console, and its pages that are files: with their style, and without a script or a request."""

from __future__ import annotations

import hashlib
import math
from base64 import b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from orchestrator.audit.reader import AuditReader
from orchestrator.audit.records import MessageRecord
from orchestrator.audit.report.model import UNIT_MS, Bucket, HopRow, Report
from orchestrator.audit.sequence import sequence_svg, svg_text
from orchestrator.audit.store import AuditStore
from orchestrator.console.tree import doing
from orchestrator.display.figures import money, number, share, size, span
from orchestrator.display.text import counted, visible
from orchestrator.machine import isoformat
from orchestrator.policy.budget import RESOURCES, amount

#: Columns of a chart over time: where there are more hours or days, several share one. Fewer are as narrow as if there were these.
_MOST_COLUMNS: Final = 240
_LEAST_COLUMNS: Final = 12
#: Marks on the axis of time.
_MARKS: Final = 5
#: Hours or days in the table of a report's time line.
_SHOWN_BUCKETS: Final = 500
#: Messages of a conversation that it draws.
_DRAWN: Final = 60


def make_templates() -> Environment:
    """Return the templates; whatever is put into one is text, shown so that nothing in it acts."""

    def shown(value: Any) -> Any:
        return value if isinstance(value, Markup) else visible(str(value))

    def lines(text: str) -> Markup:
        return Markup(escape(visible(text, lines=True)))  # noqa: S704 - escaped here

    def moment(ms: int) -> Markup:
        iso = isoformat(ms)
        return Markup('<time datetime="{}">{} UTC</time>').format(iso, iso[:19].replace("T", " "))

    found = Environment(
        loader=FileSystemLoader(str(files(__package__) / "templates")),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(
        money=money,
        number=number,
        share=share,
        size=size,
        span=span,
        lines=lines,
        moment=moment,
        minute=_minute,
        doing=doing,
        amount=_amount,
    )
    found.globals.update(counted=counted, resources=RESOURCES)
    return found


def _amount(value: int, resource: str) -> str:
    return amount(resource, value)


def _minute(ms: int) -> str:
    return isoformat(ms)[:16].replace("T", " ")


def diagram(records: Sequence[MessageRecord], left_out: int = 0) -> Markup:
    """Return messages as a sequence diagram; text of agents is text of elements in it, as it is made as a tree."""
    return Markup(svg_text(sequence_svg(records, alone=False, left_out=left_out)))  # noqa: S704


def file_page(template: str, **shown: Any) -> str:
    """Return a page as a file: it has its style, and a policy that allows that and nothing else."""
    style = (files(__package__) / "static" / "console.css").read_text(encoding="utf-8")
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return (
        make_templates()
        .get_template(template)
        .render(
            style=Markup(style),  # noqa: S704 - a file of ours
            policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
            **shown,
        )
    )


def conversation_in(store: AuditStore, name: str) -> tuple[list[MessageRecord], int]:
    """Return the messages of a conversation that a report draws, and how many come after them."""
    reader = AuditReader(store)
    records = reader.conversation(name, limit=_DRAWN) if name else []
    return records, reader.count(name) - len(records) if len(records) == _DRAWN else 0


def report_page(report: Report, conversation: Sequence[MessageRecord] = (), left_out: int = 0) -> str:
    """Return a report as a file.

    Args:
        report: what it says.
        conversation: messages that are drawn as a sequence diagram.
        left_out: later messages of that conversation.
    """
    shown = report_shown(report, conversation, left_out)
    return file_page("report.html", **{**shown, "frame": "file.html"}, link=None)


def report_shown(
    report: Report, conversation: Sequence[MessageRecord] = (), left_out: int = 0
) -> dict[str, Any]:
    """Return what the template of a report shows, as a page of the console."""
    scale, hops = _hops(report)
    first, last = report.since_ms or report.first_ms, report.until_ms or report.last_ms
    return {
        "frame": "base.html",
        "report": report,
        "period": "" if first is None or last is None else f"{_minute(first)} to {_minute(last)} UTC",
        "messages": _over_time(report, number, {"good": _delivered, "bad": lambda bucket: bucket.dead}),
        "spending": _over_time(report, money, {"busy": lambda bucket: bucket.cost.usd})
        if report.spent.nano_usd
        else _over_time(report, _tokens, {"busy": lambda bucket: bucket.cost.tokens}),
        "scale": scale,
        "hops": hops,
        "shown_buckets": _SHOWN_BUCKETS,
        "conversation": conversation,
        "diagram": diagram(conversation, left_out) if conversation else "",
    }


def _delivered(bucket: Bucket) -> int:
    return max(0, bucket.messages - bucket.dead)


def _tokens(count: int) -> str:
    return f"{number(count)} tokens"


@dataclass(frozen=True, kw_only=True)
class _Chart:
    """Columns over time."""

    begin_ms: int
    end_ms: int
    #: How long a column is, and true if that is more than one hour or day.
    each_ms: int
    shared: bool
    #: When each begins → its parts by their kind, from the bottom up.
    columns: Mapping[int, Mapping[str, float]]
    #: Returns a number in words.
    words: Callable[[Any], str]

    @property
    def most(self) -> float:
        """The height of the highest column."""
        return max(sum(parts.values()) for parts in self.columns.values()) or 1

    @property
    def marks(self) -> Sequence[int]:
        """Times on the axis."""
        columns = (self.end_ms - self.begin_ms) // self.each_ms
        return range(self.begin_ms, max(self.columns) + 1, math.ceil(columns / _MARKS) * self.each_ms)

    def share(self, ms: int) -> float:
        """Return what a duration is of the whole."""
        return ms / (self.end_ms - self.begin_ms)


def _over_time(
    report: Report, words: Callable[[Any], str], parts: Mapping[str, Callable[[Bucket], float]]
) -> _Chart | None:
    """Return the chart of a report's hours or days, added up where there are many; None: there is none."""
    if not report.timeline:
        return None
    begin_ms, unit_ms = report.timeline[0].start_ms, UNIT_MS[report.by]
    units = (report.timeline[-1].start_ms - begin_ms) // unit_ms + 1
    each_ms = math.ceil(units / _MOST_COLUMNS) * unit_ms
    columns: dict[int, Counter[str]] = defaultdict(Counter)
    for bucket in report.timeline:
        start_ms = begin_ms + (bucket.start_ms - begin_ms) // each_ms * each_ms
        columns[start_ms].update({kind: part(bucket) for kind, part in parts.items()})
    places = max(_LEAST_COLUMNS, math.ceil(units * unit_ms / each_ms))
    return _Chart(
        begin_ms=begin_ms,
        end_ms=begin_ms + places * each_ms,
        each_ms=each_ms,
        shared=each_ms > unit_ms,
        columns=columns,
        words=words,
    )


def _hops(report: Report) -> tuple[str, list[tuple[HopRow, list[float]]]]:
    """Return what was measured, with where its p50, p95 and p99 are on one logarithmic scale, and its words."""
    found = [
        (hop, [math.log10(max(1, ms or 0)) for ms in (hop.times.p50_ms, hop.times.p95_ms, hop.times.p99_ms)])
        for hop in report.hops
        if hop.times.count
    ]
    ends = [power for _, powers in found for power in powers] or [0.0]
    low, high = math.floor(min(ends)), math.floor(max(ends)) + 1
    words = f"{span(10**low)} to {span(10**high)}, logarithmic"
    return words, [(hop, [(power - low) / (high - low) for power in powers]) for hop, powers in found]

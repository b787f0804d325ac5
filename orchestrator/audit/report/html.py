"""A report as one HTML file that needs no network and runs no script.

The page is built of elements, so that text of agents is text and nothing else, and a policy in it forbids whatever could load or run.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.resources import files
from typing import Final

from lxml import etree

from orchestrator.audit.records import MessageRecord
from orchestrator.audit.report import charts
from orchestrator.audit.report.elements import Element, element
from orchestrator.audit.report.model import Percentiles, Report
from orchestrator.audit.sequence import SHAPES, sequence_svg
from orchestrator.display.figures import money, number, share, size, span
from orchestrator.display.text import visible
from orchestrator.machine import isoformat

#: Widths in pixels for which a wide chart is drawn: for a desk and for a telephone.
_WIDE, _HALF, _NARROW = 1040, 490, 320
_SHOWN_BUCKETS: Final = 500


def html_of(report: Report, conversation: Sequence[MessageRecord] = (), left_out: int = 0) -> str:
    """The page.

    Args:
        report: what it says.
        conversation: messages that are drawn as a sequence diagram.
        left_out: later messages of that conversation.

    Raises:
        ConfigurationError: the library for the charts is missing.
    """
    style = files(__package__).joinpath("style.css").read_text(encoding="utf-8") + SHAPES
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    sections = [
        *_messages(report),
        *_hops(report),
        *_promises(report),
        *_costs(report),
        *_agents(report),
        *_conversation(conversation, left_out),
    ]
    page = element(
        "html",
        element(
            "head",
            element("meta", charset="utf-8"),
            element("meta", http_equiv="Content-Security-Policy", content=policy),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("meta", name="color-scheme", content="light dark"),
            element("title", f"Audit report, {_period(report)}"),
            element("style", style),
        ),
        element(
            "body",
            element(
                "header",
                element("p", "agent-orchestra", class_="brand"),
                element("h1", "Audit report"),
                element("p", _period(report), class_="period"),
                element(
                    "p", visible(f"{report.database} · made {_minute(report.made_ms)} UTC"), class_="soft"
                ),
            ),
            element(
                "main", element("section", *_totals(report), class_="totals", aria_label="Totals"), *sections
            ),
        ),
        lang="en",
    )
    return etree.tostring(page, method="html", encoding="unicode", doctype="<!DOCTYPE html>")


# --- parts ---------------------------------------------------------------------------------


def _totals(report: Report) -> Iterator[Element]:
    yield _total(
        number(report.messages),
        "messages",
        f"{number(report.conversations)} conversations, {size(report.bytes)}",
    )
    dead = f"{number(report.dead)} dead letters, {number(report.retried)} tried again"
    yield _total(share(report.delivered), "delivered", dead, good=report.dead == 0)
    ended = {state: report.sessions.get(state, 0) for state in ("finished", "failed", "stopped")}
    ends = f"{number(ended['failed'])} failed, {number(ended['stopped'])} stopped, {number(report.runs_retried)} retries"
    yield _total(number(ended["finished"]), "sessions answered", ends, good=not ended["failed"])
    row = report.callbacks
    kept = f"{number(row.delivered)} delivered, {number(row.pending)} pending, {number(row.dead)} dead"
    yield _total(number(row.launched + row.carried), "callbacks", kept, good=row.dead == 0)
    cost = report.spent
    calls = f"{number(cost.tokens)} tokens in {number(cost.requests)} calls"
    yield _total(money(cost.usd), "for models", calls)


def _messages(report: Report) -> Iterator[Element]:
    if not report.timeline:
        yield element("section", element("p", "Nothing was published in this time."))
        return
    shown = report.timeline[-_SHOWN_BUCKETS:]
    rows = [
        (
            _minute(b.start_ms),
            *map(number, (b.messages, b.retries, b.dead, b.finished, b.failed)),
            money(b.cost.usd),
        )
        for b in shown
    ]
    header = (f"{report.by} (UTC)", "messages", "retries", "dead", "answered", "failed", "cost")
    figures = element("details", element("summary", "The figures"), _table(header, rows))
    yield _section(
        f"Messages by {report.by}",
        *_drawn(partial(charts.timeline, report), f"Messages by {report.by}"),
        figures,
    )
    yield element(
        "div",
        _section("By type", *_drawn(partial(charts.counts, report.by_type), "Messages by type", _HALF)),
        _section(
            "By priority", *_drawn(partial(charts.counts, report.by_priority), "Messages by priority", _HALF)
        ),
        class_="pair",
    )
    if report.failures:
        failures = {failure.rule: failure.count for failure in report.failures}
        table = [(f.rule, f.checked_by, number(f.count)) for f in report.failures]
        drawn = _drawn(partial(charts.counts, failures, colour="var(--bad)"), "Dead letters by rule", _HALF)
        yield _section(
            "Dead letters by rule", _beside(drawn, _table(("rule", "checked by", "dead letters"), table))
        )


def _hops(report: Report) -> Iterator[Element]:
    measured = [hop for hop in report.hops if hop.times.count]
    if measured:
        rows = [(hop.what, number(hop.times.count), *_times(hop.times)) for hop in measured]
        yield _section(
            "How long each hop took",
            *_drawn(partial(charts.hops, report), "Durations of each hop"),
            _table(("hop", "measured", "p50", "p95", "p99", "longest"), rows),
        )


def _promises(report: Report) -> Iterator[Element]:
    if not report.callbacks_by_agent:
        return
    rows = [
        (
            row.agent or "(not known)",
            *map(number, (row.carried, row.launched, row.delivered, row.pending, row.dead)),
        )
        for row in report.callbacks_by_agent
    ]
    header = ("promised to", "from before", "launched", "delivered", "pending", "dead")
    yield _section(
        "Callbacks promised and kept",
        element("p", "From before + launched = delivered + pending + dead.", class_="soft"),
        _beside(_drawn(partial(charts.callbacks, report), "Callbacks by agent", _HALF), _table(header, rows)),
    )


def _costs(report: Report) -> Iterator[Element]:
    if not report.spent.requests:
        return
    rows = [
        (
            row.agent or "(not known)",
            *map(number, (row.cost.requests, row.cost.input_tokens, row.cost.output_tokens)),
            money(row.cost.usd),
        )
        for row in report.spent_by_agent
    ]
    header = ("agent", "calls", "tokens in", "tokens out", "cost")
    drawn = _drawn(partial(charts.cost_over_time, report), f"Cost by {report.by}", _HALF)
    yield _section("What models cost", _beside(drawn, _table(header, rows)))


def _agents(report: Report) -> Iterator[Element]:
    if not report.agents:
        return
    rows = [
        (a.agent, *map(number, (a.sent, a.received, a.dead, a.tasks.count)), *_times(a.tasks)[:3])
        for a in report.agents
    ]
    header = ("agent", "sent", "received", "dead", "tasks done", "p50", "p95", "p99")
    others = (
        [element("p", f"and {number(report.other_agents)} others", class_="soft")]
        if report.other_agents
        else []
    )
    yield _section("Busiest agents", _table(header, rows), *others)


def _conversation(records: Sequence[MessageRecord], left_out: int) -> Iterator[Element]:
    if records:
        diagram = element(
            "div", sequence_svg(records, alone=False, left_out=left_out), **_scroll("Sequence diagram")
        )
        yield _section(
            "A conversation",
            element("p", visible(f"{records[0].correlation_id}"), class_="soft mono"),
            diagram,
        )


# --- pieces --------------------------------------------------------------------------------


def _period(report: Report) -> str:
    first, last = report.since_ms or report.first_ms, report.until_ms or report.last_ms
    if first is None or last is None:
        return "nothing was published"
    return f"{_minute(first)} to {_minute(last)} UTC"


def _minute(ms: int) -> str:
    return isoformat(ms)[:16].replace("T", " ")


def _times(times: Percentiles) -> tuple[str, ...]:
    return tuple(span(ms) for ms in (times.p50_ms, times.p95_ms, times.p99_ms, times.max_ms))


def _total(figure: str, what: str, more: str, *, good: bool | None = None) -> Element:
    mark = {None: "", True: " good", False: " bad"}[good]
    parts = [("figure", figure), ("what", what), ("soft", more)]
    return element("div", *(element("p", text, class_=name) for name, text in parts), class_=f"total{mark}")


def _section(title: str, *content: Element) -> Element:
    return element("section", element("h2", title), *content)


def _beside(drawn: Iterator[Element], table: Element) -> Element:
    """A chart and its figures, side by side where the window is wide enough."""
    return element("div", element("div", *drawn), table, class_="pair")


def _drawn(draw: Callable[[int], str], label: str, wide: int = _WIDE) -> Iterator[Element]:
    """A chart twice, for wide and for narrow windows; the page shows the one that fits."""
    for width, kind in ((wide, "wide"), (_NARROW, "narrow")):
        drawn = etree.fromstring(draw(width).encode())
        drawn.set("role", "graphics-document")
        drawn.set("aria-label", label)
        yield element("figure", drawn, class_=f"chart {kind}")


def _scroll(label: str) -> dict[str, str]:
    return {"class_": "scroll", "role": "region", "tabindex": "0", "aria_label": label}


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Element:
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in header)))
    body = [
        element(
            "tr",
            element("th", element("bdi", visible(row[0])), scope="row"),
            *(element("td", visible(cell)) for cell in row[1:]),
        )
        for row in rows
    ]
    return element("div", element("table", head, element("tbody", *body)), **_scroll(f"Table of {header[0]}"))

"""A report as one HTML file that needs no network and runs no script.

A template makes the page: every value in it is text, escaped, and a policy in the page forbids whatever could load or run.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from lxml import etree

from orchestrator.audit.records import MessageRecord
from orchestrator.audit.report.model import UNIT_MS, Report
from orchestrator.audit.sequence import SHAPES, sequence_svg
from orchestrator.display.figures import money, number, share, size, span
from orchestrator.display.text import visible
from orchestrator.errors import ConfigurationError
from orchestrator.machine import isoformat

#: What is said where a library is missing.
MISSING: Final = (
    "a report as a page needs {}, which is missing ({}); install it: pip install 'agent-orchestra[report]', or take "
    "--format text"
)
#: Version of the language in which the charts are written.
_VEGA_LITE: Final = "v5.20"
_CONFIG: Final[Mapping[str, Any]] = {
    "font": "Arial, Liberation Sans, Helvetica, sans-serif",
    "background": None,
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "titleFontWeight": "normal",
        "gridColor": "var(--line)",
        "domain": False,
        "ticks": False,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "labelPadding": 6,
    },
    "legend": {
        "labelColor": "var(--ink)",
        "labelFontSize": 12,
        "title": None,
        "orient": "top",
        "symbolType": "square",
        "padding": 0,
        "offset": 8,
    },
    "text": {"color": "var(--ink)", "fontSize": 12},
}
#: Pixels of a character of a label, in wide fonts too: the browser has other fonts than the program that draws.
_CHARACTER: Final = 7.2
#: Characters of a label.
_NAME: Final = 30
#: Pixels of the width of a chart that has the page, and of one that has half of it.
_WIDE, _HALF = 1040, 490
#: Ticks of durations, in ms.
_TICKS: Final = (1, 10, 100, 1000, 10_000, 60_000, 600_000, 3_600_000, 86_400_000, 864_000_000)
#: How the times of an axis are written, by what is new at a tick.
_TIMES: Final = {
    "hours": "%H:%M",
    "day": "%a %d",
    "date": "%a %d",
    "week": "%b %d",
    "month": "%b",
    "year": "%Y",
}
#: Bars of one chart.
_BARS: Final = 12
_SPANS: Final = (
    "datum.value >= 86400000 ? datum.value / 86400000 + ' d' : datum.value >= 3600000 ? datum.value / 3600000 + ' h' : "
    "datum.value >= 60000 ? format(datum.value / 60000, '.3~r') + ' min' : "
    "datum.value >= 1000 ? format(datum.value / 1000, '.3~r') + ' s' : datum.value + ' ms'"
)


def timeline(report: Report) -> str:
    """Messages of each hour or day: delivered, and dead."""
    rows = [
        {"start": bucket.start_ms, "messages": count, "what": what}
        for bucket in report.timeline
        for what, count in (
            ("delivered", max(0, bucket.messages - bucket.dead)),
            ("dead letters", bucket.dead),
        )
    ]
    colours = {"delivered": "var(--good)", "dead letters": "var(--bad)"}
    return _over_time(report, rows, ("messages", "messages"), _WIDE, colours)


def cost_over_time(report: Report) -> str:
    """Return the chart of the cost of model calls in each hour or day: money, or tokens if no price is known."""
    money = report.spent.nano_usd > 0
    rows = [
        {"start": bucket.start_ms, "spent": bucket.cost.usd if money else bucket.cost.tokens, "what": "spent"}
        for bucket in report.timeline
    ]
    return _over_time(
        report, rows, ("spent", "US dollars" if money else "tokens"), _HALF, {"spent": "var(--accent)"}
    )


def counts(numbers: Mapping[str, int], colour: str = "var(--accent)") -> str:
    """Bars with their names on the left and their numbers at their ends, as they are given."""
    shown = list(numbers.items())[:_BARS]
    labels = _shown([name for name, _ in shown])
    rows: list[dict[str, Any]] = [
        {"name": label, "number": shown[at][1], "at": at} for at, label in enumerate(labels)
    ]
    most = max(row["number"] for row in rows)
    # Room for the numbers at the ends.
    digits = len(f"{most:,}") * _CHARACTER + 12
    ends_at = most / (1 - digits / (_HALF - _room(rows))) or 1
    scale = {"domain": [0, ends_at], "nice": False}
    base = {
        "y": _names(rows),
        "x": {"field": "number", "type": "quantitative", "axis": None, "scale": scale},
    }
    bars = {
        "mark": {"type": "bar", "color": colour, "cornerRadiusEnd": 3, "height": {"band": 0.7}},
        "encoding": base,
    }
    label = {"type": "text", "align": "left", "dx": 6, "aria": False}
    ends = {"mark": label, "encoding": {**base, "text": {"field": "number", "format": ","}}}
    return _drawn({"layer": [bars, ends], "data": {"values": rows}, "height": {"step": 28}}, _HALF)


def callbacks(report: Report) -> str:
    """Callbacks by the agent that was promised them: delivered, pending, dead."""
    shown = report.callbacks_by_agent[:_BARS]
    labels = _shown([row.agent for row in shown])
    rows = [
        {"name": labels[at], "number": number, "what": what, "at": at}
        for at, row in enumerate(shown)
        for what, number in (("delivered", row.delivered), ("pending", row.pending), ("dead", row.dead))
    ]
    colours = {"delivered": "var(--good)", "pending": "var(--warn)", "dead": "var(--bad)"}
    encoding = {
        "y": _names(rows),
        "x": {
            "field": "number",
            "type": "quantitative",
            "axis": {"title": None, "format": ",f", "tickCount": 5, "tickMinStep": 1},
        },
        "color": _colours("what", colours),
        "order": {"field": "what", "sort": "descending"},
    }
    mark = {"type": "bar", "height": {"band": 0.7}}
    return _drawn(
        {"mark": mark, "encoding": encoding, "data": {"values": rows}, "height": {"step": 30}}, _HALF
    )


def hops(report: Report) -> str:
    """Return the chart of the time that each hop took, from p50 to p99, on a logarithmic scale."""
    shown = [hop for hop in report.hops if hop.times.count]
    labels = [hop.what for hop in shown]
    bounds: list[dict[str, Any]] = [
        {
            "name": labels[at],
            "low": max(1, hop.times.p50_ms or 0),
            "high": max(1, hop.times.p99_ms or 0),
            "at": at,
        }
        for at, hop in enumerate(shown)
    ]
    points = [
        {"name": labels[at], "ms": max(1, ms or 0), "which": which, "at": at}
        for at, hop in enumerate(shown)
        for which, ms in (("p50", hop.times.p50_ms), ("p95", hop.times.p95_ms), ("p99", hop.times.p99_ms))
    ]
    low, high = min(row["low"] for row in bounds), max(row["high"] for row in bounds)
    ticks = [tick for tick in _TICKS if low / 10 < tick < high * 10]
    domain = [min(low, ticks[0]), max(high, ticks[-1])]
    axis = {"title": None, "labelExpr": _SPANS, "values": ticks, "labelOverlap": True, "labelFlush": False}
    scale = {"type": "log", "domain": domain, "nice": False}
    names = _names(bounds)

    def x(field: str) -> dict[str, Any]:
        return {"field": field, "type": "quantitative", "scale": scale, "axis": axis}

    lines = {
        "data": {"values": bounds},
        "mark": {"type": "rule", "color": "var(--accent)", "strokeWidth": 3, "opacity": 0.35, "aria": False},
        "encoding": {"y": names, "x": x("low"), "x2": {"field": "high"}},
    }
    colours = {"p50": "var(--good)", "p95": "var(--warn)", "p99": "var(--bad)"}
    dots = {
        "data": {"values": points},
        "mark": {"type": "point", "filled": True, "size": 90, "opacity": 1},
        "encoding": {
            "y": names,
            "x": x("ms"),
            "color": _colours("which", colours),
            "shape": {
                "field": "which",
                "scale": {"domain": list(colours), "range": ["circle", "diamond", "square"]},
            },
        },
    }
    return _drawn({"layer": [lines, dots], "height": {"step": 30}}, _WIDE)


def _over_time(
    report: Report,
    rows: Sequence[Mapping[str, Any]],
    value: tuple[str, str],
    width: int,
    colours: Mapping[str, str],
) -> str:
    step = 0 if value[1] == "US dollars" else 1
    whole = (report.timeline[-1].start_ms - report.timeline[0].start_ms) // UNIT_MS[report.by] + 1
    encoding = {
        "x": {
            "field": "start",
            "type": "temporal",
            "timeUnit": "utcyearmonthdatehours" if report.by == "hour" else "utcyearmonthdate",
            "axis": {"title": None, "grid": False, "tickCount": max(3, width // 110), "format": _TIMES},
        },
        "y": {
            "field": value[0],
            "type": "quantitative",
            "stack": "zero",
            "axis": {"title": value[1], "format": ",f", "tickCount": 4, "tickMinStep": step},
        },
        "color": _colours("what", colours) if len(colours) > 1 else {"value": next(iter(colours.values()))},
    }
    mark = {"type": "bar", "binSpacing": 2 if whole < width / 8 else 0}
    return _drawn({"mark": mark, "encoding": encoding, "data": {"values": rows}, "height": 190}, width)


def _shown(names: Sequence[str]) -> list[str]:
    """Names as labels, made visible, short enough for a chart and different from each other."""
    found: list[str] = []
    for name in names:
        text = " ".join(visible(name or "(not known)").split())
        text = text if len(text) <= _NAME else f"{text[: _NAME - 1]}…"
        found.append(text if text not in found else f"{text} ({len(found) + 1})")
    return found


def _room(rows: Sequence[Mapping[str, Any]]) -> float:
    return max(len(row["name"]) for row in rows) * _CHARACTER + 8


def _names(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the names of rows on the left, with room for them in any font."""
    return {
        "field": "name",
        "type": "nominal",
        "sort": {"field": "at"},
        "axis": {"title": None, "labelColor": "var(--ink)", "labelLimit": 400, "minExtent": _room(rows)},
    }


def _colours(field: str, colours: Mapping[str, str]) -> dict[str, Any]:
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": field, "type": "nominal", "scale": scale}


def _drawn(chart: dict[str, Any], width: int) -> str:
    try:
        import vl_convert
    except ImportError as error:
        raise ConfigurationError(MISSING.format("vl-convert", error)) from error
    fit = {"type": "fit-x", "contains": "padding"}
    spec = {**chart, "width": width, "autosize": fit, "config": _CONFIG, "padding": 0}
    # No chart may fetch anything.
    return str(vl_convert.vegalite_to_svg(spec, vl_version=_VEGA_LITE, allowed_base_urls=[]))


#: The charts of a page by name.
CHARTS: Final[Mapping[str, Callable[[Report], str]]] = {
    "timeline": timeline,
    "by_type": lambda report: counts(report.by_type),
    "by_priority": lambda report: counts(report.by_priority),
    "failures": lambda report: counts({f.rule: f.count for f in report.failures}, "var(--bad)"),
    "hops": hops,
    "callbacks": callbacks,
    "cost_over_time": cost_over_time,
}

#: Hours or days in the table of the time line.
_SHOWN_BUCKETS: Final = 500


def html_of(report: Report, conversation: Sequence[MessageRecord] = (), left_out: int = 0) -> str:
    """Return the page.

    Args:
        report: what it says.
        conversation: messages that are drawn as a sequence diagram.
        left_out: later messages of that conversation.

    Raises:
        ConfigurationError: a library for the page is missing.
    """
    try:
        from jinja2 import Environment, StrictUndefined
        from markupsafe import Markup
    except ImportError as error:
        raise ConfigurationError(MISSING.format("Jinja2", error)) from error

    def chart(name: str, label: str) -> str:
        drawn = etree.fromstring(CHARTS[name](report).encode())
        drawn.set("role", "graphics-document")
        drawn.set("aria-label", label)
        return Markup('<figure class="chart" tabindex="0">{}</figure>').format(markup(drawn))

    def shown(value: Any) -> Any:
        return value if isinstance(value, Markup) else visible(str(value))

    def markup(drawn: etree._Element) -> str:
        return Markup(etree.tostring(drawn, method="html", encoding="unicode"))  # noqa: S704 - made of elements

    folder = files(__package__)
    style = folder.joinpath("style.css").read_text(encoding="utf-8") + SHAPES
    digest = b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, finalize=shown, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(money=money, number=number, share=share, size=size, span=span, minute=_minute)
    page = environment.from_string(folder.joinpath("page.html.jinja").read_text(encoding="utf-8"))
    return page.render(
        report=report,
        period=_period(report),
        style=Markup(style),  # noqa: S704 - ours
        policy=f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        chart=chart,
        shown_buckets=_SHOWN_BUCKETS,
        conversation=conversation,
        diagram=markup(sequence_svg(conversation, alone=False, left_out=left_out)) if conversation else "",
    )


def _period(report: Report) -> str:
    first, last = report.since_ms or report.first_ms, report.until_ms or report.last_ms
    if first is None or last is None:
        return "nothing was published"
    return f"{_minute(first)} to {_minute(last)} UTC"


def _minute(ms: int) -> str:
    return isoformat(ms)[:16].replace("T", " ")

"""A report as one HTML file that needs no network and runs no script.

A template makes the page: every value in it is text, escaped, and a policy in the page forbids whatever could load or run.
"""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, Final

from lxml import etree

from orchestrator.audit.records import MessageRecord
from orchestrator.audit.report import charts
from orchestrator.audit.report.model import Report
from orchestrator.audit.sequence import SHAPES, sequence_svg
from orchestrator.display.figures import money, number, share, size, span
from orchestrator.display.text import visible
from orchestrator.errors import ConfigurationError
from orchestrator.machine import isoformat

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
        raise ConfigurationError(charts.MISSING.format("Jinja2", error)) from error

    def chart(name: str, label: str) -> str:
        drawn = etree.fromstring(charts.CHARTS[name](report).encode())
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

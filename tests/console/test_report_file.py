"""The report as one HTML file: what a real browser makes of it, and what it may not do."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from lxml import etree, html

from orchestrator.audit import AuditStore
from orchestrator.audit.report import make_report
from orchestrator.audit.sequence import SVG, sequence_svg, svg_text
from orchestrator.console.rendering import report_page
from tests.browser import browse
from tests.integration.audit.test_report import HOSTILE, HOUR, START, audit, dead, message, steps

#: What a page would be that obeyed the text of agents, and what fetches where a policy allows it.
BAIT = (
    '<script>document.title = "ran"</script><img src="/pixel.png"><link rel="stylesheet" href="/style.css">'
    '<p style="color: red" onclick="1">bait</p><iframe src="/frame.html"></iframe>'
)


@pytest.fixture
def trail(tmp_path: Path) -> None:
    """Everything that a report shows, said by agents with hostile names."""
    store = AuditStore(tmp_path / "audit.sqlite")
    rows = [
        message(1, 0, sender=HOSTILE, type="task-delegation", task_id="t1", recipient="reviewer"),
        message(
            2,
            60,
            sender="reviewer",
            recipient=HOSTILE,
            type="task-completion",
            task_id="t1",
            parent_id="m1",
            status="success",
        ),
        message(3, HOUR, sender="審査" * 30, recipient="reviewer", priority="high"),
        message(4, HOUR + 5, sender="reviewer", recipient="reviewer", attempt=1),
        message(5, HOUR + 9, sender="", recipient="", type="query", message_id="", correlation_id=""),
    ]
    spent = "spent requests=2 input_tokens=30 output_tokens=4 nano_usd=1500000000"
    lines = [
        (0, f"session ses_1 - pending agent={HOSTILE}"),
        (1, "callback ses_1 cb_1 owed completion"),
        (2, "callback ses_1 cb_2 owed completion"),
        (3, "run ses_1 run_1 queued start"),
        (9, f"callback ses_1 cb_1 dead completion\nrun ses_1 run_1 running\nbudget ses_1 r {spent}"),
    ]
    store.add(rows, [dead(rows[2], HOSTILE)], [steps(*lines)])
    store.close()


def page_of(tmp_path: Path, *options: str) -> str:
    out = tmp_path / "report.html"
    audit(tmp_path, "report", "--format", "html", "--out", str(out), *options)
    return out.read_text(encoding="utf-8")


@pytest.mark.usefixtures("trail")
def test_a_browser_shows_the_report_and_asks_for_nothing(tmp_path: Path) -> None:
    """Title, totals, charts with values, tables and the diagram; names of agents are text, whatever they hold."""
    seen = browse(page_of(tmp_path), tmp_path)
    assert seen.requests == ["/page.html"]
    assert not seen.console
    page = html.fromstring(seen.dom)
    assert page.xpath("string(//h1)") == "Audit report"
    assert page.xpath("//h2/text()") == [
        "Messages by hour",
        "By type",
        "By priority",
        "Dead letters by rule",
        "How long each hop took",
        "Callbacks promised and kept",
        "What models cost",
        "Busiest agents",
        "A conversation",
    ]
    totals = [
        " ".join(" ".join(total.itertext()).split()) for total in page.xpath("//section[@class='tiles']/div")
    ]
    assert totals[0].startswith("5 messages")
    assert totals[1].endswith("1 dead letter, 0 tried again")
    assert totals[3] == "2 callbacks 0 delivered, 1 pending, 1 dead"
    assert totals[4] == "$1.50 for models 34 tokens in 2 calls"
    columns = page.xpath("//svg[@role='img' and @aria-label='messages by hour, 3 at most']//g/title/text()")
    assert [column.partition(": ")[2] for column in columns] == [
        "2 delivered, 0 dead",
        "2 delivered, 1 dead",
    ]
    assert page.xpath("//tr[th/bdi = 'query']/td//rect/@width") == ["50.000%"]
    bars = page.xpath("//section[h2 = 'Callbacks promised and kept']//td//rect")
    assert [(bar.get("class"), bar.get("x")) for bar in bars] == [
        ("bar warn", "0.000%"),
        ("bar bad", "50.000%"),
    ]
    # Nothing that somebody said is an element, and nothing of it changes how the rest is written.
    assert not page.xpath("//script | //img | //link | //iframe | //@onclick | //@style")
    shown = HOSTILE.replace("\u202e", r"\u202e").replace("\x1b", r"\x1b")
    assert shown in page.xpath("//th/bdi/text()")
    assert any("</td><script>" in text for text in page.xpath("//svg[@class='sequence']//*/text()"))
    assert "\u202e" not in seen.dom


@pytest.mark.usefixtures("trail")
def test_the_policy_of_the_page_forbids_what_it_does_not_need(tmp_path: Path) -> None:
    """Were something said to become an element after all, it could neither run nor fetch, and not even colour."""
    page = page_of(tmp_path)
    seen = browse(page.replace("<main>", f"<main>{BAIT}"), tmp_path)
    assert seen.requests == ["/page.html"]
    assert "<title>ran" not in seen.dom
    assert 'src="/pixel.png"' in seen.dom
    assert len(re.findall("Content Security Policy", seen.console)) >= 4
    allowed = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page)
    control = browse(allowed.replace("<main>", f"<main>{BAIT}"), tmp_path)
    assert "<title>ran" in control.dom
    assert "/pixel.png" in control.requests


def test_a_conversation_can_be_chosen_and_is_cut_where_it_is_long(tmp_path: Path) -> None:
    """The first 60 messages; an unknown one is an error, and an empty trail is a page."""
    store = AuditStore(tmp_path / "audit.sqlite")
    assert "Nothing was published in this time." in page_of(tmp_path)
    store.add(
        [message(n, n, correlation_id="long") for n in range(70)] + [message(99, 1, correlation_id="short")]
    )
    assert "… and 10 more messages" in page_of(tmp_path)
    assert "Sequence diagram of 1 message " in page_of(tmp_path, "--conversation", "short")
    with pytest.raises(AssertionError, match="no conversation 'none' is in"):
        page_of(tmp_path, "--conversation", "none")


@pytest.mark.usefixtures("trail")
def test_show_writes_a_diagram_that_stands_alone(tmp_path: Path) -> None:
    """As SVG, with its style, and with nothing in it that runs."""
    file = tmp_path / "conversation.svg"
    assert audit(tmp_path, "show", "t1", "--svg", str(file)) == f"wrote {file}\n"
    drawn = etree.parse(file).getroot()
    allowed = {"svg", "title", "style", "line", "rect", "text", "g", "path"}
    assert {etree.QName(element).localname for element in drawn.iter()} <= allowed
    assert drawn.findtext(f"{{{SVG}}}title").startswith(
        "Sequence diagram of 2 messages between </td><script>"
    )
    marked = sequence_svg([message(1, 0, dead="expired: too late", status="")])
    assert marked.find(f"{{{SVG}}}g[@class='dead']") is not None
    assert "✕ message: expired" in svg_text(marked)


@pytest.mark.usefixtures("trail")
def test_without_the_library_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that text needs none."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(AssertionError, match=r"pip install 'agent-orchestra\[report\]'"):
        page_of(tmp_path)
    assert "Audit report" in audit(tmp_path, "report")


def test_many_agents_and_hours_make_a_page_of_bounded_size(tmp_path: Path) -> None:
    """Hours of a chart are added up where there are many, and tables show the busiest agents."""
    store = AuditStore(tmp_path / "audit.sqlite")
    rows: list[Any] = [
        message(n, (n % 400) * HOUR, sender=f"agent-{n}", type=f"type-{n % 30}") for n in range(800)
    ]
    store.add(rows)
    found = make_report(store, made_ms=START, by="hour")
    assert (len(found.agents), found.other_agents) == (50, 751)
    page = report_page(found)
    assert len(page) < 500_000
    assert "messages by hour, 4 at most in 2.0 h" in page

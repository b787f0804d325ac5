"""A conversation as a sequence diagram: SVG for a browser or a document, Mermaid for a page.

Everything is an element with attributes: text of agents is text of an element and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from lxml import etree

from orchestrator.audit.records import MessageRecord
from orchestrator.display.text import counted, visible
from orchestrator.machine import isoformat

SVG: Final = "http://www.w3.org/2000/svg"
#: Pixels: the gutter of times, between two lifelines, of a row, and of the boxes with names.
_GUTTER, _COLUMN, _ROW, _BOX = 92, 184, 40, 34
_NAME: Final = 18
_LABEL: Final = 25
#: How the diagram looks on its own; a page has the same classes in its own style.
STYLE: Final = """
.sequence { --ink: #1f2328; --soft: #656d76; --line: #d0d7de; --box: #f6f8fa; --bad: #cf222e; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  .sequence { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --box: #161b22; --bad: #ff7b72; }
}
"""
SHAPES: Final = """
.sequence text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.sequence .time { fill: var(--soft); font-size: 11px; font-variant-numeric: tabular-nums; }
.sequence .name { font-weight: 600; }
.sequence .box { fill: var(--box); stroke: var(--line); }
.sequence .life { stroke: var(--line); stroke-dasharray: 3 4; }
.sequence .arrow { stroke: var(--ink); fill: none; stroke-width: 1.4; }
.sequence .head { fill: var(--ink); }
.sequence .dead .arrow { stroke: var(--bad); stroke-dasharray: 6 4; }
.sequence .dead .head, .sequence .dead text.label { fill: var(--bad); }
"""


def sequence_svg(
    records: Sequence[MessageRecord], *, alone: bool = True, left_out: int = 0
) -> etree._Element:
    """Return the messages in the order in which they were published; a dead letter is red, dashed and says why.

    Args:
        alone: it has its style in itself.
        left_out: later messages that are not drawn.
    """
    names = list(
        dict.fromkeys(name for r in records for name in (r.sender or "unknown", r.recipient or "unknown"))
    )
    places = {name: _GUTTER + _COLUMN // 2 + _COLUMN * number for number, name in enumerate(names)}
    width = _GUTTER + _COLUMN * max(len(names), 1)
    height = _BOX + _ROW * (len(records) + (left_out > 0)) + 30
    svg = etree.fromstring(f'<svg xmlns="{SVG}" class="sequence" role="img"/>')
    for name, value in (("viewBox", f"0 0 {width} {height}"), ("width", str(width)), ("height", str(height))):
        svg.set(name, value)
    what = f"Sequence diagram of {counted(len(records), 'message')} between {', '.join(names)}"
    _add(svg, "title", text=what)
    if alone:
        _add(svg, "style", text=STYLE + SHAPES)
    for name, x in places.items():
        _add(svg, "line", class_="life", x1=x, y1=_BOX, x2=x, y2=height - 6)
        _add(svg, "rect", class_="box", x=x - 72, y=2, width=144, height=_BOX - 4, rx=6)
        label = _add(svg, "text", class_="name", x=x, y=_BOX // 2 + 5, text=_short(name, _NAME))
        label.set("text-anchor", "middle")
    for number, record in enumerate(records):
        ends = places[record.sender or "unknown"], places[record.recipient or "unknown"]
        _draw(svg, record, ends, _BOX + 28 + number * _ROW)
    if left_out:
        _add(
            svg, "text", class_="time", x=8, y=height - 14, text=f"… and {counted(left_out, 'more message')}"
        )
    return svg


def svg_text(svg: etree._Element) -> str:
    """Return a diagram as the text of a file."""
    return etree.tostring(svg, encoding="unicode", pretty_print=True)


def _draw(svg: etree._Element, record: MessageRecord, ends: tuple[int, int], y: int) -> None:
    group = _add(svg, "g", class_="dead" if record.dead else "message")
    start, end = ends
    again = f", attempt {record.attempt}" if record.attempt > 1 else ""
    what = f"{record.type}{f' {record.status}' if record.status else ''}{again}"
    facts = (
        record.published,
        f"{record.sender} → {record.recipient}",
        what,
        record.task_id,
        record.message_id,
        record.dead,
    )
    _add(group, "title", text=" · ".join(fact for fact in facts if fact))
    _add(group, "text", class_="time", x=8, y=y + 4, text=isoformat(record.published_ms)[11:23])
    label = f"✕ {record.type}: {record.dead.partition(':')[0]}" if record.dead else what
    middle = (start + end) // 2 if start != end else start + 46
    text = _add(group, "text", class_="label", x=middle, y=y - 6, text=_short(label, _LABEL))
    text.set("text-anchor", "middle" if start != end else "start")
    side = 1 if end > start else -1
    if start == end:
        _add(group, "path", class_="arrow", d=f"M{start},{y - 10} h38 v20 h-30")
        y, side = y + 10, -1
    else:
        _add(group, "line", class_="arrow", x1=start, y1=y, x2=end - side * 7, y2=y)
    _add(group, "path", class_="head", d=f"M{end},{y} l{-side * 9},-5 v10 z")


def _add(
    parent: etree._Element, tag: str, *, class_: str = "", text: str = "", **attributes: Any
) -> etree._Element:
    element = etree.SubElement(parent, f"{{{SVG}}}{tag}")
    if class_:
        element.set("class", class_)
    for name, value in attributes.items():
        element.set(name, str(value))
    if text:
        element.text = visible(text, lines=tag == "style")
    return element


def _short(text: str, length: int) -> str:
    flat = " ".join(visible(text).split())
    return flat if len(flat) <= length else f"{flat[: length - 1]}…"


#: What Mermaid reads as its own, or ends a line.
_SPECIAL = re.compile(r"[^\w .,/@()\[\]:|+-]")


def sequence_diagram(records: Sequence[MessageRecord]) -> str:
    """Return the messages in the order in which they were published, with their times; a dead letter is crossed out."""
    names: dict[str, str] = {}
    lines = []
    for record in records:
        sender, recipient = (
            names.setdefault(name or "unknown", f"p{len(names)}")
            for name in (record.sender, record.recipient)
        )
        what = record.type + (f" [{record.task_id}]" if record.task_id else "")
        again = f" (attempt {record.attempt})" if record.attempt > 1 else ""
        arrow = "--x" if record.dead else "->>"
        lines.append(f"    {sender}{arrow}{recipient}: {_plain(record.published)} {_plain(what + again)}")
        if record.dead:
            lines.append(f"    Note over {sender},{recipient}: dead: {_plain(record.dead)}")
    participants = [f"    participant {short} as {_plain(name)}" for name, short in names.items()]
    return "\n".join(["sequenceDiagram", *participants, *lines])


def _plain(text: str) -> str:
    return _SPECIAL.sub(lambda found: f"#{ord(found[0])};", text)

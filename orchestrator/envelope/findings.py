"""Findings of validation about an envelope: one for each broken rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lxml import etree

FindingSeverity = Literal["error", "warning", "info"]

#: Values are quoted no longer than this in findings.
VALUE_LIMIT = 200

#: No more findings than this are made for one envelope.
FINDINGS_LIMIT = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that an envelope breaks.

    ``path`` is an XPath in which names without a prefix are in the namespace of the protocol;
    ``message`` says what to do.
    """

    #: The rule that is broken; rules are never renamed.
    rule: str
    #: How bad it is: `break`, `stuck` or `warning` of `doctor`; `error`, `warning` or `info` of `validate`.
    severity: FindingSeverity
    #: The line; null: unknown.
    line: int | None
    #: The XPath of the element; null: the document as a whole.
    path: str | None
    #: The value that is wrong, cut where it is long; null: none.
    value: str | None
    #: What is wrong and, where there is one, the next step.
    message: str

    @property
    def sentence(self) -> str:
        """The message with the place in front of it."""
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.message}"


def line_of(element: etree._Element) -> int | None:
    """Return the line that the start tag of ``element`` ends on, if the parser knows."""
    line: Any = element.sourceline
    return line if isinstance(line, int) else None


def path_of(element: etree._Element) -> str:
    """Return the XPath of ``element``, with a position where siblings share its name."""
    steps: list[str] = []
    current: etree._Element | None = element
    while current is not None:
        step = etree.QName(current).localname
        parent = current.getparent()
        if parent is not None:
            same = parent.findall(str(current.tag))
            if len(same) > 1:
                step += f"[{same.index(current) + 1}]"
        steps.append(step)
        current = parent
    return "/" + "/".join(reversed(steps))


def found(
    rule: str,
    what: str,
    element: etree._Element | None = None,
    *,
    severity: FindingSeverity = "error",
    attribute: str | None = None,
    value: str | None = None,
) -> Finding:
    """Return a finding about ``element``, or about its ``attribute``, or about the whole document.

    ``what`` goes on a sentence that begins with the thing in question.
    """
    path = None
    line = None
    subject = "the document"
    if element is not None:
        path = path_of(element) + (f"/@{attribute}" if attribute else "")
        line = line_of(element)
        name = etree.QName(element).localname
        subject = f"the attribute {attribute} of <{name}>" if attribute else f"<{name}>"
    if value is not None and len(value) > VALUE_LIMIT:
        value = value[:VALUE_LIMIT] + "…"
    return Finding(rule, severity, line, path, value, f"{subject} {what}")

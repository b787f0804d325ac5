"""Elements of a page: what is text becomes text of an element, and cannot become anything else."""

from __future__ import annotations

from typing import TypeAlias

from lxml import etree

Element: TypeAlias = etree._Element  # noqa: SLF001 - lxml has no public name for it


def element(tag: str, *content: Element | str, **attributes: str) -> Element:
    """An element with attributes (``class_``, ``aria_label``), and in it text or elements, in that order."""
    made = etree.Element(tag)
    for name, value in attributes.items():
        made.set(name.rstrip("_").replace("_", "-"), value)
    for part in content:
        if not isinstance(part, str):
            made.append(part)
        elif len(made):
            made[-1].tail = (made[-1].tail or "") + part
        else:
            made.text = (made.text or "") + part
    return made

"""Hooks of the site: its sections in the order in which somebody reads them, with names that say what they are for."""

from __future__ import annotations

from typing import Any, Final

#: Title that the site makes of a folder → what readers see, in their order. Pages without a folder stay above.
SECTIONS: Final = {
    "Tutorial": "Learn it",
    "Howto": "Do something",
    "Reference": "Look it up",
    "Explanation": "Understand it",
    "Adr": "Decisions",
}


def on_nav(nav: Any, **_given: Any) -> Any:
    """Order and name the sections."""
    order = [None, *SECTIONS]
    pages = [item for item in nav.items if not item.is_section]
    sections = sorted(
        (item for item in nav.items if item.is_section), key=lambda section: order.index(section.title)
    )
    for section in sections:
        section.title = SECTIONS[section.title]
    home, *others = pages
    decisions = sections.pop()
    nav.items[:] = [home, *sections, *others, decisions]
    return nav

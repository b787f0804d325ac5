"""Values that are neither text nor names: how long they can be before their pattern is tried on them.

A pattern on megabytes of white space takes libxml2 half a second and half a gigabyte.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from lxml import etree

from orchestrator.envelope.document import BODIES
from orchestrator.envelope.findings import found
from orchestrator.envelope.model import Header, Signature
from orchestrator.envelope.model_values import (
    NAMESPACE,
    Attribute,
    Content,
    Items,
    Kind,
    Numbered,
    Part,
    Repeated,
    bindings,
)
from orchestrator.envelope.parse import Unparsable

_LONG = {Kind.TEXT, Kind.NAME, Kind.BASE64, Kind.RAW}


def check_scalars(root: etree._Element, limit: int) -> None:
    """Refuse a document in which a number, date, id or closed list's value has more characters than ``limit``.

    Raises:
        Unparsable: with the finding size.
    """
    scalars = _scalars()
    for element in root.iter():
        text = element.text
        if text is not None and len(text) > limit and element.tag in scalars:
            message = f"holds more than {limit} characters where a short value belongs; send that value alone"
            raise Unparsable(found("size", message, element, value=text.strip()[:80]))


@cache
def _scalars() -> frozenset[str]:
    """Return the elements that hold such a value wherever they stand."""
    long: dict[str, bool] = {}
    models: list[type[Part]] = [Header, Signature, *BODIES.values()]
    for model in models:
        for tag, kind in _elements(model, ""):
            long[tag] = long.get(tag, False) or kind in _LONG
    return frozenset(f"{{{NAMESPACE}}}{tag}" for tag, is_long in long.items() if not is_long)


def _elements(model: type[Part], tag: str) -> Iterator[tuple[str, Kind]]:
    """Yield the elements of a model that hold a value, which is an element ``tag`` itself, and what each holds."""
    for field in bindings(model):
        name = field.mark.name if isinstance(field.mark, Items | Numbered | Repeated) else field.tag
        if isinstance(field.mark, Attribute):
            continue
        if field.model is not None:
            yield from _elements(field.model, name)
        elif field.kind is not None:
            yield tag if isinstance(field.mark, Content) else name, field.kind

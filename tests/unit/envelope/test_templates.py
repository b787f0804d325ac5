"""The templates: one for each type, valid as it stands, showing everything, without loss through the model."""

from __future__ import annotations

import pytest
from lxml import etree

from orchestrator.envelope import codec, schemas
from orchestrator.envelope.document import BODIES
from orchestrator.envelope.message_types import MESSAGE_TYPES
from orchestrator.envelope.model_values import NAMESPACE, Part, bindings
from orchestrator.envelope.validate import check

TYPES = sorted(MESSAGE_TYPES)
_Q = f"{{{NAMESPACE}}}"


def _template(body_type: str) -> bytes:
    return schemas.read(f"templates/{body_type}.xml")


def _without_layout(octets: bytes) -> bytes:
    """Canonical octets without comments and without the white space between elements."""
    parser = etree.XMLParser(remove_comments=True, remove_blank_text=True)
    return etree.tostring(etree.fromstring(octets, parser), method="c14n", exclusive=True)


def _paths_of(model: type[Part], path: str) -> set[str]:
    """Every element and attribute that a model can have."""
    paths = set()
    for field in bindings(model):
        mark = type(field.mark).__name__
        if mark == "Attribute":
            paths.add(f"{path}/@{field.tag}")
        if mark in {"Attribute", "Content"}:
            continue
        name = field.mark.name if field.mark is not None and mark == "Repeated" else field.tag
        inner = f"{path}/{name}"
        paths.add(inner)
        if field.mark is not None and mark in {"Items", "Numbered"}:
            inner = f"{inner}/{field.mark.name}"
            paths.add(inner)
        if field.model is not None:
            paths |= _paths_of(field.model, inner)
    return paths


def _paths_in(element: etree._Element, path: str) -> set[str]:
    paths = {f"{path}/@{name}" for name in element.attrib}
    for child in element:
        inner = f"{path}/{etree.QName(child).localname}"
        paths |= {inner} | _paths_in(child, inner)
    return paths


def test_there_is_one_template_for_each_type() -> None:
    """No type is without a template, no template without a type."""
    names = {entry.name for entry in schemas.path("templates").iterdir() if entry.name.endswith(".xml")}
    assert names == {f"{body_type}.xml" for body_type in TYPES}


@pytest.mark.parametrize("body_type", TYPES)
def test_a_template_is_valid_as_it_stands(body_type: str) -> None:
    """There is nothing to find in it, not even a warning."""
    report = check(_template(body_type))
    assert report.findings == ()
    assert report.message is not None
    assert report.message.body.type == body_type


@pytest.mark.parametrize("body_type", TYPES)
def test_a_template_shows_every_element_and_attribute(body_type: str) -> None:
    """Whatever the model of the type can have is there; `launch`, `traceparent` and sessions, the stack's own, in one."""
    root = etree.fromstring(_template(body_type), etree.XMLParser(remove_comments=True))
    body = root.find(f"{_Q}body")
    assert body is not None
    missing = _paths_of(BODIES[body_type], "") - _paths_in(body, "")
    assert {one for one in missing if body_type == "task-delegation" or one[:7] != "/launch"} == set()
    header = root.find(f"{_Q}header")
    assert header is not None
    assert len(header) == 9 + 3 * (body_type == "task-delegation")


@pytest.mark.parametrize("body_type", TYPES)
def test_a_template_passes_through_the_model_without_a_change(body_type: str) -> None:
    """Written again it is the same XML, but for the layout."""
    octets = _template(body_type)
    assert codec.encode(codec.decode(octets)) == _without_layout(octets)

"""Reads models from XML that the schema has accepted.

For each model one function is made from its fields, once. It checks on the way what the schema
cannot say (days that exist, names that can be seen, base64 that fits), so that no second pass is
needed. The models are built without pydantic's validation: schema and checks have done its work.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

from lxml import etree
from pydantic import BaseModel

from orchestrator.envelope.findings import FINDINGS_LIMIT, Finding, found
from orchestrator.envelope.model_values import (
    NAMESPACE,
    WHITE_SPACE,
    Attribute,
    Binding,
    Content,
    Kind,
    Numbered,
    Part,
    Repeated,
    Timestamp,
    bindings,
    collapse,
    is_base64,
    is_blank,
    unspaced,
)

Values = dict[str, Any]

_set_dict: Final = BaseModel.__dict__["__dict__"].__set__
_set_fields_set: Final = BaseModel.__dict__["__pydantic_fields_set__"].__set__
_set_extra: Final = BaseModel.__dict__["__pydantic_extra__"].__set__
_set_private: Final = BaseModel.__dict__["__pydantic_private__"].__set__
_new: Final = object.__new__


class Reading:
    """A reading of one document, with the faults found so far."""

    __slots__ = ("encoded", "findings", "limit")

    def __init__(self, *, encoded: bool, limit: int = FINDINGS_LIMIT) -> None:
        #: Whether any element may have an ``encoding`` attribute.
        self.encoded = encoded
        #: How many findings are made at most: the place of each takes time with the number of its siblings.
        self.limit = limit
        self.findings: list[Finding] = []

    def fail(
        self, rule: str, message: str, element: etree._Element, *, value: str, attribute: str | None = None
    ) -> None:
        if len(self.findings) < self.limit:
            self.findings.append(found(rule, message, element, value=value, attribute=attribute))


Element = etree._Element  # noqa: SLF001 - the only name that lxml has for the type
Read = Callable[[Element, Reading], Any]
ReadChecked = Callable[[str, Element, Reading, str | None], Any]
ReadFields = Callable[[Element, Values, Reading], None]


def build(model: type[Part], values: Values, names: set[str]) -> Any:
    """Return a ``model`` of values that are known to be right; like ``model_construct``, but quick."""
    part = _new(model)
    _set_dict(part, values)
    _set_fields_set(part, names)
    _set_extra(part, None)
    _set_private(part, None)
    return part


def _name(text: str, element: etree._Element, reading: Reading, attribute: str | None = None) -> str:
    if text.isascii() and text.isprintable() and " " not in text and text:
        return text
    text = collapse(text)
    if is_blank(text):
        reading.fail(
            "blank", "is blank; give a name that can be seen", element, value=text, attribute=attribute
        )
    return text


def _timestamp(text: str, element: etree._Element, reading: Reading, attribute: str | None = None) -> str:
    text = text.strip(WHITE_SPACE)
    try:
        return Timestamp.of_valid_form(text)
    except ValueError:
        message = "is a day that the calendar does not have; correct the date"
        reading.fail("timestamp", message, element, value=text, attribute=attribute)
        return text


def _base64(text: str, element: etree._Element, reading: Reading, attribute: str | None = None) -> str:
    text = unspaced(text)
    if not is_base64(text):
        message = "is not base64 with padding (RFC 4648, section 4); encode the bytes again"
        reading.fail("base64", message, element, value=text, attribute=attribute)
    return text


def _token(text: str) -> str:
    return text.strip(WHITE_SPACE)


def _flag(text: str) -> bool:
    return text.strip(WHITE_SPACE) == "true"


def _hours(text: str) -> Decimal:
    return Decimal(text.strip(WHITE_SPACE))


def _text(element: etree._Element, reading: Reading) -> str:
    text = element.text or ""
    if reading.encoded and element.get("encoding") is not None:
        try:
            return b64decode(unspaced(text), validate=True).decode()
        except ValueError:
            message = 'is marked encoding="base64" but is not the base64 of a text in UTF-8; encode it again'
            reading.fail("base64", message, element, value=text)
    return text


#: Scalars of which the schema has said all that is to say.
_PLAIN: Final[dict[Kind, Callable[[str], Any]]] = {
    Kind.TOKEN: _token,
    Kind.INTEGER: int,
    Kind.HOURS: _hours,
    Kind.FLAG: _flag,
    Kind.RAW: str,
}
#: Scalars of which something is left to check.
_CHECKED: Final[dict[Kind, ReadChecked]] = {
    Kind.NAME: _name,
    Kind.TIMESTAMP: _timestamp,
    Kind.BASE64: _base64,
}


def _held_reader(field: Binding) -> Read:
    if field.model is not None:
        return part_reader(field.model)
    assert field.kind is not None
    if field.kind is Kind.TEXT:
        return _text
    if field.kind in _PLAIN:
        plain = _PLAIN[field.kind]
        return lambda element, _: plain(element.text or "")
    checked = _CHECKED[field.kind]
    return lambda element, reading: checked(element.text or "", element, reading, None)


def _attribute_reader(field: Binding) -> ReadChecked:
    assert field.kind is not None
    if field.kind in _PLAIN:
        plain = _PLAIN[field.kind]
        return lambda text, *_: plain(text)
    return _CHECKED[field.kind]


def _list_reader(field: Binding) -> Read:
    """Reads the children of an element as a tuple."""
    if isinstance(field.mark, Numbered):
        return _numbered
    read = _held_reader(field)
    return lambda element, reading: tuple([read(child, reading) for child in element])


def _numbered(element: etree._Element, reading: Reading) -> tuple[str, ...]:
    items = [(int(child.get("index", "0")), child) for child in element]
    items.sort(key=lambda item: item[0])
    for expected, (index, child) in enumerate(items):
        if index != expected:
            message = f"breaks the numbering at {expected}; number the references from 0 on, each once, without gaps"
            reading.fail("chain-index", message, child, value=str(index), attribute="index")
            break
    return tuple([(child.text or "").strip(WHITE_SPACE) for _, child in items])


def fields_reader(model: type[Part]) -> ReadFields:
    """Reads the children of an element into the values of a ``model``'s fields."""
    table: dict[str, tuple[str, Read]] = {}
    repeated: dict[str, tuple[str, Read]] = {}
    for field in bindings(model):
        if isinstance(field.mark, Attribute | Content):
            continue
        if isinstance(field.mark, Repeated):
            repeated[f"{{{NAMESPACE}}}{field.mark.name}"] = (field.name, _held_reader(field))
            continue
        read = _held_reader(field) if field.mark is None else _list_reader(field)
        table[f"{{{NAMESPACE}}}{field.tag}"] = (field.name, read)

    def read_fields(element: etree._Element, values: Values, reading: Reading) -> None:
        for child in element:
            name, read = table[child.tag]
            values[name] = read(child, reading)

    def read_repeated(element: etree._Element, values: Values, reading: Reading) -> None:
        lists: dict[str, list[Any]] = {name: [] for name, _ in repeated.values()}
        for child in element:
            if child.tag in repeated:
                name, read = repeated[child.tag]
                lists[name].append(read(child, reading))
            else:
                name, read = table[child.tag]
                values[name] = read(child, reading)
        for name, items in lists.items():
            values[name] = tuple(items)

    return read_repeated if repeated else read_fields


def defaults_of(model: type[Part]) -> Values:
    """Return the values of a ``model``'s fields before anything is read; what is required is read for sure."""
    return {name: info.default for name, info in model.model_fields.items()}


def part_reader(model: type[Part]) -> Read:
    """Reads an element as a ``model``."""
    fields = bindings(model)
    defaults = defaults_of(model)
    names = set(model.model_fields)
    attributes = [
        (field.name, field.tag, _attribute_reader(field))
        for field in fields
        if isinstance(field.mark, Attribute)
    ]
    content = next((field for field in fields if isinstance(field.mark, Content)), None)
    read_content = None if content is None else _held_reader(content)
    read_fields = fields_reader(model)
    content_name = "" if content is None else content.name

    def read(element: etree._Element, reading: Reading) -> Any:
        values = defaults.copy()
        for name, tag, read_attribute in attributes:
            text = element.get(tag)
            if text is not None:
                values[name] = read_attribute(text, element, reading, tag)
        if read_content is None:
            read_fields(element, values, reading)
        else:
            values[content_name] = read_content(element, reading)
        return build(model, values, names)

    return read

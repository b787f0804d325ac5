"""Reads an envelope straight from bytes that are spelt as our own encoder spells them, without a tree.

One pattern for each type of body holds a whole document. Like reader and writer it is made from the fields of the
models, once: every tag and its place, every closed list and every form of a value is spelt out as narrowly as the schema
and the rules of layer 2 have it; nothing but text is left open, in which no markup and no reference stands but those
that the encoder writes. So what a pattern matches is valid, and means what a parser and the schema read there: tests
compare both ways over any message, its respellings and mutants. Whatever is spelt otherwise is None here, however valid,
and is read from the tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from typing import Any, Final

from orchestrator.envelope.model import AgentMessage, Header, Party, Signature
from orchestrator.envelope.model_values import (
    MOMENT,
    NAMESPACE,
    UUID4,
    Attribute,
    Binding,
    Content,
    Items,
    Kind,
    Numbered,
    Part,
    Repeated,
    Timestamp,
    bindings,
    demands,
    is_base64,
)
from orchestrator.envelope.parse import ParseLimits
from orchestrator.envelope.reading import build, defaults_of

Convert = Callable[[str], Any]

#: Bytes up to which a document is read here; in longer ones the values are checked for their length first.
_MOST: Final = 65_536
#: What documents that are read here may have, of what is limited: attributes of an element, namespaces, markup.
_ATTRIBUTES, _NAMESPACES, _MARKUP = 6, 1, _MOST // 3

#: Bytes that stand in the UTF-8 of a canonical document: no control characters but tab and line feed.
_FIT: Final = bytes([0x09, 0x0A, *range(0x20, 0x100)])
#: The UTF-8 of U+FFFE and U+FFFF, which XML 1.0 forbids.
_FORBIDDEN: Final = (b"\xef\xbf\xbe", b"\xef\xbf\xbf")
#: A reference that the encoder does not write.
_REFERENCE: Final = re.compile("&(?!(?:amp|lt|gt|#xD);)")
_INDEX: Final = "(?:0|[1-9][0-9]{0,5})"
_FORMS: Final[dict[Kind, str]] = {
    Kind.TEXT: "[^<]*+",
    Kind.NAME: "[!-%'-;=?-~]+",
    Kind.TIMESTAMP: MOMENT,
    Kind.HOURS: r"(?:0|[1-9][0-9]{0,8})(?:\.[0-9]{1,6})?",
    Kind.FLAG: "(?:true|false)",
    Kind.BASE64: "[A-Za-z0-9+/=]+",
    Kind.RAW: "[ !#-%'-;=?-~]+",
}
#: How the pattern of a type ends that has one.
_END: Final = r"\z"
#: Parties that are kept.
_REMEMBERED: Final = 1000
_REF: Final = re.compile('index="([0-9]+)">(.{36})<')
_TYPE: Final = b'</header><body type="'
_BODY: Final = "</header><body "
_TAG: Final = re.compile("<[^>]*>")


def read(octets: bytes, limits: ParseLimits) -> AgentMessage | None:
    """Return the valid envelope in ``octets``, if it is spelt as the encoder spells it."""
    document = _document(octets, limits)
    if document is None:
        return None
    try:
        return document.read(octets.decode())
    except ValueError:  # no UTF-8, a day that the calendar does not have, another reference
        return None


def texts(octets: bytes, limits: ParseLimits) -> list[str] | None:
    """Return the texts in the body of an envelope in canonical form, in their order; None if it is not in that form."""
    document = _document(octets, limits)
    if document is None:
        return None
    try:
        body = document.body(octets.decode())
        return None if body is None else [_unescaped(text) for text in _TAG.split(body) if text]
    except ValueError:  # no UTF-8, another reference
        return None


def _document(octets: bytes, limits: ParseLimits) -> _Document | None:
    """Return the reader of such bytes if they may be a canonical document; else None."""
    if (
        len(octets) > min(_MOST, limits.size, limits.scalar)
        or limits.attributes < _ATTRIBUTES
        or limits.namespaces < _NAMESPACES
        or limits.markup < _MARKUP
    ):
        return None
    start = octets.find(_TYPE) + len(_TYPE)
    document = _documents().get(octets[start : octets.find(b'"', start)])
    return None if document is None or not _is_plain(octets) else document()


def _is_plain(octets: bytes) -> bool:
    """Return True if all characters can stand in a canonical document."""
    if octets.translate(None, _FIT):
        return False
    return octets.isascii() or not any(bad in octets for bad in _FORBIDDEN)


class _Fields:
    """The fields of one model, as groups of a pattern that stand in a row."""

    def __init__(self, model: type[Part], converts: Sequence[tuple[str, Convert | None]]) -> None:
        self._model = model
        self._converts = converts
        self._defaults = defaults_of(model)
        self._names = set(model.model_fields)

    def __len__(self) -> int:
        return len(self._converts)

    def build(self, groups: Sequence[str | None]) -> Any:
        """Return the model of what the groups hold."""
        values = self._defaults.copy()
        for (name, convert), text in zip(self._converts, groups, strict=True):
            if text is not None:
                values[name] = text if convert is None else convert(text)
        return build(self._model, values, self._names)


class _Document:
    """Reads whole documents with one type of body."""

    def __init__(self, body_type: str, body: type[Part]) -> None:
        header, self._header = _part(Header, "header")
        fields, self._body = _fields(body)
        signature, self._signature = _part(Signature, "signature")
        self._pattern = re.compile(
            f'<agent-message xmlns="{re.escape(NAMESPACE)}" version="1\\.0">{header}'
            f'<body type="{body_type}">{fields}</body>(?:{signature})?</agent-message>'
        )
        self._names = set(AgentMessage.model_fields)

    def body(self, text: str) -> str | None:
        """Return the text between the tags of the body; None if it is spelt otherwise."""
        if self._pattern.fullmatch(text) is None:
            return None
        return text[text.index(">", text.index(_BODY)) + 1 : text.rindex("</body>")]

    def read(self, text: str) -> AgentMessage | None:
        """Return the message; None if it is not in canonical form, or its header breaks a rule.

        Raises:
            ValueError: a value is none that there is.
        """
        found = self._pattern.fullmatch(text)
        if found is None:
            return None
        groups = found.groups()
        end = len(groups) - len(self._signature)
        header: Header = self._header.build(groups[: len(self._header)])
        chain = header.conversation_chain
        if chain and len({header.message_id.lower(), *[ref.lower() for ref in chain]}) <= len(chain):
            return None
        if header.expiration is not None and header.expiration.instant_ns <= header.timestamp.instant_ns:
            return None
        values = {
            "version": "1.0",
            "header": header,
            "body": self._body.build(groups[len(self._header) : end]),
            "signature": None if groups[end] is None else self._signature.build(groups[end:]),
        }
        message: AgentMessage = build(AgentMessage, values, self._names)
        return message


@cache
def _documents() -> dict[bytes, Callable[[], _Document]]:
    """By type of body; a pattern is made when the first such document comes."""
    from orchestrator.envelope.document import BODIES

    return {
        name.encode(): cache(lambda name=name, model=model: _Document(name, model))
        for name, model in BODIES.items()
    }


def _part(model: type[Part], tag: str) -> tuple[str, _Fields]:
    """Return a pattern of the element ``tag`` that is a ``model``, with a group for each field."""
    attributes = sorted((f for f in bindings(model) if isinstance(f.mark, Attribute)), key=lambda f: f.tag)
    marks = "".join(f'(?: {field.tag}="({_form(model, field)})")?' for field in attributes)
    converts = [(field.name, _convert(model, field)) for field in attributes]
    content = next((field for field in bindings(model) if isinstance(field.mark, Content)), None)
    if content is not None:
        inside = f"({_form(model, content)})"
        converts.append((content.name, _convert(model, content)))
    else:
        inside, more = _fields(model)
        converts += more._converts  # noqa: SLF001
    return f"<{tag}{marks}>{inside}</{tag}>", _Fields(model, converts)


def _fields(model: type[Part]) -> tuple[str, _Fields]:
    """Return a pattern of the fields of a ``model`` that are elements, with a group for each."""
    pattern = ""
    converts: list[tuple[str, Convert | None]] = []
    convert: Convert | None
    for field in bindings(model):
        element, convert = "", None
        match field.mark:
            case Attribute() | Content():
                continue
            case Numbered(name):
                element = f'<{field.tag}>((?:<{name} index="{_INDEX}">{UUID4}</{name}>)+)</{field.tag}>'
                convert = _numbered
            case Items(name) | Repeated(name):
                element, convert = _list(model, field, name)
            case None if field.model is not None:
                element, convert = _held(field.model, field.tag)
            case None:
                element = f"<{field.tag}>({_form(model, field)})</{field.tag}>"
                convert = _convert(model, field)
        once = demands(model, field.name) or isinstance(field.mark, Repeated)
        pattern += element if once else f"(?:{element})?"
        converts.append((field.name, convert))
    return pattern, _Fields(model, converts)


def _held(model: type[Part], tag: str) -> tuple[str, Convert]:
    """Return the pattern of one group that holds an element of ``model``, and its conversion."""
    pattern, fields = _part(model, tag)
    whole = re.compile(pattern)

    def convert(text: str) -> Any:
        found = whole.fullmatch(text)
        assert found is not None
        return fields.build(found.groups())

    if model is Party:  # there are few, and each is in most messages of its conversation
        return f"({_ungrouped(pattern)})", _remembering(convert)
    return f"({_ungrouped(pattern)})", convert


def _list(model: type[Part], field: Binding, name: str) -> tuple[str, Convert]:
    """Return the pattern of one group that holds all items of a list, and its conversion."""
    if field.model is None:
        pattern = f"<{name}>({_form(model, field)})</{name}>"
        scalar = _convert(model, field) or str

        def build_item(groups: Sequence[str]) -> Any:
            return scalar(groups[0])
    else:
        pattern, fields = _part(field.model, name)
        build_item = fields.build
    item = re.compile(pattern)
    items = f"((?:{_ungrouped(pattern)})"
    whole = f"{items}*)" if isinstance(field.mark, Repeated) else f"<{field.tag}>{items}+)</{field.tag}>"
    return whole, lambda text: tuple([build_item(found.groups()) for found in item.finditer(text)])


def _ungrouped(pattern: str) -> str:
    """Return the same without groups; no form of a value holds a parenthesis that is text."""
    return re.sub(r"\((?!\?)", "(?:", pattern)


def _form(model: type[Part], field: Binding) -> str:
    """Return the pattern of a value, without groups."""
    assert field.kind is not None
    if field.kind is Kind.INTEGER:
        return "(?:0|[1-9][0-9]{0,15})"  # its bounds are looked at when it is read
    if field.kind is not Kind.TOKEN:
        return _FORMS[field.kind]
    schema = _schema(model, field)
    if "pattern" in schema:
        return _ungrouped(f"(?:{schema['pattern'].removeprefix('^').removesuffix(_END)})")
    words: list[str] = schema["enum"]
    return f"(?:{'|'.join(words)})"


def _schema(model: type[Part], field: Binding) -> dict[str, Any]:
    """Return pydantic's JSON schema of a field's values."""
    schema: dict[str, Any] = _schemas(model)[field.name]
    return schema["anyOf"][0] if "anyOf" in schema else schema


@cache
def _schemas(model: type[Part]) -> dict[str, Any]:
    schemas: dict[str, Any] = model.model_json_schema()["properties"]
    return schemas


def _convert(model: type[Part], field: Binding) -> Convert | None:
    """Return the conversion of a text to its value; None if the value is the text."""
    match field.kind:
        case Kind.TEXT:
            return _unescaped
        case Kind.TIMESTAMP:
            return Timestamp.of_valid_form
        case Kind.INTEGER:
            schema = _schema(model, field)
            most = schema["maximum"] if "maximum" in schema else schema["exclusiveMaximum"] - 1
            return _within(schema["minimum"], most)
        case Kind.HOURS:
            return Decimal
        case Kind.FLAG:
            return "true".__eq__
        case Kind.BASE64:
            return _base64
    return None


def _unescaped(text: str) -> str:
    """Return the text between two tags, unescaped.

    Raises:
        ValueError: it is not written as the encoder writes it.
    """
    if ">" in text:
        raise ValueError(text)
    if "&" not in text:
        return text
    if _REFERENCE.search(text):
        raise ValueError(text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&#xD;", "\r").replace("&amp;", "&")


def _within(least: int, most: int) -> Convert:
    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(text)
        return value

    return number


def _base64(text: str) -> str:
    if not is_base64(text):
        raise ValueError(text)
    return text


def _numbered(text: str) -> tuple[str, ...]:
    """Return the references in their order.

    Raises:
        ValueError: they are not numbered as they stand.
    """
    found = _REF.findall(text)
    for expected, (index, _) in enumerate(found):
        if index != str(expected):
            raise ValueError(index)
    return tuple([ref for _, ref in found])


def _remembering(convert: Convert) -> Convert:
    """Return the same, for what is often the same; as much as was read lately is kept."""
    known: dict[str, Any] = {}

    def remember(text: str) -> Any:
        value = known.get(text)
        if value is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            value = known[text] = convert(text)
        return value

    return remember

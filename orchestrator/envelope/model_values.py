"""Values of which an envelope is made: text, names, times, numbers; each knows its form in XML.

Every type here accepts exactly what the schema and the rules of layer 2 accept, so that any model
that could be built encodes to a valid envelope and decodes to itself.
"""

from __future__ import annotations

import binascii
import re
import types
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar, Union, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    model_validator,
)
from pydantic_core import CoreSchema, core_schema

from orchestrator.machine import isoformat

M = TypeVar("M", bound=BaseModel)

#: The namespace of the protocol.
NAMESPACE: Final = "http://agent-orchestra.local/protocol/1.0"

#: Stands for a task-id that its sender left out, until it is known.
UNKNOWN_TASK: Final = "unknown"

#: What XML counts as white space; Python's ``strip()`` and ``split()`` know many more.
WHITE_SPACE: Final = " \t\n\r"

#: A character that an XML 1.0 document cannot hold, or (a bare CR) would not give back.
UNFIT: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_SURROGATE: Final = re.compile("[\ud800-\udfff]")
#: The forms of a version 4 UUID and of a moment, as patterns without groups.
UUID4: Final = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-4[0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}"
MOMENT: Final = (
    "[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    r"(?:\.[0-9]{1,9})?(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9]|[+-]14:00)"
)
#: The decimals of a second that ``datetime`` drops, from the 27th character on.
_FINER: Final = re.compile(r"[0-9]{1,3}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_new_str: Final = str.__new__
_from_isoformat: Final = datetime.fromisoformat


class Kind(Enum):
    """Form of a value in XML; put beside its type with ``Annotated``."""

    TEXT = "text"
    NAME = "name"
    TOKEN = "token"  # noqa: S105 - a word of XML Schema, no secret
    TIMESTAMP = "timestamp"
    INTEGER = "integer"
    HOURS = "hours"
    FLAG = "flag"
    BASE64 = "base64"
    RAW = "raw"


class Timestamp(str):
    """A moment as it was written, ISO 8601 with a zone; two spellings of one moment are not equal.

    Raises:
        ValueError: the text is no such moment, or its day does not exist.
    """

    __slots__ = ("_ns", "_seconds")

    #: The same moment to the microsecond, as ``datetime`` has it.
    _seconds: datetime
    #: Nanoseconds since the epoch, once somebody has asked.
    _ns: int

    def __new__(cls, text: str) -> Self:
        if re.fullmatch(MOMENT, text) is None:
            raise ValueError(f"{text!r} is not an ISO 8601 date and time with a zone")
        return cls.of_valid_form(text)

    @classmethod
    def of_valid_form(cls, text: str) -> Self:
        """Return the same, for a text whose form the schema has checked: only the day can still be wrong."""
        self = _new_str(cls, text)
        self._seconds = _from_isoformat(text)
        return self

    @classmethod
    def from_ms(cls, ms: int) -> Self:
        """Return the moment ``ms`` milliseconds after the epoch, in UTC."""
        return cls.of_valid_form(isoformat(ms))

    @property
    def instant_ns(self) -> int:
        """Nanoseconds since the epoch; compare moments by this or by :attr:`instant_ms`."""
        try:
            return self._ns
        except AttributeError:
            since = self._seconds - _EPOCH
            microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
            finer = _FINER.match(self, 26)
            self._ns = microseconds * 1000 + (int(finer[0].ljust(3, "0")) if finer else 0)
            return self._ns

    @property
    def instant_ms(self) -> int:
        """Whole milliseconds since the epoch."""
        return self.instant_ns // 1_000_000

    def __reduce__(self) -> tuple[type[Timestamp], tuple[str]]:
        return (type(self), (str(self),))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(cls, core_schema.str_schema())


def is_blank(text: str) -> bool:
    """Return True if ``text`` shows nothing: empty, or only spaces and invisible characters of any script."""
    return not any(c.isprintable() and not c.isspace() for c in text)


def collapse(text: str) -> str:
    """``text`` without leading, trailing and repeated XML white space."""
    text = text.replace("\t", " ").replace("\n", " ").replace("\r", " ").strip(" ")
    return " ".join([word for word in text.split(" ") if word]) if "  " in text else text


def unspaced(text: str) -> str:
    """``text`` without white space, as base64 may have it. Other than ASCII's is none in XML and stays, to be refused."""
    return "".join(text.split()) if text.isascii() else text


def is_base64(text: str) -> bool:
    """Return True if ``text`` is base64 with its padding and without white space."""
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        return False
    return bool(text)


def _no_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which no encoding has, by U+FFFD, so that the rest can be sent."""
    if isinstance(value, str) and not value.isascii():
        return _SURROGATE.sub("\ufffd", value)
    return value


def _name(text: str) -> str:
    text = collapse(text)
    if UNFIT.search(text):
        raise ValueError("a name holds a control character; use a plain line of text")
    if is_blank(text):
        raise ValueError("a name is blank; give one that can be seen")
    return text


def _fit(text: str) -> str:
    if UNFIT.search(text.replace("\r", "")):
        raise ValueError("an attribute holds a character that XML cannot carry; leave control characters out")
    return text


def _base64(text: str) -> str:
    text = unspaced(text)
    if not is_base64(text):
        raise ValueError("not base64 with padding (RFC 4648, section 4)")
    return text


def _hours(value: Decimal) -> Decimal:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or exponent > 0:
        return Decimal(int(value))
    return value if digits != (0,) or not sign else Decimal(0)


#: Text of any length and language; white space counts. Lone surrogates become U+FFFD.
Text = Annotated[str, BeforeValidator(_no_surrogates), Kind.TEXT]
#: A name or identifier: not blank, one line; surrounding and repeated white space is dropped.
Name = Annotated[str, BeforeValidator(_no_surrogates), AfterValidator(_name), Kind.NAME]
#: The text of an attribute; no control characters.
AttributeText = Annotated[str, BeforeValidator(_no_surrogates), AfterValidator(_fit), Kind.RAW]
#: A version 4 UUID in either case.
Uuid4 = Annotated[str, Field(pattern=rf"^{UUID4}\z"), Kind.TOKEN]
#: A moment with a zone.
Moment = Annotated[Timestamp, Kind.TIMESTAMP]
#: A whole number that is not negative.
Count = Annotated[int, Field(ge=0, lt=10**15), Kind.INTEGER]
#: A number of things that may be spent; what may be spent at most is less.
Amount = Annotated[int, Field(ge=0, lt=10**16), Kind.INTEGER]
#: A whole number from 1 on.
PositiveCount = Annotated[int, Field(ge=1, lt=10**9), Kind.INTEGER]
#: An order or priority number; lower comes first.
Rank = Annotated[int, Field(ge=0, lt=10**9), Kind.INTEGER]
#: Whole percent.
Progress = Annotated[int, Field(ge=0, le=100), Kind.INTEGER]
#: Hours, with up to six decimals; the decimals given are kept.
Hours = Annotated[Decimal, Field(ge=0, lt=10**9, decimal_places=6), AfterValidator(_hours), Kind.HOURS]
#: A share as it was written, 0% to 100%.
Percentage = Annotated[str, Field(pattern=r"^(100(\.0{1,6})?|[1-9]?[0-9](\.[0-9]{1,6})?)%?\z"), Kind.TOKEN]
#: A SHA-256 digest, 64 hexadecimal digits.
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-fA-F]{64}\z"), Kind.TOKEN]
#: A place in a trace, as W3C Trace Context writes it.
Traceparent = Annotated[str, Field(pattern=r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\z"), Kind.TOKEN]
#: Bytes as base64; white space is dropped.
Base64 = Annotated[str, AfterValidator(_base64), Kind.BASE64]
#: Yes or no.
Flag = Annotated[bool, Field(strict=True), Kind.FLAG]

AgentRole = Annotated[Literal["coordinator", "specialist", "orchestrator"], Kind.TOKEN]
Tier = Annotated[Literal["opus", "sonnet", "haiku"], Kind.TOKEN]
Priority = Annotated[Literal["critical", "high", "normal", "low"], Kind.TOKEN]
BackoffStrategy = Annotated[Literal["exponential", "linear"], Kind.TOKEN]
Severity = Annotated[Literal["critical", "warning", "info"], Kind.TOKEN]
SignatureAlgorithm = Annotated[Literal["RSA-SHA256", "Ed25519"], Kind.TOKEN]


def with_values(model: M, **values: Any) -> M:
    """Return a copy of a model with other values. They are checked as any are, which ``model_copy`` does not do."""
    return type(model)(**{**dict(model), **values})


@dataclass(frozen=True)
class Attribute:
    """The field is an attribute of its element."""


@dataclass(frozen=True)
class Supplied:
    """The schema demands the field, and the stack supplies what its sender leaves out: the default says so.

    It is put beside the mark or kind of a field. A document must have the element all the same.
    """


@dataclass(frozen=True)
class Content:
    """The field is the text content of its element."""


@dataclass(frozen=True)
class Items:
    """The field is a list: one element ``name`` for each item, inside an element named after the field.

    An empty list and an absent one mean the same and are written the same: not at all.
    """

    name: str


@dataclass(frozen=True)
class Numbered:
    """As :class:`Items`, with the item's position in an attribute ``index``, from 0."""

    name: str


@dataclass(frozen=True)
class Repeated:
    """The field is a list: the element ``name`` repeated where it stands, with nothing around it."""

    name: str


class Part(BaseModel):
    """A part of an envelope. Frozen; the fields stand in the order of the schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Leaf(Part):
    """A part that is mainly text. A plain string can be given in its place."""

    text: Annotated[Text, Content()]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return {"text": value} if isinstance(value, str) else value


Mark = Attribute | Content | Items | Numbered | Repeated


class Binding(NamedTuple):
    """Binding of a model's field: its mark, and the kind of scalar or the model that it holds."""

    name: str
    mark: Mark | None
    kind: Kind | None
    model: type[Part] | None

    @property
    def tag(self) -> str:
        """The name of its element or attribute."""
        return self.name.replace("_", "-")


def demands(model: type[Part], field: str) -> bool:
    """Return True if a document must have the element of a field of ``model``."""
    info = model.model_fields[field]
    return info.is_required() or any(isinstance(m, Supplied) for m in info.metadata)


def bindings(model: type[Part]) -> list[Binding]:
    """Return the fields of ``model`` that stand in its XML, in their order."""
    bound = []
    for name, info in model.model_fields.items():
        mark = next((m for m in info.metadata if isinstance(m, Mark)), None)
        kind = next((m for m in info.metadata if isinstance(m, Kind)), None)
        inner = None
        if kind is None:
            kind, inner = _held(info.annotation)
        if kind is not None or inner is not None:
            bound.append(Binding(name, mark, kind, inner))
    return bound


def _held(annotation: Any) -> tuple[Kind | None, type[Part] | None]:
    """Return the kind or the model inside ``annotation``, through Optional, tuple and Annotated."""
    if get_origin(annotation) is Annotated:
        base, *marks = get_args(annotation)
        kind = next((m for m in marks if isinstance(m, Kind)), None)
        return (kind, None) if kind is not None else _held(base)
    if get_origin(annotation) in (Union, types.UnionType, tuple):
        return _held(next(a for a in get_args(annotation) if a not in (type(None), Ellipsis)))
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return None, annotation
    return None, None

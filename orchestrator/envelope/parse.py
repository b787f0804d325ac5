"""Layer 1: bytes become a tree, safely, or a finding; and the markup that this reading accepts.

A document type declaration is refused before an XML parser sees the bytes, so no entity is ever
declared, let alone expanded. Nothing is fetched. Every encoding is decoded here, strictly, and the
parser is given UTF-8 only: no decoder of its own can read markup where this module saw none.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any, Final, NamedTuple, NoReturn

from lxml import etree

from orchestrator.envelope.findings import FINDINGS_LIMIT, Finding, found, line_of

#: One piece of markup: a comment, a CDATA section, a processing instruction, or a tag with its quoted values.
_PIECE: Final = re.compile(
    rb"""<(?:!--.*?-->|!\[CDATA\[.*?\]\]>|\?.*?\?>|[^!?<>](?:[^"'<>]++|"[^"<]*+"|'[^'<]*+')*+>)""", re.DOTALL
)
#: An attribute's value with its quotes.
_VALUE: Final = re.compile(rb"""=[ \t\r\n]*+(?:"[^"]*+"|'[^']*+')""")
#: The name of a namespace declaration, where the values are taken out.
_DECLARES: Final = re.compile(rb"[ \t\r\n]xmlns(?::[^= \t\r\n]*+)?[ \t\r\n]*+=")


@dataclass(frozen=True, slots=True)
class MarkupLimits:
    """The markup that a document may have.

    ``attributes`` of one element (no element of the protocol has more than six), ``namespaces`` declared in the
    document, and ``markup``: its tags, attributes, comments and CDATA sections.
    """

    attributes: int = 32
    namespaces: int = 256
    markup: int = 200_000


def excess(octets: bytes, limits: MarkupLimits) -> tuple[str, int] | None:
    """Which limit a document in UTF-8 exceeds, and at which byte; None: none.

    ``malformed``: the byte is where a document of much markup stops being well-formed. A parser would go on behind
    that, at the same cost and to no end.
    """
    signs = octets.count(b"=")
    crowded = signs > limits.attributes and (
        signs > limits.markup or _crowded(limits.attributes).search(octets) is not None
    )
    declaring = signs > limits.namespaces and octets.count(b"xmlns") > limits.namespaces
    counting = declaring or signs > limits.markup or _may_have_more_pieces(octets, limits.markup)
    if not (crowded or counting):
        return None
    pieces = declared = 0
    at = octets.find(b"<")
    while at >= 0:
        piece = _PIECE.match(octets, at)
        if piece is None:
            return "malformed", at
        pieces += 1
        if pieces > limits.markup:
            return "markup", at
        if crowded or declaring:
            tag = piece[0]
            if tag[1] not in b"!?/" and b"=" in tag:
                names, attributes = _VALUE.subn(b"=", tag, limits.attributes + 1)
                if attributes > limits.attributes:
                    return "attributes", at
                pieces += attributes
                declared += len(_DECLARES.findall(names))
                if declared > limits.namespaces:
                    return "namespaces", at
        at = octets.find(b"<", piece.end())
    return None


def _may_have_more_pieces(octets: bytes, than: int) -> bool:
    return len(octets) > than * len(b"<b/>") and octets.count(b"<") > than


@cache
def _crowded(attributes: int) -> re.Pattern[bytes]:
    """Finds more signs than that between two tags' beginnings: a tag with so many attributes, or a text."""
    return re.compile(rb"<(?:[^<=]*+=){%d}" % (attributes + 1))


_DECLARATION: Final = re.compile(
    rb"""<\?xml[ \t\r\n]+version[ \t\r\n]*=[ \t\r\n]*["']1\.[0-9]+["']"""
    rb"""(?:[ \t\r\n]+encoding[ \t\r\n]*=[ \t\r\n]*["']([A-Za-z][A-Za-z0-9._-]*)["'])?"""
    rb"""(?:[ \t\r\n]+standalone[ \t\r\n]*=[ \t\r\n]*["'](?:yes|no)["'])?[ \t\r\n]*\?>"""
)
#: What may stand before the root: white space, comments, processing instructions.
_PROLOG: Final = re.compile(rb"(?:[ \t\r\n]+|<!--.*?-->|<\?.*?\?>)*", re.DOTALL)
#: How the root element begins.
_ROOT: Final = re.compile(rb"<[A-Za-z_:\x80-\xff]")
_INSTANCE: Final = "{http://www.w3.org/2001/XMLSchema-instance}"
#: Byte order marks: what each tells, and the names that a declaration behind it may have.
_BOMS: Final = (
    (codecs.BOM_UTF8, "utf-8", ("utf-8", "utf8")),
    (codecs.BOM_UTF32_LE, "utf-32", ("utf-32", "utf-32le")),
    (codecs.BOM_UTF32_BE, "utf-32", ("utf-32", "utf-32be")),
    (codecs.BOM_UTF16_LE, "utf-16", ("utf-16", "utf-16le")),
    (codecs.BOM_UTF16_BE, "utf-16", ("utf-16", "utf-16be")),
)
#: Encodings in which every byte below 0x80 that XML markup uses means what it means in ASCII.
_ENCODINGS: Final = frozenset(
    [
        "ascii",
        "utf-8",
        "koi8-r",
        "koi8-u",
        "tis-620",
        "euc_jp",
        "euc_kr",
        "shift_jis",
        "gb2312",
        "gbk",
        "gb18030",
        "big5",
    ]
    + [f"iso8859-{part}" for part in range(1, 17) if part != 12]
    + [f"cp{page}" for page in (437, 850, 852, 866, 932, 949, *range(1250, 1259))]
)
#: What a byte order mark tells.
_MARKED: Final = frozenset(["utf-8-sig", "utf-16", "utf-32"])


@dataclass(frozen=True, slots=True)
class ParseLimits(MarkupLimits):
    """Limits of what a document may cost.

    ``size`` in bytes; ``depth`` in nested elements; ``detail`` is the number of elements up to which a
    refused document gets the detailed report, which costs a hundred times what refusing it does, ``detail_s``
    the seconds that making it may take, and ``findings`` how many it may have.
    ``prolog`` in bytes before the root element, ``scalar`` in characters of a value that is no text or name, such as a
    number or a date. The time that parser, schema and canonical form take is in proportion to the size within these and
    those of its markup, and is not beyond them.
    """

    size: int = 8 * 1024 * 1024
    depth: int = 64
    detail: int = 5_000
    detail_s: float = 10.0
    findings: int = FINDINGS_LIMIT
    prolog: int = 65_536
    scalar: int = 65_536


DEFAULT_LIMITS: Final = ParseLimits()

#: What libxml2 accepts as one text node without being told otherwise.
_ORDINARY_SIZE: Final = 9_000_000
#: Bytes behind a flaw that the parser is shown, so that it can say what it is.
_CONTEXT: Final = 1000


class Unparsable(Exception):
    """The bytes are no document that may be read. Raised with a finding."""

    @property
    def finding(self) -> Finding:
        finding: Finding = self.args[0]
        return finding


def _parser(*, huge: bool) -> etree.XMLParser:
    return etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        load_dtd=False,
        dtd_validation=False,
        no_network=True,
        remove_comments=True,
        remove_pis=False,
        collect_ids=False,
        huge_tree=huge,
    )


_PARSER: Final = _parser(huge=False)
_HUGE_PARSER: Final = _parser(huge=True)


class Parsed(NamedTuple):
    """A document that was parsed: its root, without comments, and its bytes in UTF-8."""

    root: etree._Element
    octets: bytes


def parse(octets: bytes, limits: ParseLimits = DEFAULT_LIMITS) -> Parsed:
    """Return the document in ``octets``.

    Raises:
        Unparsable: with the finding: empty, size, encoding, dtd, malformed, depth, attributes, namespaces, markup,
            processing-instruction or schema-instance.
    """
    if len(octets) > limits.size:
        message = f"is larger than {limits.size} bytes; send large content compressed or as a claim check"
        raise Unparsable(found("size", message, value=str(len(octets))))
    octets = _as_utf8(octets)
    if not _ROOT.match(octets):
        _check_prolog(octets, limits.prolog)
    if (over := excess(octets, limits)) is not None:
        _refuse_markup(octets, *over, limits)
    try:
        root = etree.fromstring(octets, _PARSER if len(octets) <= _ORDINARY_SIZE else _HUGE_PARSER)
    except etree.XMLSyntaxError as error:
        raise Unparsable(_malformed(error, octets, limits)) from None
    # Neither can be written in another way; one byte is found faster than two.
    if (b"?" in octets and b"<?" in octets) or b"xmlns:" in octets:
        _check_nodes(root)
    return Parsed(root, octets)


def _as_utf8(octets: bytes) -> bytes:
    """Return the document in UTF-8 without byte order mark and XML declaration, its lines kept."""
    if octets[:1] == b"<" and octets[1:2] != b"?":
        return octets  # neither mark nor declaration: nearly every document
    encoding = "utf-8"
    names: tuple[str, ...] = ()
    for bom, name, declarable in _BOMS:
        if octets.startswith(bom):
            encoding, names = name, declarable
            break
    if names:
        octets = _transcode(octets, "utf-8-sig" if encoding == "utf-8" else encoding)
    if not octets.strip():
        raise Unparsable(found("empty", "is empty; send one agent-message element"))
    if not octets.startswith((b"<?xml ", b"<?xml\t", b"<?xml\r", b"<?xml\n")):
        return octets
    match = _DECLARATION.match(octets)
    if match is None:
        raise Unparsable(found("malformed", 'has a malformed XML declaration; write <?xml version="1.0"?>'))
    declared = (match[1] or b"utf-8").decode().lower()
    octets = b"\n" * match[0].count(b"\n") + octets[match.end() :]
    if octets.startswith(b"<?xml"):
        raise Unparsable(found("malformed", "has a second XML declaration; keep one"))
    if names:
        # The mark has said which it is; who goes by the declaration would read something else.
        if match[1] is not None and declared not in names:
            raise Unparsable(_wrong_encoding(declared))
        return octets
    return octets if declared in ("utf-8", "utf8") else _transcode(octets, declared, of=_ENCODINGS)


def _transcode(octets: bytes, encoding: str, *, of: frozenset[str] = _MARKED) -> bytes:
    """Return the same in UTF-8; ``of`` are the encodings that may be read so.

    An XML declaration that could be read byte by byte stands in front of nothing that takes two or four of them.
    """
    try:
        name = codecs.lookup(encoding).name
    except LookupError:
        name = ""
    if name not in of:
        message = "is in an encoding that is not read here; send it in UTF-8"
        raise Unparsable(found("encoding", message, value=encoding))
    try:
        return octets.decode(name).encode()
    except UnicodeError:
        raise Unparsable(_wrong_encoding(encoding)) from None


def _check_prolog(octets: bytes, limit: int) -> None:
    """Refuse anything before the root element but white space, comments and instructions.

    In the place of the root a document type declaration would stand; inside it the same bytes are text.
    """
    prolog = _PROLOG.match(octets, 0, limit)
    end = prolog.end() if prolog else 0
    if _ROOT.match(octets, end):
        return
    line = octets.count(b"\n", 0, end) + 1
    if octets.startswith(b"<!DOCTYPE", end):
        message = "the document has a document type declaration; leave out <!DOCTYPE and all entities"
        raise Unparsable(Finding("dtd", "error", line, None, "<!DOCTYPE", message))
    try:
        octets.decode()
    except UnicodeDecodeError:
        raise Unparsable(_wrong_encoding("utf-8")) from None
    message = "the document does not begin with an element; send XML with agent-message as its root"
    if len(octets) > limit <= end + len(b"<!---->"):
        message = f"the document has {limit} bytes and more before its first element; leave the comments out"
    raise Unparsable(Finding("malformed", "error", line, None, None, message))


def _refuse_markup(octets: bytes, rule: str, at: int, limits: ParseLimits) -> NoReturn:
    """Refuse more markup than is handled in a time that is in proportion to the size."""
    if rule == "malformed":
        try:  # the parser's own words, without what stands behind the place
            etree.fromstring(octets[: at + _CONTEXT], _PARSER)
        except etree.XMLSyntaxError as error:
            raise Unparsable(_malformed(error, octets, limits)) from None
    message = {
        "attributes": f"the document has an element with more than {limits.attributes} attributes; leave out "
        "those that are not the protocol's",
        "namespaces": f"the document declares more than {limits.namespaces} namespaces; declare each once, "
        "on the root",
        "markup": f"the document has more than {limits.markup} tags, attributes and comments; send it in parts",
        "malformed": "the document is not well-formed XML; correct it at this line",
    }[rule]
    raise Unparsable(Finding(rule, "error", octets.count(b"\n", 0, at) + 1, None, None, message))


def _check_nodes(root: etree._Element) -> None:
    """Refuse what validators would act upon (xsi attributes) and what signatures would cover unread."""
    nodes: Iterator[Any] = chain(root.itersiblings(preceding=True), root.itersiblings(), root.iter())
    for node in nodes:
        if node.tag is etree.PI:
            message = "the document has a processing instruction; leave it out"
            raise Unparsable(Finding("processing-instruction", "error", line_of(node), None, None, message))
        for name in node.attrib:
            if str(name).startswith(_INSTANCE):
                message = "has an attribute of XML Schema instances; leave it out"
                raise Unparsable(found("schema-instance", message, node, value=str(name)[len(_INSTANCE) :]))


def check_depth(root: etree._Element, limit: int) -> None:
    """Refuse a tree that nests deeper than ``limit``. Needed only where the schema does not say how deep.

    Raises:
        Unparsable: with the finding depth.
    """
    depth = 0
    for event, element in etree.iterwalk(root, events=("start", "end")):
        depth += 1 if event == "start" else -1
        if depth > limit:
            raise Unparsable(_too_deep(line_of(element), limit))


def _malformed(error: etree.XMLSyntaxError, octets: bytes, limits: ParseLimits) -> Finding:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return _wrong_encoding("utf-8")
    reason = " ".join((error.msg or "not well-formed").split(", line ")[0].split())
    if "xcessive depth" in reason:  # the parser's own limit, far above ours
        return _too_deep(error.lineno or None, limits.depth)
    message = f"the document is not well-formed XML ({reason}); correct it at this line"
    return Finding("malformed", "error", error.lineno or None, None, None, message)


def _too_deep(line: int | None, limit: int) -> Finding:
    message = f"the document nests deeper than {limit} elements; flatten it"
    return Finding("depth", "error", line, None, str(limit), message)


def _wrong_encoding(claimed: str) -> Finding:
    message = f"is not in the encoding {claimed}, which it claims; send it in UTF-8"
    return found("encoding", message, value=claimed)

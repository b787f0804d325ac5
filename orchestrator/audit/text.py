"""Text of an envelope for people: that of its body, without markup and escapes, decompressed; never encrypted
content.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Final

from lxml import etree

from orchestrator.envelope import canonical, payload
from orchestrator.envelope.model_values import NAMESPACE, is_base64, unspaced
from orchestrator.envelope.parse import ParseLimits, Unparsable, parse
from orchestrator.errors import PayloadError

#: Octets of an envelope, or of a decompressed body, that is read: a stack may allow more than 8 MiB.
_MOST: Final = 64 * 1024 * 1024
_LIMITS: Final = ParseLimits(size=_MOST)
_BODY: Final = f"{{{NAMESPACE}}}body"
_COMPRESSED: Final = f"{{{NAMESPACE}}}compressed-payload"
#: What people read where the operator has removed a text.
REMOVED: Final = "(the operator has removed its text)"
#: A text that no XML can hold as it is, as it has control characters.
_ENCODED: Final = ".//*[@encoding='base64']"
_ENCRYPTED: Final = "{http://www.w3.org/2001/04/xmlenc#}EncryptedData"


def text_of(xml: bytes, stored: bytes = b"", *, known: bool = True) -> str:
    """Return the text of the body of an envelope, a line for each element; its bytes as they are if it cannot be
    parsed.

    ``stored`` is the body that is stored apart from it. ``known``: whether the trail has its facts. What has none is not
    valid, or has ended writers, and is not parsed.
    """
    if not known:
        return xml.decode("utf-8", "replace")
    if not stored and (texts := canonical.texts(xml, _LIMITS)) is not None:
        return "\n".join(texts)
    return parsed_text(xml, stored)


def parsed_text(xml: bytes, stored: bytes = b"") -> str:
    """Return the same, of a document in any spelling."""
    try:
        root = parse(xml, _LIMITS).root
    except Unparsable:
        return xml.decode("utf-8", "replace")
    pieces = [piece for body in root.iter(_BODY) for piece in _read(body)]
    if stored:
        pieces += _parsed(stored)
    return "\n".join(pieces)


def body_of(xml: bytes) -> bytes:
    """Return the body in an envelope as an element of its own, decompressed; empty if there is none that can be read."""
    try:
        body = parse(xml, _LIMITS).root.find(_BODY)
    except Unparsable:
        return b""
    if body is None:
        return b""
    packed = body.find(_COMPRESSED)
    return etree.tostring(body, with_tail=False) if packed is None else _decompressed(packed)


def body_texts(body: bytes) -> list[str]:
    """Return the texts of a body as :func:`body_of` gives it; encrypted ones are left out."""
    return _parsed(body) if body else []


def indented(xml: bytes) -> list[str]:
    """Return the lines of an envelope for people, indented; its bytes as they are if it cannot be parsed."""
    if not xml:
        return [REMOVED]
    try:
        root = parse(xml, _LIMITS).root
    except Unparsable:
        return xml.decode("utf-8", "replace").splitlines()
    etree.indent(root)
    return etree.tostring(root, encoding="unicode").splitlines()


def _read(element: etree._Element) -> list[str]:
    """Return the texts of an element and of those in it."""
    opened: list[str] = []
    for encrypted in list(element.iter(_ENCRYPTED)):
        for part in encrypted.iter():
            part.text = part.tail = ""
    for packed in list(element.iter(_COMPRESSED)):
        opened += _parsed(_decompressed(packed))
        packed.text = ""
    for encoded in list(element.iterfind(_ENCODED)):
        if is_base64(text := unspaced(encoded.text or "")):
            opened.append(b64decode(text).decode("utf-8", "replace"))
            encoded.text = ""
    return [*(str(piece) for piece in element.itertext()), *opened]


def _decompressed(element: etree._Element) -> bytes:
    try:
        return payload.decompress(
            b64decode(unspaced(element.text or ""), validate=True),
            size=int(element.get("size", "0")),
            sha256=element.get("sha256", ""),
            max_bytes=_MOST,
        )
    except (ValueError, PayloadError):
        return b""


def _parsed(octets: bytes) -> list[str]:
    try:
        return _read(parse(octets, _LIMITS).root)
    except Unparsable:
        return []

"""The text of an envelope as its sender meant it, for a search: no markup, no escapes, decompressed."""

from __future__ import annotations

import re
from base64 import b64decode
from functools import lru_cache
from typing import Final

from lxml import etree

from orchestrator.envelope import payload
from orchestrator.envelope.model_values import NAMESPACE, unspaced
from orchestrator.envelope.parse import DEFAULT_LIMITS, ParseLimits, Unparsable, parse
from orchestrator.errors import PayloadError

#: Octets of a body that is decompressed for a search; what travels apart because it is larger is not in the trail.
_MOST: Final = 16 * 1024 * 1024
_LIMITS: Final = ParseLimits(size=_MOST)
_COMPRESSED: Final = f"{{{NAMESPACE}}}compressed-payload"
#: What XML may spell in several ways, or changes while it is read.
_SPELT: Final = re.compile("[&<>\"'\r\n]")
#: What may spell any character in another way, or hides text: references, CDATA and comments, compression.
_MARKS: Final = (b"&#", b"<!", b"compressed-payload")
_PLAIN_START: Final = b"<agent-message "


@lru_cache(maxsize=8)
def text_of(xml: bytes) -> str:
    """All text of an envelope, a line for each element; of what cannot be parsed, its octets as they are."""
    try:
        root = parse(xml, DEFAULT_LIMITS).root
    except Unparsable:
        return xml.decode("utf-8", "replace")
    pieces = [str(piece) for piece in root.itertext()]
    pieces += [_inflated(element) for element in root.iter(_COMPRESSED)]
    return "\n".join(pieces)


def says(xml: bytes, needle: str) -> bool:
    """Whether the text of an envelope has ``needle`` in it.

    Before an envelope is read its octets are searched for what every spelling of the needle has in common, where
    there are no other spellings.
    """
    common = max(_SPELT.split(needle), key=len).encode()
    if xml.startswith(_PLAIN_START) and common not in xml and not any(mark in xml for mark in _MARKS):
        return False
    return needle in text_of(xml)


def _inflated(element: etree._Element) -> str:
    """The text of a compressed body; empty if it cannot be opened."""
    try:
        octets = payload.decompress(
            b64decode(unspaced(element.text or ""), validate=True),
            size=int(element.get("size", "0")),
            sha256=element.get("sha256", ""),
            max_bytes=_MOST,
        )
        return "\n".join(str(piece) for piece in parse(octets, _LIMITS).root.itertext())
    except (ValueError, PayloadError, Unparsable):
        return ""

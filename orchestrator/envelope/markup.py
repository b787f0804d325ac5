"""Limits on the markup of a document, checked on its octets before a parser builds anything of it.

Several steps behind the parser take time with the square of the attributes of one element, of the namespaces in
scope, or of the elements. Nearly every document is let through by counting one character; what has more of it is
cut into pieces, which is exact for well-formed XML and ends where a document is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final

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
    """Which limit a document in UTF-8 exceeds, and at which octet; None: none.

    ``malformed``: the octet is where a document of much markup stops being well-formed. A parser would go on behind
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

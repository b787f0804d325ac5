"""Counting markup before anything is parsed: exact for well-formed XML, and at an end where a document is not."""

from __future__ import annotations

import pytest

from orchestrator.envelope.parse import ParseLimits, excess

FEW = ParseLimits(attributes=3, namespaces=2, markup=10)


@pytest.mark.parametrize(
    ("octets", "rule"),
    [
        (b"<a b='1' c='2' d='3'/>", None),
        (b"<a b='1' c='2' d='3' e='4'/>", "attributes"),
        (b'<a b=\' c="1" d="2" e="3" f="4" \'/>', None),
        (b"<a>b='1' c='2' d='3' e='4'</a>", None),
        (b"<a><!-- <x b='1' c='2' d='3' e='4'> --></a>", None),
        (b"<a><![CDATA[<x b='1' c='2' d='3' e='4'>]]></a>", None),
        (b"<a b='>' c='>' d='>' e='>'/>", "attributes"),
        (b"<a\nb\n=\n'1'\tc='2' d='3' e='4'/>", "attributes"),
        (b"<a xmlns='u' xmlns:b='u'/>", None),
        (b"<a xmlns='u'><b xmlns='u'><c xmlns='u'/></b></a>", "namespaces"),
        (b"<a b='xmlns=' c=' xmlns=' d='xmlns:x='>xmlns='u'</a>", None),
        (b"<a>" + b"<b/>" * 8 + b"</a>", None),
        (b"<a>" + b"<b/>" * 9 + b"</a>", "markup"),
        (b"<a>" + b"<b/>" * 3 + b"<" * 40, "malformed"),
        (b'<a b="1" ' + b"c=" * 20 + b'"' + b"<" * 20, "malformed"),
    ],
)
def test_what_is_over_a_limit_is_told(octets: bytes, rule: str | None) -> None:
    """And nothing that only looks like it, in a value, a text, a comment or a CDATA section."""
    found = excess(octets, FEW)
    assert (found and found[0]) == rule

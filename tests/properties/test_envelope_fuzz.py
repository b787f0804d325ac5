"""Whatever octets come, validation ends in a verdict: a message, or findings that say why not."""

from __future__ import annotations

import random
import time
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.envelope import codec, schemas
from orchestrator.envelope.catalogue import RULES
from orchestrator.envelope.validate import Report, check
from orchestrator.errors import InvalidEnvelope

SEEDS = sorted(
    entry.read_bytes()
    for folder in ("templates", "examples/valid", "examples/invalid")
    for entry in schemas.path(folder).iterdir()
    if entry.name.endswith(".xml")
)
#: Pieces that parsers have stumbled over.
PIECES = [
    *[
        b"<!DOCTYPE a>",
        b"<!ENTITY a 'b'>",
        b"<![CDATA[",
        b"]]>",
        b"<!--",
        b"-->",
        b"<?x",
        b"?>",
        b"&#0;",
        b"&a;",
        b"&",
    ],
    *[
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"\xc0\x80",
        b"<",
        b">",
        b'"',
        b"xmlns:x='urn:x'",
        b"x:",
    ],
    *[
        b"xsi:type='a'",
        b"<a>" * 300,
        b"</a>" * 300,
        b"encoding='base64'",
        b"A" * 5000,
        b"<?xml version='1.0'?>",
    ],
    *[b'xmlns="http://www.w3.org/2001/04/xmlenc#"', b"type='query'", b"\r", b"\xe2\x80\xa8", b"1e999", b"-0"],
]


def _is_verdict(report: Report) -> None:
    """Exactly one of the two: a message that can be written again, or errors of rules that exist."""
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert report.valid == (not errors)
    assert all(finding.rule in RULES and finding.message for finding in report.findings)
    if report.message is not None:
        assert codec.decode(codec.encode(report.message)) == report.message


def _mutated(rng: random.Random) -> bytes:
    octets = bytearray(rng.choice(SEEDS))
    for _ in range(rng.randint(1, 4)):
        here, there = sorted((rng.randint(0, len(octets)), rng.randint(0, len(octets))))
        match rng.randint(0, 6):
            case 0:
                octets[here:here] = rng.choice(PIECES)
            case 1:
                del octets[here : min(there, here + 200)]
            case 2:
                octets[here:here] = octets[here : min(there, here + 400)]
            case 3 if octets:
                octets[rng.randrange(len(octets))] = rng.randrange(256)
            case 4:
                other = rng.choice(SEEDS)
                octets[here:] = other[rng.randint(0, len(other)) :]
            case 5:
                octets[here:there] = rng.choice(PIECES)
            case _:
                del octets[here:]
    return bytes(octets)


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_envelope_gets_a_verdict(seed: int) -> None:
    """Cut, doubled, spliced and seasoned examples, for about two seconds; the seed of a failure is its name."""
    rng = random.Random(seed)
    end = time.monotonic() + 2
    number = 0
    while time.monotonic() < end and number < 4000:
        octets = _mutated(rng)
        try:
            _is_verdict(check(octets))
        except Exception as error:
            raise AssertionError(f"mutation {number} of seed {seed}: {octets!r}") from error
        number += 1
    assert number > 20


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=300) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
def test_any_octets_get_a_verdict(octets: bytes) -> None:
    """Nothing of that is an envelope, and all of it is refused in words."""
    report = check(octets)
    _is_verdict(report)
    assert not report.valid


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(SEEDS),
    st.sampled_from(["utf-8", "utf-16", "utf-16-be", "utf-32", "utf-7", "cp037", "latin-1"]),
)
def test_any_encoding_gets_a_verdict(octets: bytes, encoding: str) -> None:
    """Also one that does not fit the declaration."""
    text = octets.decode("utf-8", "replace")
    _is_verdict(check(text.encode(encoding, "replace")))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(SEEDS), st.data())
def test_a_body_out_of_anything_gets_a_verdict(octets: bytes, data: st.DataObject) -> None:
    """What comes out of a decompressor is no more to be trusted than what comes in."""
    start = data.draw(st.integers(0, len(octets)))
    body = octets[octets.find(b"<body") : octets.find(b"</body>") + 7] if start % 2 else octets[start:]
    own = body.replace(b"<body", b'<body xmlns="http://agent-orchestra.local/protocol/1.0"', 1)
    with suppress(InvalidEnvelope):
        decoded = codec.decode_body(own)
        assert codec.decode_body(codec.encode_body(decoded)) == decoded


def test_large_hostile_documents_are_refused_in_bounded_time() -> None:
    """Megabytes of flaws, of attributes, of nesting: each costs seconds at most."""
    head, tail = schemas.read("templates/status-update.xml").split(b"<next-steps>")
    bad = [
        head + b"<next-steps>" + b'<step order="x">y</step>' * 200_000 + tail,
        head + b"<next-steps>" + b"<x/>" * 1_000_000 + tail,
        b"<a " + b" ".join(b"a%d='1'" % n for n in range(200_000)) + b"/>",
        b"<a>" * 1_000_000,
        head.replace(b">40<", b">" + b"9" * 7_000_000 + b"<") + b"<next-steps>" + tail,
        head + b"<next-steps>" + b"<step>&#13;</step>" * 300_000 + b"<step order='x'/>" + tail,
        b"<!--" + b"-" * 7_000_000,
        b"<?x " * 1_500_000,
        b"\n" * 7_000_000 + b"x",
    ]
    for octets in bad:
        started = time.monotonic()
        report = check(octets)
        assert not report.valid
        assert time.monotonic() - started < 10

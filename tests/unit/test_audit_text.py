"""What people read and search of an envelope in the audit trail: its text, opened; nothing of what is encrypted or broken."""

from __future__ import annotations

import hashlib
from base64 import b64encode

from orchestrator.audit.text import body_of, indented, text_of
from orchestrator.audit.words import words_of
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.envelope.payload import compress

BODY = f'<body xmlns="{NAMESPACE}" type="message"><content>a needle &amp; hay</content></body>'.encode()
XENC = "http://www.w3.org/2001/04/xmlenc#"


def envelope(body: bytes) -> bytes:
    return (
        f'<agent-message xmlns="{NAMESPACE}"><header><a>head</a></header>'.encode()
        + body
        + b"</agent-message>"
    )


def packed(octets: bytes = BODY, *, size: int | None = None, sha256: str = "", text: str = "") -> bytes:
    """An envelope with a compressed body, or with what pretends to be one."""
    text = text or b64encode(compress(octets)).decode()
    sha256 = sha256 or hashlib.sha256(octets).hexdigest()
    of = f'size="{len(octets) if size is None else size}" sha256="{sha256}"'
    return envelope(
        f'<body type="message"><compressed-payload {of}>{text}</compressed-payload></body>'.encode()
    )


def test_the_text_of_a_body_is_read_without_markup_and_without_the_header() -> None:
    assert text_of(envelope(BODY)) == "a needle & hay"
    assert text_of(envelope(b""), BODY) == "a needle & hay"
    assert text_of(envelope(b""), b"<broken") == ""


def test_a_compressed_body_is_opened() -> None:
    assert text_of(packed()).strip() == "a needle & hay"
    assert body_of(packed()) == BODY
    assert b64encode(compress(BODY)).decode() not in text_of(packed())


def test_what_pretends_to_be_compressed_is_left_out() -> None:
    """Another digest, another size, no base64, no document inside: the rest of the trail is read all the same."""
    assert text_of(packed(sha256="0" * 64)).strip() == ""
    assert text_of(packed(size=3)).strip() == ""
    assert text_of(packed(text="*** no base64 ***")).strip() == ""
    assert text_of(packed(b"no document")).strip() == ""
    assert body_of(packed(size=3)) == b""


def test_nothing_of_what_is_encrypted_is_read() -> None:
    secret = f'<EncryptedData xmlns="{XENC}"><KeyName>k</KeyName>tail<CipherValue>c2VjcmV0</CipherValue></EncryptedData>'
    read = text_of(envelope(f'<body type="message">{secret}<content>plain</content></body>'.encode()))
    assert "plain" in read
    assert not {"k", "tail", "c2VjcmV0"} & set(read.split())


def test_what_is_no_envelope_is_read_as_it_is() -> None:
    assert text_of(b"no \xff xml") == "no � xml"
    assert indented(b"no\nxml") == ["no", "xml"]
    assert body_of(b"no xml") == b""
    assert body_of(envelope(b"")) == b""


def test_a_message_of_a_stack_that_allows_large_ones_is_read() -> None:
    """`max_message_bytes` may be more than the parser's own limit."""
    large = BODY.replace(b"hay", b"hay " * (3 << 20))
    read = envelope(large)
    assert text_of(read).startswith("a needle & hay hay")
    assert body_of(read) == large
    assert indented(read)[1] == "  <header>"


def test_people_see_an_envelope_indented() -> None:
    lines = indented(envelope(BODY))
    assert lines[1] == "  <header>"
    assert any(line.strip() == "<content>a needle &amp; hay</content>" for line in lines)


def test_signs_that_are_not_of_ascii_stand_between_words() -> None:
    for text in ("“Don’t”—stop… x–Y_z", "Don't stop، x Y_z"):
        assert words_of(text) == ["don", "t", "stop", "x", "y", "z"]

"""What a signature covers, and everything that must not pass for one."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lxml import etree

from orchestrator.envelope import codec
from orchestrator.envelope.bodies import Message
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.envelope.parse import Unparsable, parse
from orchestrator.envelope.signature import (
    RULES,
    VerifiedSignature,
    canonical,
    digest_of,
    sign,
    sign_message,
    verify,
)
from orchestrator.envelope.validate import check
from orchestrator.errors import InvalidEnvelope, SignatureError
from orchestrator.keyring import algorithms

NOW_MS = 1_700_000_000_000
ALGORITHMS = ("RSA-SHA256", "Ed25519")
Write = Callable[..., AgentMessage]


def read(octets: bytes, keys, *, sent: bool = True) -> VerifiedSignature:
    """Check a signature by the tree; ``sent``: as a router does, which canonicalizes only what may not be canonical."""
    if sent and (report := check(octets, advice=False)).message is not None:
        return verify(report.require_tree, keys, canonical_octets=report.octets, message=report.message)
    return verify(parse(octets).root, keys)


def refusal(octets: bytes, keys) -> str:
    """The rule by which octets are refused, the same with and without a tree."""
    rules = set()
    for sent in (True, False):
        with pytest.raises(SignatureError) as caught:
            read(octets, keys, sent=sent)
        rules.add(caught.value.args[0])
        assert caught.value.args[0] in RULES
    (rule,) = rules
    return rule


@pytest.fixture
def signed(keys, write: Write) -> bytes:
    return sign_message(write(), keys.signer(), now_ms=NOW_MS)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize(
    "content", ["hello", "<&>\"' \u00e9\u4e2d\U0001f600", "line\n\ttab", "cr\r nul\x00", ""]
)
def test_what_was_signed_verifies(keys, write: Write, algorithm: str, content: str) -> None:
    signer = keys.signer(algorithm=algorithm)
    octets = sign_message(write(content), signer, now_ms=NOW_MS)
    for sent in (True, False):
        assert read(octets, keys, sent=sent) == VerifiedSignature(
            signer="lead",
            key_id=signer.key_id,
            algorithm=algorithm,
            signed_ms=NOW_MS,
            digest=digest_of(octets),
        )


def test_what_is_sent_is_valid_canonical_and_holds_the_signature(keys, signed: bytes) -> None:
    report = check(signed)
    assert report.valid
    assert report.message.signature.signer == "lead"
    assert canonical(report.tree) == signed


@pytest.mark.parametrize("name", ["a&b<c>", "名前", 'it\'s "me"'])
def test_names_are_signed_as_xml_writes_them(keys, write: Write, name: str) -> None:
    octets = sign_message(write(sender=name), keys.signer(name, "Ed25519"), now_ms=NOW_MS)
    assert read(octets, keys, sent=False).signer == name
    assert canonical(parse(octets).root) == octets


def test_the_fast_way_and_the_general_way_write_the_same(keys, write: Write) -> None:
    message, signer = write(), keys.signer(algorithm="Ed25519")
    ways = {
        sign_message(message, signer, now_ms=NOW_MS),
        sign(codec.encode(message), signer, now_ms=NOW_MS),
        sign(sign_message(message, keys.signer(), now_ms=1), signer, now_ms=NOW_MS),
    }
    assert len(ways) == 1


def test_verifying_leaves_the_tree_as_it_was(keys, signed: bytes) -> None:
    root = parse(signed).root
    verify(root, keys)
    assert canonical(root) == signed


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_octet_of_a_signed_message_can_be_changed(keys, write: Write, algorithm: str, sent: bool) -> None:
    octets = sign_message(write(), keys.signer(algorithm=algorithm), now_ms=NOW_MS)
    for at in range(len(octets)):
        changed = octets[:at] + bytes([octets[at] ^ 1]) + octets[at + 1 :]
        with pytest.raises((SignatureError, Unparsable)):
            read(changed, keys, sent=sent)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_nothing_can_be_taken_out_put_in_or_moved(keys, signed: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(signed)))
    end = data.draw(st.integers(start, len(signed)))
    insert = data.draw(
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from([b" x='1'", b"<a/>", b"<body/>", b"&#65;", b"\xc3\xa9"]),
            st.builds(
                lambda a, b: signed[min(a, b) : max(a, b)],
                st.integers(0, len(signed)),
                st.integers(0, len(signed)),
            ),
        )
    )
    changed = signed[:start] + insert + signed[end:]
    try:
        good = read(changed, keys)
    except (SignatureError, Unparsable):
        return
    # What XML does not count as content may differ; what is read must not.
    assert good.signer == "lead"
    assert without_value(canonical(parse(changed).root)) == without_value(signed)


def without_value(octets: bytes) -> bytes:
    return re.sub(rb"(<signature-value>)[^<]*", rb"\1", octets)


@pytest.mark.parametrize(
    "spell",
    [
        lambda octets: b'<?xml version="1.0" encoding="UTF-8"?>\n' + octets + b"\n",
        lambda octets: b"\xef\xbb\xbf" + octets,
        lambda octets: octets.replace(b'version="1.0"', b"version = '1.0'"),
        lambda octets: octets.replace(b"hello", b"<![CDATA[hello]]>"),
        lambda octets: octets.replace(b"hello", b"h&#101;llo"),
        lambda octets: octets.replace(b"hello", b"he<!-- nothing -->llo"),
        lambda octets: octets.decode().encode("utf-16"),
        lambda octets: re.sub(rb"(<signature-value>.{64})", rb"\1\n  ", octets),
    ],
)
def test_another_spelling_of_the_same_message_verifies(keys, signed: bytes, spell) -> None:
    assert read(spell(signed), keys).signer == "lead"


def test_a_comment_cannot_split_a_name_into_another_one(keys, write: Write) -> None:
    """Comments are not signed; what a reader takes for the name must not end at one."""
    octets = sign_message(write(sender="leader"), keys.signer("leader", "Ed25519"), now_ms=NOW_MS)
    split = octets.replace(b">leader<", b">lead<!-- -->er<")
    report = check(split)
    assert report.message is None or report.message.header.sender.agent_name == "leader"
    with_comments = etree.fromstring(split)
    with pytest.raises(SignatureError):
        verify(with_comments, keys)


# --- wrapping ------------------------------------------------------------------------------------


def parts(octets: bytes) -> tuple[bytes, bytes, bytes]:
    start, end = octets.index(b"<signature>"), octets.index(b"</signature>") + len(b"</signature>")
    return octets[:start], octets[start:end], octets[end:]


def test_a_signed_message_inside_another_one_says_nothing_of_the_outer_one(keys, signed: bytes) -> None:
    evil = signed.replace(b"hello", signed)
    assert refusal(evil, keys) == "signature-position"
    head, _, tail = parts(signed)
    assert refusal(head.replace(b"hello", signed) + tail, keys) == "signature-position"


def test_a_signature_anywhere_but_at_the_end_is_refused(keys, signed: bytes) -> None:
    head, block, tail = parts(signed)
    assert refusal(head + tail, keys) == "signature-missing"
    assert refusal(head + block + block + tail, keys) == "signature-position"
    assert refusal(head + block + b"<header/>" + tail, keys) == "signature-position"
    assert refusal(head.replace(b"<body", block + b"<body") + tail, keys) == "signature-position"
    assert refusal(head.replace(b"</body>", block + b"</body>") + tail, keys) == "signature-position"


def test_a_second_body_or_header_breaks_the_signature(keys, signed: bytes) -> None:
    body = signed[signed.index(b"<body") : signed.index(b"</body>") + 7]
    header = signed[signed.index(b"<header") : signed.index(b"</header>") + 9]
    assert refusal(signed.replace(body, body + body), keys) == "signature-invalid"
    assert refusal(signed.replace(header, header + header), keys) == "signature-sender"


def test_a_message_inside_a_foreign_root_is_refused(keys, signed: bytes) -> None:
    assert refusal(b"<envelope>" + signed + b"</envelope>", keys) == "signature-root"
    with pytest.raises(SignatureError, match="whole"):
        verify(etree.fromstring(b"<envelope>" + signed + b"</envelope>")[0], keys)


def test_elements_of_another_namespace_are_no_signature(keys, signed: bytes) -> None:
    evil = signed.replace(b"<signature>", b'<signature xmlns="urn:other">')
    assert refusal(evil, keys) == "signature-missing"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"<signature-value>", b"<signature-value><x/>"),
        (b"<algorithm>", b"<algorithm>x</algorithm><algorithm>"),
        (b"<public-key-id>", b"<key/><public-key-id>"),
        (b"</signature-value>", b"!</signature-value>"),
        (b"</signature-value>", b"====</signature-value>"),
        (
            b"<timestamp>2023-11-14T22:13:20.000Z</timestamp><public",
            b"<timestamp>2023-11-14</timestamp><public",
        ),
        (
            b"<timestamp>2023-11-14T22:13:20.000Z</timestamp><public",
            b"<timestamp>2023-11-31T22:13:20Z</timestamp><public",
        ),
    ],
)
def test_a_signature_of_another_shape_is_refused(keys, signed: bytes, old: bytes, new: bytes) -> None:
    changed = signed.replace(old, new)
    assert changed != signed
    assert refusal(changed, keys) == "signature-malformed"


def test_an_empty_value_is_no_signature(keys, signed: bytes) -> None:
    assert refusal(without_value(signed), keys) == "signature-malformed"


def test_a_signature_has_one_spelling(keys, signed: bytes) -> None:
    """The unused bits at the end of base64 must not make a second good message of one."""
    value = re.search(rb"<signature-value>([^<]*)", signed)[1]
    alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = value.rstrip(b"=")[-1:]
    other = alphabet[alphabet.index(last) ^ 1 : (alphabet.index(last) ^ 1) + 1]
    respelt = value.rstrip(b"=")[:-1] + other + b"=" * value.count(b"=")
    assert b64decode(respelt) == b64decode(value)
    assert refusal(signed.replace(value, respelt), keys) == "signature-malformed"


# --- keys ----------------------------------------------------------------------------------------


def test_a_body_of_another_signed_message_is_refused(keys, write: Write) -> None:
    one, other = (sign_message(write(text), keys.signer(), now_ms=NOW_MS) for text in ("one", "two"))
    assert refusal(one.replace(b">one<", b">two<"), keys) == "signature-invalid"
    head, _, tail = parts(one)
    assert refusal(head + parts(other)[1] + tail, keys) == "signature-invalid"


def test_the_message_cannot_choose_the_algorithm(keys, signed: bytes) -> None:
    assert refusal(signed.replace(b"RSA-SHA256", b"Ed25519"), keys) == "signature-algorithm"
    for name in (b"none", b"HMAC-SHA256", b"RSA-SHA1", b""):
        assert refusal(signed.replace(b"RSA-SHA256", name), keys) == "signature-algorithm"


def test_the_public_key_is_no_secret_to_sign_with(keys, signed: bytes) -> None:
    """The classic confusion: the public key, known to all, taken as the secret of a keyed hash."""
    import hashlib
    import hmac

    key = keys.lookup(keys.signer().key_id)
    head, _, tail = parts(signed)
    block = re.sub(rb"RSA-SHA256", b"HMAC-SHA256", without_value(parts(signed)[1]))
    forged = hmac.new(
        algorithms.public_pem(key.public).encode(), head + block + tail, hashlib.sha256
    ).digest()
    block = block.replace(b"<signature-value>", b"<signature-value>" + b64encode(forged))
    assert refusal(head + block + tail, keys) == "signature-algorithm"


@pytest.mark.parametrize("length", [1, 64, 255, 256, 257, 512])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_signature_of_any_length_is_a_clean_refusal(
    keys, write: Write, algorithm: str, length: int
) -> None:
    octets = without_value(sign_message(write(), keys.signer(algorithm=algorithm), now_ms=NOW_MS))
    junk = b"<signature-value>" + b64encode(bytes(range(256)) * 2)[: length // 3 * 4 + 4]
    value = b64encode(b"\x00" + b"\x01" * (length - 1))
    for content in (value, junk.partition(b">")[2]):
        evil = octets.replace(b"<signature-value>", b"<signature-value>" + content)
        assert refusal(evil, keys) in {"signature-invalid", "signature-malformed"}


def test_a_key_nobody_knows_is_refused(keys, signed: bytes) -> None:
    key_id = keys.signer().key_id.encode()
    assert refusal(signed.replace(key_id, b"key_" + b"0" * 32), keys) == "key-unknown"
    assert refusal(signed.replace(key_id, b"../../etc/passwd"), keys) == "key-unknown"


def test_the_key_of_another_agent_is_refused(keys, write: Write) -> None:
    other = keys.signer("mallory", "Ed25519")
    octets = sign_message(write(sender="lead"), other, now_ms=NOW_MS)
    assert refusal(octets, keys) == "signer-sender"
    assert refusal(octets.replace(b"<signer>mallory", b"<signer>lead"), keys) == "key-owner"


def test_a_revoked_key_verifies_nothing(keys, signed: bytes) -> None:
    keys.changes[keys.signer().key_id] = {"revoked_ms": NOW_MS + 1}
    assert refusal(signed, keys) == "key-revoked"


def test_a_rotated_key_verifies_what_it_signed_in_its_time(keys, write: Write) -> None:
    signer = keys.signer()
    keys.changes[signer.key_id] = {"retired_ms": NOW_MS}
    read(sign_message(write(), signer, now_ms=NOW_MS), keys)
    assert refusal(sign_message(write(), signer, now_ms=NOW_MS + 1), keys) == "key-retired"


def test_a_key_verifies_nothing_from_before_it_was_made(keys, write: Write) -> None:
    signer = replace(keys.signer(), created_ms=0)
    read(sign_message(write(), signer, now_ms=NOW_MS - 200_000), keys)
    assert refusal(sign_message(write(), signer, now_ms=NOW_MS - 400_000), keys) == "key-too-young"


def test_a_key_says_of_nothing_that_it_was_signed_before_it_was_made(keys, write: Write) -> None:
    """The clock was set back since; what is signed then counts all the same."""
    read(sign_message(write(), keys.signer(), now_ms=NOW_MS - 3_600_000), keys)


# --- foreign documents ---------------------------------------------------------------------------

FOREIGN = f"""<?xml version="1.0" encoding="ISO-8859-1"?>
<!-- written by hand -->
<ao:agent-message version='1.0' xmlns:ao="{NAMESPACE}" xmlns:unused="urn:x">
  <ao:header>
    <ao:message-id>6f1b0a7e-3a1e-4c55-9a1f-0d3c8f1a2b3c</ao:message-id>
    <ao:timestamp>2026-01-31T09:30:00Z</ao:timestamp>
    <ao:sender><ao:agent-name> lead </ao:agent-name><ao:agent-role>coordinator</ao:agent-role></ao:sender>
    <ao:recipient><ao:agent-name>r\xe9viseur</ao:agent-name><ao:agent-role>specialist</ao:agent-role></ao:recipient>
  </ao:header>
  <ao:body type="message"><ao:content><![CDATA[<b>]]></ao:content></ao:body>
  <!-- the signature goes here -->
</ao:agent-message>
""".encode("latin-1")


def test_foreign_xml_can_be_signed_and_says_the_same_afterwards(keys) -> None:
    octets = sign(FOREIGN, keys.signer(), now_ms=NOW_MS)
    read(octets, keys)
    assert canonical(parse(octets).root) == octets
    before, after = check(FOREIGN).message, check(octets).message
    assert after.body == before.body == Message(content="<b>")
    assert after.header == before.header


@pytest.mark.parametrize("octets", [b"", b"<", b"\x00\x01", b"<!DOCTYPE a><a/>", b"<a><?pi?></a>"])
def test_what_cannot_be_parsed_cannot_be_signed(keys, octets: bytes) -> None:
    with pytest.raises(InvalidEnvelope):
        sign(octets, keys.signer(), now_ms=NOW_MS)


def test_another_document_cannot_be_signed(keys) -> None:
    with pytest.raises(SignatureError, match="agent-message"):
        sign(b"<invoice/>", keys.signer(), now_ms=NOW_MS)


def test_a_processing_instruction_beside_the_root_is_refused(keys, signed: bytes) -> None:
    """Canonicalizing the whole document would cover it, canonicalizing the root does not."""
    for octets in (b"<?pi?>" + signed, signed + b"<!-- --><?pi?>"):
        with pytest.raises(SignatureError, match="processing instruction"):
            verify(etree.fromstring(octets), keys)


@dataclass
class HostileKey:
    """A registry that hands out a key of the wrong type under a good name."""

    real: object

    def lookup(self, key_id: str):
        key = self.real.lookup(key_id)
        return replace(key, public=algorithms.generate("Ed25519").public_key())


def test_a_key_of_another_type_than_its_certificate_says_verifies_nothing(keys, signed: bytes) -> None:
    assert refusal(signed, HostileKey(keys)) == "signature-invalid"


def test_the_documentation_lists_every_rule_in_its_order(root: Path) -> None:
    lines = (root / "docs" / "security.md").read_text().splitlines()
    first = next(n for n, line in enumerate(lines) if line.startswith(f"| `{next(iter(RULES))}` |"))
    rows = takewhile(lambda line: line.startswith("|"), lines[first:])
    assert [re.match(r"\| `([a-z-]+)` \|", row)[1] for row in rows] == list(RULES)  # type: ignore[index]

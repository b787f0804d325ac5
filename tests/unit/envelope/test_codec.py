"""Writing and reading envelopes: canonical octets, bodies alone, what a payload cannot smuggle in."""

from __future__ import annotations

import pytest
from lxml import etree

from orchestrator.envelope import codec, schemas
from orchestrator.envelope.bodies import Message, Reply, TaskCompletion
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.opaque import ClaimCheckBody, CompressedBody, EncryptedBody
from orchestrator.errors import InvalidEnvelope

COMPLETION = codec.decode(schemas.read("templates/task-completion.xml"))
ENCRYPTED = (
    '<x:EncryptedData xmlns:x="http://www.w3.org/2001/04/xmlenc#">'
    '<x:CipherData><x:CipherValue>QUI=</x:CipherValue></x:CipherData><d xmlns="">plain</d></x:EncryptedData>'
)


def _with_body(body: object) -> AgentMessage:
    return AgentMessage.model_validate({"header": COMPLETION.header, "body": body})


def _canonical(octets: bytes) -> bytes:
    return etree.tostring(etree.fromstring(octets), method="c14n", exclusive=True, with_comments=False)


@pytest.mark.parametrize(
    "body",
    [
        Message(content="a & b < c > d \" ' \u0085\u2028\t\n é"),
        Message(content="\r"),
        Message(message_type="a & b < c", content=""),
        TaskCompletion.model_validate(
            {
                "task_id": "t",
                "status": "failed",
                "summary": "",
                "deliverables": [{"files": [{"text": "", "path": "a\t\n\r<>&\"'b"}]}],
            }
        ),
        EncryptedBody(type="query", xml=ENCRYPTED),
        CompressedBody(type="query", size=1, sha256="a" * 64, content="QUI="),
        ClaimCheckBody.model_validate(
            {
                "type": "reply",
                "size": 9,
                "sha256": "A" * 64,
                "chunks": 1,
                "algorithm": "zstd",
                "stored_size": 5,
                "expires": "2026-01-31T09:30:00Z",
            }
        ),
    ],
    ids=lambda body: type(body).__name__,
)
def test_what_is_written_is_canonical_and_is_read_back(body: object) -> None:
    """A canonicalizer has nothing left to do, and the reader gives the same message."""
    message = _with_body(body)
    octets = codec.encode(message)
    assert octets == _canonical(octets)
    assert codec.decode(octets) == message


def test_text_that_xml_cannot_hold_travels_as_base64() -> None:
    """It is marked as such, and nothing of it is lost."""
    octets = codec.encode(_with_body(Message(content="\0\x1b[0m")))
    assert b'<content encoding="base64">ABtbMG0=</content>' in octets


def test_a_signature_can_be_left_out() -> None:
    """The unsigned octets are those of the message without it."""
    unsigned = COMPLETION.model_copy(update={"signature": None})
    assert codec.encode_unsigned(COMPLETION) == codec.encode(unsigned)


def test_a_refused_envelope_comes_with_its_findings() -> None:
    """The sentence is that of the first, with its line."""
    with pytest.raises(InvalidEnvelope, match=r"^line 16: the attribute index of <message-ref>") as refused:
        codec.decode(schemas.read("examples/invalid/chain-with-a-gap.xml"))
    assert [finding.rule for finding in refused.value.args[1]] == ["chain-index"]


def test_a_body_alone_is_read_back() -> None:
    """What is compressed or stored is a body element of its own."""
    octets = codec.encode_body(COMPLETION.body)
    assert octets == _canonical(octets)
    assert octets.startswith(
        b'<body xmlns="http://agent-orchestra.local/protocol/1.0" type="task-completion">'
    )
    assert codec.decode_body(octets) == COMPLETION.body


@pytest.mark.parametrize(
    ("octets", "words"),
    [
        (b"", "empty"),
        (b"<body/>", "one body element"),
        (codec.encode(COMPLETION), "one body element"),
        (codec.encode_body(COMPLETION.body).replace(b"<status>", b"<state>"), "well-formed"),
        (codec.encode_body(COMPLETION.body).replace(b"task-42", b""), "blank"),
        (codec.encode_body(COMPLETION.body).replace(b"task-42", b"\xc2\xa0"), "blank"),
        (
            codec.encode_body(Reply(in_reply_to="b6f1a1de-6a0c-4d4e-9d5b-0f3f6a1c2e01", answer=""))
            + b"<signature/>",
            "well-formed",
        ),
        (codec.encode_body(COMPLETION.body).replace(b'"task-completion"', b'"query"'), "make them agree"),
    ],
)
def test_a_body_that_is_none_is_refused(octets: bytes, words: str) -> None:
    """A payload holds one body and nothing that could be taken for another part of the message."""
    with pytest.raises(InvalidEnvelope, match=words):
        codec.decode_body(octets)

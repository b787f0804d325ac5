"""Whatever the model can say, XML says without loss."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from lxml import etree

from orchestrator.envelope import codec
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.opaque import EncryptedBody
from orchestrator.envelope.validate import check
from orchestrator.envelope.xsd import schema
from tests.properties.envelopes import bodies, messages

QUICK = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@QUICK
@given(messages)
def test_any_model_is_valid_xml_and_comes_back_as_itself(message: AgentMessage) -> None:
    """It passes layers 1 and 2, and the schema alone, and decodes to an equal model."""
    octets = codec.encode(message)
    report = check(octets)
    assert [f for f in report.findings if f.severity == "error"] == []
    assert report.message == message
    assert schema().validate(etree.fromstring(octets))


@QUICK
@given(messages)
def test_what_is_written_is_canonical(message: AgentMessage) -> None:
    """So that what is signed is what is sent."""
    octets = codec.encode(message)
    assert octets == etree.tostring(
        etree.fromstring(octets), method="c14n", exclusive=True, with_comments=False
    )


@QUICK
@given(messages)
def test_layout_and_encoding_do_not_change_the_message(message: AgentMessage) -> None:
    """Indented, in UTF-16, with a declaration, it is the same message."""
    root = etree.fromstring(codec.encode(message))
    assert codec.decode(etree.tostring(root, encoding="UTF-16", xml_declaration=True)) == message
    if not isinstance(message.body, EncryptedBody):  # what is inside one is not ours to read
        etree.indent(root)
    assert codec.decode(etree.tostring(root, encoding="ascii", xml_declaration=True)) == message


@QUICK
@given(bodies)
def test_any_body_alone_comes_back_as_itself(body: Any) -> None:
    """Compressed, stored or encrypted, it is the body that was sent."""
    assert codec.decode_body(codec.encode_body(body)) == body


@QUICK
@given(messages)
def test_any_model_survives_json(message: AgentMessage) -> None:
    """The audit trail keeps it as JSON."""
    assert AgentMessage.model_validate_json(message.model_dump_json()) == message

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
    """From XML in any layout and encoding, and from JSON, as which the audit trail keeps it.

    It passes layers 1 and 2, and the schema alone. What is written is canonical, so that what is signed is what is sent.
    """
    octets = codec.encode(message)
    report = check(octets)
    assert [f for f in report.findings if f.severity == "error"] == []
    assert report.message == message
    root = etree.fromstring(octets)
    assert schema().validate(root)
    assert octets == etree.tostring(root, method="c14n", exclusive=True, with_comments=False)
    assert codec.decode(etree.tostring(root, encoding="UTF-16", xml_declaration=True)) == message
    if not isinstance(message.body, EncryptedBody):  # what is inside one is not ours to read
        etree.indent(root)
    assert codec.decode(etree.tostring(root, encoding="ascii", xml_declaration=True)) == message
    assert AgentMessage.model_validate_json(message.model_dump_json()) == message


@QUICK
@given(bodies)
def test_any_body_alone_comes_back_as_itself(body: Any) -> None:
    """Compressed, stored or encrypted, it is the body that was sent."""
    assert codec.decode_body(codec.encode_body(body)) == body

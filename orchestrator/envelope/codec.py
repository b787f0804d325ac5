"""Envelopes as bytes and back, without loss.

What is written is in exclusive canonical form (C14N 1.0 without comments) as it stands, so that
signing needs neither a parser nor a canonicalizer.
"""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from typing import Final

from lxml import etree

from orchestrator.envelope.document import read_body, write_body, write_head, write_signature
from orchestrator.envelope.findings import Finding
from orchestrator.envelope.model import AgentMessage, Body
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.envelope.opaque import EncryptedBody
from orchestrator.envelope.parse import DEFAULT_LIMITS, ParseLimits, Unparsable, check_depth, parse
from orchestrator.envelope.reading import Reading
from orchestrator.envelope.report import schema_findings
from orchestrator.envelope.validate import check
from orchestrator.envelope.xsd import has_more_elements
from orchestrator.errors import InvalidEnvelope

_END: Final = "</agent-message>"
_BODY: Final = f"{{{NAMESPACE}}}body"


def encode(message: AgentMessage) -> bytes:
    """Return the envelope in canonical form, with its signature if it has one."""
    signature = write_signature(message.signature) if message.signature is not None else ""
    return f"{write_head(message)}{signature}{_END}".encode()


def encode_unsigned(message: AgentMessage) -> bytes:
    """Return the envelope in canonical form, without its signature."""
    return f"{write_head(message)}{_END}".encode()


def decode(octets: bytes, *, limits: ParseLimits = DEFAULT_LIMITS) -> AgentMessage:
    """Return the envelope in ``octets``.

    Raises:
        InvalidEnvelope: with the first finding's sentence and all findings of layers 1 and 2.
    """
    report = check(octets, limits=limits, advice=False)
    if report.message is None:
        raise _invalid(report.findings)
    return report.message


def encode_body(body: Body) -> bytes:
    """Return the body alone, as one ``<body>`` element in canonical form: what is compressed or stored."""
    return write_body(body, f'<body xmlns="{NAMESPACE}"').encode()


def decode_body(octets: bytes, *, limits: ParseLimits = DEFAULT_LIMITS) -> Body:
    """Return the body in ``octets``, one ``<body>`` element as :func:`encode_body` writes it.

    Raises:
        InvalidEnvelope: it is not one, or breaks a rule of layers 1 and 2.
    """
    try:
        element, octets = parse(octets, limits)
        if element.tag != _BODY:
            raise InvalidEnvelope(f"a payload must be one body element, not {element.tag}", ())
        carrier = deepcopy(_carrier())
        carrier.append(element)
        whole = etree.tostring(carrier) if has_more_elements(carrier, octets, limits.detail) else octets
        violations = schema_findings(carrier, whole, limits)
        if violations:
            raise _invalid(violations)
        reading = Reading(encoded=b"encoding" in octets, limit=limits.findings)
        body: Body | None = read_body(element, reading)
        if isinstance(body, EncryptedBody):
            check_depth(element, limits.depth)
    except Unparsable as refused:
        raise _invalid((refused.finding,)) from None
    if body is None or reading.findings:
        raise _invalid(tuple(reading.findings))
    return body


@cache
def _carrier() -> etree._Element:
    """Return a message without a body, to hold one up to the schema."""
    party = "<agent-name>any</agent-name><agent-role>orchestrator</agent-role>"
    return etree.fromstring(
        f'<agent-message xmlns="{NAMESPACE}" version="1.0"><header>'
        "<message-id>00000000-0000-4000-8000-000000000000</message-id>"
        f"<timestamp>1970-01-01T00:00:00Z</timestamp><sender>{party}</sender>"
        f"<recipient>{party}</recipient></header></agent-message>"
    )


def _invalid(findings: tuple[Finding, ...]) -> InvalidEnvelope:
    first = findings[0]
    return InvalidEnvelope(first.sentence, findings)

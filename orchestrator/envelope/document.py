"""Reads and writes whole envelopes: header, body in any of its forms, signature."""

from __future__ import annotations

from typing import Any, Final

from lxml import etree

from orchestrator.envelope import encryption, xsd
from orchestrator.envelope.message_types import MESSAGE_TYPES, ClearBody
from orchestrator.envelope.model import AgentMessage, Body, Header, Signature
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.envelope.opaque import ClaimCheckBody, CompressedBody, EncryptedBody
from orchestrator.envelope.reading import Reading, build, defaults_of, fields_reader, part_reader
from orchestrator.envelope.writing import fields_writer, part_writer

#: The model of each body type.
BODIES: Final[dict[str, type[ClearBody]]] = {name: row.body for name, row in MESSAGE_TYPES.items()}
_Q: Final = f"{{{NAMESPACE}}}"
_XENC: Final = f"{{{encryption.XENC}}}"

_read_header: Final = part_reader(Header)
_read_signature: Final = part_reader(Signature)
_read_body: Final = {
    name: (model, fields_reader(model), defaults_of(model), set(model.model_fields))
    for name, model in BODIES.items()
}
_read_opaque: Final = {
    f"{_Q}compressed-payload": part_reader(CompressedBody),
    f"{_Q}claim-check": part_reader(ClaimCheckBody),
}
_MESSAGE_NAMES: Final = set(AgentMessage.model_fields)
_write_header: Final = part_writer(Header, "header")
_write_signature: Final = part_writer(Signature, "signature")
_write_claim_check: Final = part_writer(ClaimCheckBody, "claim-check")
_write_body: Final = {model: fields_writer(model) for model in BODIES.values()}


def read_header(root: etree._Element) -> Header | None:
    """Return the header of an envelope whose root the schema has accepted, without its body; None if a rule refuses
    it.
    """
    reading = Reading(encoded=False)
    header: Header = _read_header(root[0], reading)
    if not reading.findings:
        xsd.check_header(header, root[0], reading)
    return None if reading.findings else header


def read_message(root: etree._Element, reading: Reading) -> AgentMessage:
    """Return the envelope whose root the schema has accepted; it may be used only if the reading found nothing."""
    header = _read_header(root[0], reading)
    if not reading.findings:  # what is broken in itself cannot be compared
        xsd.check_header(header, root[0], reading)
    body = read_body(root[1], reading)
    signature = _read_signature(root[2], reading) if len(root) > 2 else None
    values = {"version": "1.0", "header": header, "body": body, "signature": signature}
    message: AgentMessage = build(AgentMessage, values, _MESSAGE_NAMES)
    return message


def read_body(body: etree._Element, reading: Reading) -> Any:
    """Return the body in the form that it has; None if its content does not fit its type."""
    body_type = body.get("type", "")
    first = body[0]
    tag = str(first.tag)
    if tag in _read_opaque:
        return _read_opaque[tag](first, reading).model_copy(update={"type": body_type})
    if tag.startswith(_XENC):
        try:
            if flaw := encryption.flaw(first):
                raise ValueError(flaw)
            values = {"form": "encrypted", "type": body_type, "xml": encryption.canonical(first)}
        except ValueError as refused:
            reading.fail("encrypted-data", str(refused), first, value=tag)
            return None
        return build(EncryptedBody, values, set(values))
    if not xsd.body_fits(body, body_type, reading):
        return None
    model, read_fields, defaults, names = _read_body[body_type]
    values = defaults.copy()
    read_fields(body, values, reading)
    return build(model, values, names)


def write_body(body: Body, start: str) -> str:
    """Return the body element; ``start`` is its start tag up to its type attribute."""
    out = [f'{start} type="{body.type}">']
    if isinstance(body, EncryptedBody):
        out.append(body.xml)
    elif isinstance(body, CompressedBody):
        out.append(
            f'<compressed-payload algorithm="{body.algorithm}" encoding="base64" sha256="{body.sha256}"'
            f' size="{body.size}">{body.content}</compressed-payload>'
        )
    elif isinstance(body, ClaimCheckBody):
        _write_claim_check(body, out.append)
    else:
        _write_body[type(body)](body, out.append)
    out.append("</body>")
    return "".join(out)


def write_head(message: AgentMessage) -> str:
    """Return the document up to the end of the body."""
    out = [f'<agent-message xmlns="{NAMESPACE}" version="1.0">']
    _write_header(message.header, out.append)
    out.append(write_body(message.body, "<body"))
    return "".join(out)


def write_signature(signature: Signature) -> str:
    """Return the signature element."""
    out: list[str] = []
    _write_signature(signature, out.append)
    return "".join(out)

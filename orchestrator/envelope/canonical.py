"""Reads header and signature straight from octets that are spelt as our own encoder spells them.

Only for a document that the schema has accepted. Both patterns hold nothing but literal tags and text in which no
markup, reference or white space can stand, the first from the first octet on, the second up to the last one. So what
they match is markup and not text, and means what a parser has read there. Whatever is spelt otherwise, or leaves a
rule in doubt, is None here and is read from the tree.
"""

from __future__ import annotations

import re
from typing import Any, Final

from orchestrator.envelope.model import Header, Party, RetryPolicy, Signature
from orchestrator.envelope.model_values import NAMESPACE, Timestamp, is_base64
from orchestrator.envelope.reading import build

_WORD: Final = rb"[!-%'-;=?-~]+"
_UUID: Final = rb"[0-9a-fA-F-]{36}"
_MOMENT: Final = rb"[0-9TZ:.+-]+"
_PARTY: Final = (
    rb"<agent-name>" + _WORD + rb"</agent-name><agent-role>[a-z]+</agent-role>(?:<tier>[a-z]+</tier>)?"
)
_HEADER: Final = re.compile(
    rb'<agent-message xmlns="' + re.escape(NAMESPACE.encode()) + rb'" version="1\.0"><header>'
    rb"<message-id>(" + _UUID + rb")</message-id><timestamp>(" + _MOMENT + rb")</timestamp>"
    rb"<sender>(" + _PARTY + rb")</sender><recipient>(" + _PARTY + rb")</recipient>"
    rb"(?:<correlation-id>(" + _UUID + rb")</correlation-id>)?"
    rb'(?:<conversation-chain>((?:<message-ref index="[0-9]+">'
    + _UUID
    + rb"</message-ref>)+)</conversation-chain>)?"
    rb"(?:<priority>([a-z]+)</priority>)?(?:<expiration>(" + _MOMENT + rb")</expiration>)?"
    rb"(?:<retry-policy><max-attempts>([0-9]+)</max-attempts><backoff-strategy>([a-z]+)</backoff-strategy>"
    rb"<timeout-seconds>([0-9]+)</timeout-seconds></retry-policy>)?</header><"
)
_PARTS: Final = re.compile(
    rb"<agent-name>(.+)</agent-name><agent-role>(.+)</agent-role>(?:<tier>(.+)</tier>)?"
)
_REF: Final = re.compile(rb'<message-ref index="([0-9]+)">(.{36})</message-ref>')
_START: Final = b"<signature><algorithm>"
_SIGNATURE: Final = re.compile(
    rb"<signature><algorithm>([A-Za-z0-9-]+)</algorithm><signer>(" + _WORD + rb")</signer>"
    rb"<timestamp>(" + _MOMENT + rb")</timestamp><public-key-id>(" + _WORD + rb")</public-key-id>"
    rb"<signature-value>([A-Za-z0-9+/=]+)</signature-value></signature></agent-message>"
)
_HEADER_NAMES: Final = set(Header.model_fields)
_PARTY_NAMES: Final = set(Party.model_fields)
_RETRY_NAMES: Final = set(RetryPolicy.model_fields)
_SIGNATURE_NAMES: Final = set(Signature.model_fields)

#: Parties that were read lately: there are few, and each is in most messages of its conversation.
_parties: Final[dict[bytes, Party]] = {}
_REMEMBERED: Final = 1000


def read_header(octets: bytes) -> Header | None:
    """The header of a valid envelope, if it is spelt as the encoder spells it."""
    found = _HEADER.match(octets)
    if found is None:
        return None
    message_id, sent, sender, recipient, correlation, refs, priority, expires, attempts, backoff, timeout = (
        found.groups()
    )
    chain = () if refs is None else _chain(refs)
    if chain is None:
        return None
    retry = None
    if attempts is not None:
        values: dict[str, Any] = {
            "max_attempts": int(attempts),
            "backoff_strategy": backoff.decode(),
            "timeout_seconds": int(timeout),
        }
        retry = build(RetryPolicy, values, _RETRY_NAMES)
    try:
        values = {
            "message_id": message_id.decode(),
            "timestamp": Timestamp.of_valid_form(sent.decode()),
            "sender": _parties.get(sender) or _party(sender),
            "recipient": _parties.get(recipient) or _party(recipient),
            "correlation_id": None if correlation is None else correlation.decode(),
            "conversation_chain": chain,
            "priority": None if priority is None else priority.decode(),
            "expiration": None if expires is None else Timestamp.of_valid_form(expires.decode()),
            "retry_policy": retry,
        }
    except ValueError:  # a day that the calendar does not have
        return None
    header: Header = build(Header, values, _HEADER_NAMES)
    return header


def read_signature(octets: bytes) -> Signature | None:
    """The signature of a valid envelope, if it has one that is spelt as the encoder spells it."""
    start = octets.rfind(_START)
    found = _SIGNATURE.fullmatch(octets, start) if start >= 0 else None
    if found is None:
        return None
    algorithm, signer, signed, key_id, value = found.groups()
    try:
        values: dict[str, Any] = {
            "algorithm": algorithm.decode(),
            "signer": signer.decode(),
            "timestamp": Timestamp.of_valid_form(signed.decode()),
            "public_key_id": key_id.decode(),
            "signature_value": value.decode(),
        }
    except ValueError:
        return None
    if not is_base64(values["signature_value"]):
        return None
    signature: Signature = build(Signature, values, _SIGNATURE_NAMES)
    return signature


def _party(octets: bytes) -> Party:
    found = _PARTS.fullmatch(octets)
    assert found is not None
    name, role, tier = found.groups()
    values = {
        "agent_name": name.decode(),
        "agent_role": role.decode(),
        "tier": None if tier is None else tier.decode(),
    }
    party: Party = build(Party, values, _PARTY_NAMES)
    if len(_parties) >= _REMEMBERED:
        _parties.clear()
    _parties[octets] = party
    return party


def _chain(octets: bytes) -> tuple[str, ...] | None:
    """The references in their order; None: they are not numbered as they stand."""
    refs = []
    for expected, (index, ref) in enumerate(_REF.findall(octets)):
        if index != b"%d" % expected:
            return None
        refs.append(ref.decode())
    return tuple(refs)

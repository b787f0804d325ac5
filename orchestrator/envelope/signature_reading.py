"""The signature element of a parsed message: where it must stand, and what can be read from it."""

from __future__ import annotations

from base64 import b64decode, b64encode
from typing import Final

from lxml import etree

from orchestrator.envelope.model_values import NAMESPACE, Timestamp, collapse, unspaced
from orchestrator.errors import SignatureError

#: Rule → what it demands: what :func:`verify` may raise, in the order in which it looks.
RULES: Final = {
    "signature-root": "What is signed is a whole agent-message document with nothing but comments beside it.",
    "signature-missing": "A message is signed, unless the settings make signatures optional.",
    "signature-position": "A message has one signature, the last child of its root.",
    "signature-malformed": "A signature has its five elements in order, with a time that has a zone and base64.",
    "key-unknown": "The signer's public key is registered.",
    "key-not-certified": "The operator has certified the key.",
    "signature-sender": "A signed message names one sender.",
    "signature-algorithm": "The algorithm is the one that the key is for.",
    "key-owner": "The key belongs to the signer.",
    "signer-sender": "The signer is the sender.",
    "key-revoked": "The key was not revoked.",
    "key-too-young": "The message was signed after its key was made.",
    "key-retired": "The message was signed before its key was rotated out.",
    "signature-invalid": "The signature fits the canonical form of the message.",
}

_ROOT: Final = f"{{{NAMESPACE}}}agent-message"
SIGNATURE: Final = f"{{{NAMESPACE}}}signature"
_VALUE: Final = f"{{{NAMESPACE}}}signature-value"
CHILDREN: Final = [
    f"{{{NAMESPACE}}}{name}"
    for name in ("algorithm", "signer", "timestamp", "public-key-id", "signature-value")
]
_HEADER: Final = f"{{{NAMESPACE}}}header"
_SENDER: Final = f"{{{NAMESPACE}}}sender"
_NAME: Final = f"{{{NAMESPACE}}}agent-name"


def require_root(root: etree._Element) -> None:
    if root.tag != _ROOT or root.getparent() is not None:
        raise SignatureError(
            "signature-root", f"a signature covers a whole <agent-message> document, and this is {root.tag!r}"
        )
    if any(next(root.itersiblings(etree.PI, preceding=before), None) is not None for before in (True, False)):
        raise SignatureError(
            "signature-root", "a processing instruction stands beside the signed <agent-message>; take it out"
        )


def fields_of(root: etree._Element) -> tuple[str, str, str, str, str]:
    """Return the five texts of the one signature, with white space collapsed."""
    found = list(root.iter(SIGNATURE))
    if not found:
        raise SignatureError(
            "signature-missing", "the message carries no signature; sign it with `orchestra message sign`"
        )
    block = found[0]
    if len(found) > 1 or block.getparent() is not root or root[-1] is not block:
        raise SignatureError(
            "signature-position",
            "a message has exactly one <signature>, and it is the last child of <agent-message>",
        )
    texts = [child.text or "" for child in block if not len(child)]
    if len(texts) != len(CHILDREN) or [child.tag for child in block] != CHILDREN:
        raise SignatureError(
            "signature-malformed",
            "<signature> holds algorithm, signer, timestamp, public-key-id and signature-value, "
            "in this order and with plain text in each",
        )
    algorithm, signer, timestamp, key_id, value = texts
    return collapse(algorithm), collapse(signer), collapse(timestamp), collapse(key_id), value


def name_of_sender(root: etree._Element) -> str:
    names = [
        name
        for header in root.iterchildren(_HEADER)
        for sender in header.iterchildren(_SENDER)
        for name in sender.iterchildren(_NAME)
    ]
    if len(names) != 1 or len(names[0]):
        raise SignatureError(
            "signature-sender", "the header names no single sender; a signed message has exactly one"
        )
    return collapse(names[0].text or "")


def instant(text: str) -> int:
    try:
        return Timestamp(text).instant_ms
    except ValueError:
        raise SignatureError(
            "signature-malformed", f"the signature's timestamp {text!r} is not an ISO 8601 time with a zone"
        ) from None


def raw_signature(value: str) -> bytes:
    """Decode; one signature has one spelling, but for blanks, so that nobody can respell it."""
    octets = unspaced(value).encode()
    try:
        raw = b64decode(octets, validate=True)
    except ValueError:
        raw = b""
    if not raw or b64encode(raw) != octets:
        raise SignatureError("signature-malformed", "<signature-value> is not the base64 of a signature")
    return raw

"""Signatures: what is signed, how it is put into an envelope, and what makes one count.

Signed are the bytes of the exclusive canonical form (C14N 1.0, without comments) of the whole
``<agent-message>`` element with its ``<signature-value>`` emptied. Nothing is referred to by an
id, so there is nothing to wrap: the message that is checked is the message that is read.

Our encoder writes bytes that are canonical already, so signing a message of ours parses nothing.
XML of other programs goes through :func:`sign`, which canonicalizes it first.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Protocol

from lxml import etree

from orchestrator.envelope.model_values import NAMESPACE, Timestamp, collapse, unspaced
from orchestrator.envelope.writing import escape_text
from orchestrator.errors import InvalidEnvelope, SignatureError
from orchestrator.machine import isoformat

if TYPE_CHECKING:
    from orchestrator.envelope.model import AgentMessage
    from orchestrator.envelope.parse import ParseLimits


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


RSA_SHA256: Final = "RSA-SHA256"
ED25519: Final = "Ed25519"
#: What a signature may be made with; the key's own type decides, never the message.
ALGORITHMS: Final = frozenset({RSA_SHA256, ED25519})

#: Milliseconds that the clock of a signer may be ahead of the clock that wrote a key's record.
CLOCK_SKEW_MS: Final = 300_000

#: How a signature begins that is written without white space and prefixes, as by the encoder.
_OPENING: Final = b"<signature><algorithm>"
_TAIL: Final = b"</signature-value></signature></agent-message>"


@dataclass(frozen=True, slots=True)
class Signer:
    """A private key that signs for one agent. Safe to use from several threads."""

    agent: str
    key_id: str
    algorithm: str
    #: When it was made, in milliseconds since the epoch. It says of nothing that it was signed before: a clock may go back.
    created_ms: int
    #: When it was rotated out, in milliseconds since the epoch: later signatures do not count. None: it is current.
    retired_ms: int | None
    #: Makes the raw signature of octets.
    sign: Callable[[bytes], bytes] = field(repr=False)


class VerificationKey(Protocol):
    """A public key and what is known of it. Times are milliseconds since the epoch."""

    @property
    def key_id(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def retired_ms(self) -> int | None: ...
    @property
    def revoked_ms(self) -> int | None: ...

    def verifies(self, signature: bytes, octets: bytes) -> bool:
        """Return True if ``signature`` is this key's signature of ``octets``."""
        ...


class KeyLookup(Protocol):
    """Source of public keys."""

    def lookup(self, key_id: str) -> VerificationKey | None:
        """Return the trusted signing key of that id, or None. May raise SignatureError for one not to be trusted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedSignature:
    """Claims of a good signature."""

    signer: str
    key_id: str
    algorithm: str
    #: When the signer says it signed, in milliseconds since the epoch.
    signed_ms: int
    #: Of what was signed but the signature itself: the same for every copy, however it is spelt or signed again.
    digest: str


def sign_message(message: AgentMessage, signer: Signer, *, now_ms: int) -> bytes:
    """Encode ``message`` and sign it; a signature that it carries is replaced.

    Returns:
        The bytes to send: canonical UTF-8 without an XML declaration.
    """
    head, tail = octets_to_sign(message, signer, now_ms=now_ms)
    return with_value(head, tail, signer)


def with_value(head: bytes, tail: bytes, signer: Signer) -> bytes:
    """Return the bytes with the signature value between them."""
    return head + b64encode(signer.sign(head + tail)) + tail


def octets_to_sign(message: AgentMessage, signer: Signer, *, now_ms: int) -> tuple[bytes, bytes]:
    """Return the bytes before and after the signature value.

    Both together are what is signed. With the base64 of their signature in between they are the signed envelope.
    """
    from orchestrator.envelope.document import write_head

    head = (
        f"{write_head(message)}<signature><algorithm>{signer.algorithm}</algorithm>"
        f"<signer>{escape_text(signer.agent)}</signer><timestamp>{isoformat(max(now_ms, signer.created_ms))}</timestamp>"
        f"<public-key-id>{escape_text(signer.key_id)}</public-key-id><signature-value>"
    )
    return head.encode(), _TAIL


def sign(xml: bytes, signer: Signer, *, now_ms: int, limits: ParseLimits | None = None) -> bytes:
    """Sign any XML that holds one ``<agent-message>``; a signature that it carries is replaced.

    Comments, processing instructions beside the root and the XML declaration do not survive:
    what is returned is the canonical form itself.

    Raises:
        InvalidEnvelope: the parser refuses the octets.
        SignatureError: the root element is no agent-message.
    """
    root = _parsed(xml, limits)
    for old in root.findall(SIGNATURE):
        root.remove(old)
    if len(root):
        root[-1].tail = None
    block = etree.SubElement(root, SIGNATURE)
    texts = (signer.algorithm, signer.agent, isoformat(max(now_ms, signer.created_ms)), signer.key_id, "")
    for tag, text in zip(CHILDREN, texts, strict=True):
        etree.SubElement(block, tag).text = text
    block[-1].text = b64encode(signer.sign(canonical(root))).decode()
    return canonical(root)


def sender_of(xml: bytes, limits: ParseLimits | None = None) -> str:
    """Return the name of the sender of a message, whatever else may be wrong with it.

    Raises:
        InvalidEnvelope: the parser refuses the octets.
        SignatureError: it is no agent-message, or names no single sender.
    """
    return name_of_sender(_parsed(xml, limits))


def canonical(root: etree._Element) -> bytes:
    """Return the exclusive canonical form of an element, without comments.

    Raises:
        SignatureError: it has none.
    """
    try:
        return bytes(etree.tostring(root, method="c14n", exclusive=True, with_comments=False))
    except etree.C14NError as error:
        why = "the message has no canonical form that could be signed: it declares a namespace that is no absolute URI"
        raise SignatureError("signature-invalid", f"{why}; leave it out") from error


def verify(
    root: etree._Element | Callable[[], etree._Element],
    keys: KeyLookup,
    *,
    canonical_octets: bytes = b"",
    message: AgentMessage | None = None,
) -> VerifiedSignature:
    """Check the signature of a parsed message.

    Args:
        root: the root element of the document as it was parsed, or what parses it should it be needed.
        keys: where the public key comes from.
        message: what validation read from ``root``, if it did: the schema has checked the one signature, its
            place and its parts then, and they are not read once more.
        canonical_octets: the document, if it is known to be in canonical form (``canonical.read`` has read it): neither
            parsing nor canonicalizing is needed then. Other bytes are never what was signed, whatever their
            signature: who checks later has only the canonical form.

    Raises:
        SignatureError: with the rule that is broken, one of those in ``docs/security.md``.
    """
    algorithm: str
    if message is not None and message.signature is not None:
        given = message.signature
        algorithm, signer, key_id, value = (
            given.algorithm,
            given.signer,
            given.public_key_id,
            given.signature_value,
        )
        signed_ms, sender = given.timestamp.instant_ms, message.header.sender.agent_name
    else:
        root = root() if callable(root) else root
        require_root(root)
        algorithm, signer, timestamp, key_id, value = fields_of(root)
        signed_ms, sender = instant(timestamp), name_of_sender(root)
    signature = raw_signature(value)
    key = keys.lookup(key_id)
    if key is None:
        raise SignatureError(
            "key-unknown",
            f"no public key {key_id!r} is registered; the signer's host must register it "
            "(`orchestra keys generate`), or this data folder trusts another operator",
        )
    _check_key(key, algorithm=algorithm, signer=signer, sender=sender, signed_ms=signed_ms)
    if canonical_octets:
        signed = canonical_octets.removesuffix(value.encode() + _TAIL) + _TAIL
    else:
        signed = _signed_octets(root() if callable(root) else root)
    if not key.verifies(signature, signed):
        raise SignatureError(
            "signature-invalid",
            f"the signature by {signer!r} does not fit the canonical form of the message: it was changed after it "
            f"was signed, or signed in another form, or with another key than {key_id}",
        )
    return VerifiedSignature(
        signer=signer, key_id=key_id, algorithm=algorithm, signed_ms=signed_ms, digest=digest_of(signed)
    )


def digest_of(signed: bytes) -> str:
    """Return a digest of a signed message in canonical form, without its signature element if that is written so."""
    start = signed.rfind(_OPENING)
    return sha256(signed if start < 0 else signed[:start]).hexdigest()[:32]


def _parsed(xml: bytes, limits: ParseLimits | None) -> etree._Element:
    from orchestrator.envelope.parse import DEFAULT_LIMITS, Unparsable, parse

    try:
        root = parse(xml, limits or DEFAULT_LIMITS).root
    except Unparsable as refused:
        raise InvalidEnvelope(refused.finding.message, (refused.finding,)) from None
    require_root(root)
    return root


def _check_key(key: VerificationKey, *, algorithm: str, signer: str, sender: str, signed_ms: int) -> None:
    def refuse(rule: str, sentence: str) -> None:
        raise SignatureError(rule, sentence)

    if algorithm != key.algorithm or algorithm not in ALGORITHMS:
        refuse(
            "signature-algorithm",
            f"the message says {algorithm!r}, but key {key.key_id} is for {key.algorithm}; the key decides",
        )
    if key.agent != signer:
        refuse("key-owner", f"key {key.key_id} belongs to {key.agent!r}, not to the signer {signer!r}")
    if signer != sender:
        refuse("signer-sender", f"the message comes from {sender!r} but is signed by {signer!r}")
    if key.revoked_ms is not None:
        refuse("key-revoked", f"key {key.key_id} of {signer!r} was revoked; nothing it signed is accepted")
    if signed_ms < key.created_ms - CLOCK_SKEW_MS:
        refuse("key-too-young", f"the message says it was signed before key {key.key_id} was made")
    if key.retired_ms is not None and signed_ms > key.retired_ms:
        refuse("key-retired", f"key {key.key_id} of {signer!r} was rotated out before the message was signed")


def _signed_octets(root: etree._Element) -> bytes:
    """Return the canonical form with the value emptied in place: copying the tree would cost more than signing it."""
    value = root[-1][-1]
    text = value.text
    value.text = None
    try:
        return canonical(root)
    finally:
        value.text = text

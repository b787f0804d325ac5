"""Encryption of a body's content for one recipient, as XML Encryption 1.1.

The content is encrypted with a fresh AES-256-GCM key, and that key with the recipient's RSA key
(OAEP). The OAEP label names message, conversation, sender and recipient, so that an encrypted
body that is moved into another message is refused, under any id. OAEP is used with SHA-1, its default in XML Encryption:
it is as strong there as any, and Debian's ``xmlsec1`` knows no other.

What comes in is compared with the one shape that is accepted before anything is decrypted: nothing in
it can name another algorithm, another source of keys, or a place to fetch bytes from.
"""

from __future__ import annotations

import os
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from xml.sax.saxutils import escape

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from lxml import etree

from orchestrator.envelope.model_values import NAMESPACE, is_base64, unspaced
from orchestrator.errors import DecryptionError

#: The namespace of XML Encryption 1.0 and of the elements of 1.1 that it shares.
XENC: Final = "http://www.w3.org/2001/04/xmlenc#"

_DATA: Final = f"{{{XENC}}}EncryptedData"
_VALUES: Final = f"{{{XENC}}}CipherData/{{{XENC}}}CipherValue"

_XENC_PARSER: Final = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True)


def flaw(element: etree._Element) -> str | None:
    """Return why ``element`` is not an EncryptedData with its cipher value inside; None if it is."""
    if element.tag != _DATA:
        return "is not the encrypted content of a body; use one xenc:EncryptedData element"
    values = element.findall(_VALUES)
    if len(values) != 1:
        return "must hold one CipherData with one CipherValue; a reference is not followed"
    if not is_base64(unspaced(values[0].text or "")):
        return "has a CipherValue that is not base64 with padding; encrypt the body again"
    return None


def canonical(element: etree._Element) -> str:
    """``element`` in exclusive canonical form, without comments, as it reads inside a body.

    Raises:
        ValueError: it has none.
    """
    outer = etree.fromstring(f'<body xmlns="{NAMESPACE}"></body>')
    outer.append(deepcopy(element))
    outer[0].tail = None
    try:
        text = etree.tostring(outer, method="c14n", exclusive=True, with_comments=False).decode()
    except etree.C14NError as error:
        why = "has no canonical form, as it declares a namespace that is no absolute URI; leave it out"
        raise ValueError(why) from error
    return text[text.index(">") + 1 : text.rindex("</")]


def canonical_encrypted_data(xml: str) -> str:
    """``xml``, one EncryptedData element, in canonical form.

    Raises:
        ValueError: it is not one.
    """
    if "<!" in xml or "<?" in xml:
        raise ValueError("an EncryptedData holds elements and text only")
    try:
        element = etree.fromstring(xml, _XENC_PARSER)
    except etree.XMLSyntaxError as error:
        raise ValueError(f"not well-formed: {error}") from error
    reason = flaw(element)
    if reason is not None:
        raise ValueError(f"the EncryptedData {reason}")
    return canonical(element)


DSIG: Final = "http://www.w3.org/2000/09/xmldsig#"
AES_256_GCM: Final = "http://www.w3.org/2009/xmlenc11#aes256-gcm"
RSA_OAEP: Final = f"{XENC}rsa-oaep-mgf1p"

_CONTENT: Final = f"{XENC}Content"
_LABEL: Final = f"{{{XENC}}}OAEPparams"
_KEY_NAME: Final = f"{{{DSIG}}}KeyName"
_VALUE: Final = f"{{{XENC}}}CipherValue"

#: In canonical form: what is written is sent as it is. With an empty key and content, any tool for XML Encryption fills it in.
TEMPLATE: Final = (
    f'<xenc:EncryptedData xmlns:xenc="{XENC}" Type="{_CONTENT}">'
    f'<xenc:EncryptionMethod Algorithm="{AES_256_GCM}"></xenc:EncryptionMethod>'
    f'<ds:KeyInfo xmlns:ds="{DSIG}"><xenc:EncryptedKey>'
    f'<xenc:EncryptionMethod Algorithm="{RSA_OAEP}"><xenc:OAEPparams>{{label}}</xenc:OAEPparams></xenc:EncryptionMethod>'
    "<ds:KeyInfo><ds:KeyName>{key_id}</ds:KeyName></ds:KeyInfo>"
    "<xenc:CipherData><xenc:CipherValue>{key}</xenc:CipherValue></xenc:CipherData>"
    "</xenc:EncryptedKey></ds:KeyInfo>"
    "<xenc:CipherData><xenc:CipherValue>{content}</xenc:CipherValue></xenc:CipherData></xenc:EncryptedData>"
)
_PARSER: Final = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=True)
_BODY: Final = re.compile(rb"<body [^<>]*>(.+)</body>", re.DOTALL)
#: Bytes of the initialization vector and of the authentication tag, which stand before and behind the content.
_IV, _TAG = 12, 16
#: Bytes of an AES-256 key.
_KEY = 32

#: The first line of a label.
_LABELLED: Final = "agent-message body 2"

#: Finds the private encryption key of an id; None if it is not here.
FindKey = Callable[[str], RSAPrivateKey | None]


class Recipient(NamedTuple):
    """The key to encrypt to."""

    key_id: str
    public: RSAPublicKey


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundTo:
    """The message that an encrypted body is for; it opens in no other."""

    message_id: str
    #: The correlation-id; of a message without one its message-id.
    conversation: str
    sender: str
    recipient: str

    @property
    def label(self) -> str:
        """The OAEP label in base64. No part can hold a line break, so that no two messages share a label."""
        return b64encode(self._lines()).decode()

    def padding(self) -> padding.OAEP:
        """Return the padding of the key that the content is encrypted with."""
        return padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), self._lines())  # noqa: S303

    def _lines(self) -> bytes:
        parts = (_LABELLED, self.message_id.lower(), self.conversation.lower(), self.sender, self.recipient)
        return "\n".join(parts).encode()


def encrypt(body: bytes, recipient: Recipient, *, bound: BoundTo) -> str:
    """Encrypt the content of a ``<body>`` element in canonical form.

    Args:
        body: the whole element; its start tag is not encrypted and not kept.
        recipient: its key; the id of the key is sent along, so that the recipient knows which one to take.
        bound: the message that is going to carry it; it fits into no other.

    Returns:
        One ``<xenc:EncryptedData>`` in exclusive canonical form.

    Raises:
        ValueError: ``body`` is not one body element with content, in canonical form.
    """
    element = _BODY.fullmatch(body)
    if element is None:
        raise ValueError("not one <body> element with content, in canonical form")
    key, iv = AESGCM.generate_key(8 * _KEY), os.urandom(_IV)
    return TEMPLATE.format(
        label=bound.label,
        key_id=escape(recipient.key_id),
        key=b64encode(recipient.public.encrypt(key, bound.padding())).decode(),
        content=b64encode(iv + AESGCM(key).encrypt(iv, element[1], None)).decode(),
    )


def decrypt(encrypted_data: str, *, find_key: FindKey, bound: BoundTo) -> bytes:
    """Return the content that was encrypted: what stood between the tags of the body.

    Treat it as any bytes from outside: everybody can encrypt to a public key.

    Raises:
        DecryptionError: it was altered or cut, was made for another message or another key, or asks for
            anything but AES-256-GCM with RSA-OAEP.
    """
    element = _parsed(encrypted_data)
    label, key_id = ((next(element.iter(tag)).text or "").strip() for tag in (_LABEL, _KEY_NAME))
    if label != bound.label:
        raise DecryptionError(
            "the encrypted body was made for another message: its OAEP label does not name this message, its "
            "conversation, sender and recipient; encrypt it for this message"
        )
    encrypted_key, content = map(_octets, element.iter(_VALUE))
    private = find_key(key_id)
    if private is None:
        raise DecryptionError(
            f"the body is encrypted to key {key_id!r}, whose private half is not in this data folder; "
            "import it, or let the sender encrypt to a key of this agent"
        )
    try:
        key = private.decrypt(encrypted_key, bound.padding())
        if len(key) != _KEY:
            raise ValueError("a key of another length than the algorithm says")
        return AESGCM(key).decrypt(content[:_IV], content[_IV:], None)
    except (InvalidTag, ValueError):
        # One sentence for every failure, as details of it would help to guess the key.
        raise DecryptionError(
            f"the body cannot be decrypted with key {key_id}: it was altered, cut, or encrypted with another key"
        ) from None


def _parsed(encrypted_data: str) -> etree._Element:
    """Return the tree of an encrypted body, if it is of the shape that :func:`encrypt` writes, in any spelling."""
    try:
        root = etree.fromstring(encrypted_data.encode(), _PARSER)
    except (etree.XMLSyntaxError, ValueError) as problem:
        raise DecryptionError(f"the encrypted body is not well-formed: {problem}") from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise DecryptionError("the encrypted body brings a document type along; nothing may be defined in it")
    if sum(1 for _ in root.iter()) != _ELEMENTS or _shape(root) != _SHAPE:
        raise DecryptionError(
            "the encrypted body is not of the one accepted shape: AES-256-GCM, its key encrypted with RSA-OAEP "
            "labelled with the message it is for, a KeyName, and nothing else (docs/security.md shows it)"
        )
    return root


def _shape(element: Any) -> tuple[Any, ...]:
    """Return the name and the attributes of an element, and the same of what is in it."""
    return (element.tag, dict(element.attrib), *map(_shape, element))


_SHAPE: Final = _shape(etree.fromstring(TEMPLATE))
_ELEMENTS: Final = sum(1 for _ in etree.fromstring(TEMPLATE).iter())


def _octets(value: etree._Element) -> bytes:
    try:
        octets = b64decode(unspaced(value.text or ""), validate=True)
    except ValueError:
        octets = b""
    if len(octets) < _IV + _TAG:
        raise DecryptionError("the encrypted body was cut: a cipher value is not base64 or too short")
    return octets

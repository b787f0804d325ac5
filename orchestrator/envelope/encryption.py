"""Encryption of a body's content for one recipient, as XML Encryption 1.1.

The content is encrypted with a fresh AES-256-GCM key, and that key with the recipient's RSA key
(OAEP). The OAEP label names message, conversation, sender and recipient, so that an encrypted
body that is moved into another message is refused, under any id. OAEP is used with SHA-1, its default in XML Encryption:
it is as strong there as any, and Debian's ``xmlsec1`` knows no other.

What comes in is compared with the one shape that is accepted before any library sees it: nothing in
it can name another algorithm, another source of keys, or a place to fetch octets from.
"""

from __future__ import annotations

import re
import threading
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from lxml import etree

from orchestrator.envelope.model_values import unspaced
from orchestrator.envelope.xenc import XENC
from orchestrator.errors import DecryptionError

DSIG: Final = "http://www.w3.org/2000/09/xmldsig#"
AES_256_GCM: Final = "http://www.w3.org/2009/xmlenc11#aes256-gcm"
RSA_OAEP: Final = f"{XENC}rsa-oaep-mgf1p"

_CONTENT: Final = f"{XENC}Content"
_DATA: Final = f"{{{XENC}}}EncryptedData"
_LABEL: Final = f"{{{XENC}}}OAEPparams"
_KEY_NAME: Final = f"{{{DSIG}}}KeyName"
_VALUE: Final = f"{{{XENC}}}CipherValue"

#: Elements of an EncryptedData in document order, with the attributes that each must and the one it may have.
_SHAPE: Final[tuple[tuple[str, dict[str, str]], ...]] = (
    (_DATA, {"Type": _CONTENT}),
    (f"{{{XENC}}}EncryptionMethod", {"Algorithm": AES_256_GCM}),
    (f"{{{DSIG}}}KeyInfo", {}),
    (f"{{{XENC}}}EncryptedKey", {}),
    (f"{{{XENC}}}EncryptionMethod", {"Algorithm": RSA_OAEP}),
    (_LABEL, {}),
    (f"{{{DSIG}}}KeyInfo", {}),
    (_KEY_NAME, {}),
    (f"{{{XENC}}}CipherData", {}),
    (_VALUE, {}),
    (f"{{{XENC}}}CipherData", {}),
    (_VALUE, {}),
)
_PARENTS: Final = (-1, 0, 0, 2, 3, 4, 3, 6, 3, 8, 0, 10)
_VALUES_AT: Final = (9, 11)

_TEMPLATE: Final = (
    f'<xenc:EncryptedData xmlns:xenc="{XENC}" Type="{_CONTENT}">'
    f'<xenc:EncryptionMethod Algorithm="{AES_256_GCM}"/>'
    f'<ds:KeyInfo xmlns:ds="{DSIG}"><xenc:EncryptedKey><xenc:EncryptionMethod Algorithm="{RSA_OAEP}">'
    "<xenc:OAEPparams>{label}</xenc:OAEPparams></xenc:EncryptionMethod>"
    "<ds:KeyInfo><ds:KeyName>{key_id}</ds:KeyName></ds:KeyInfo><xenc:CipherData><xenc:CipherValue/></xenc:CipherData>"
    "</xenc:EncryptedKey></ds:KeyInfo><xenc:CipherData><xenc:CipherValue/></xenc:CipherData></xenc:EncryptedData>"
)
_BODY: Final = re.compile(rb"<body [^<>]*>(.+)</body>", re.DOTALL)
#: Initialization vector, authentication tag, and no content at all: nothing genuine is shorter.
_LEAST_BYTES: Final = 12 + 16

#: The first line of a label.
_LABELLED: Final = "agent-message body 2"

#: Keys that one thread keeps ready.
_MANAGERS: Final = 64

#: Finds the private encryption key of an id; None if it is not here.
FindKey = Callable[[str], RSAPrivateKey | None]


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
        parts = (_LABELLED, self.message_id.lower(), self.conversation.lower(), self.sender, self.recipient)
        return b64encode("\n".join(parts).encode()).decode()


def template(key_id: str, bound: BoundTo) -> str:
    """What any tool for XML Encryption fills in to make the one shape that is accepted here."""
    return _TEMPLATE.format(label=bound.label, key_id=escape(key_id))


def encrypt(body: bytes, *, key_id: str, public: RSAPublicKey, bound: BoundTo) -> str:
    """Encrypt the content of a ``<body>`` element in canonical form.

    Args:
        body: the whole element; its start tag is not encrypted and not kept.
        key_id: of the recipient's key, so that it knows which one to take.
        bound: the message that is going to carry it; it fits into no other.

    Returns:
        One ``<xenc:EncryptedData>`` in exclusive canonical form.

    Raises:
        ValueError: ``body`` is not one body element with content, in canonical form.
    """
    xmlsec = _xmlsec()
    element = _BODY.fullmatch(body)
    if element is None:
        raise ValueError("not one <body> element with content, in canonical form")
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    context = xmlsec.EncryptionContext(_managers.of(pem, key_id))
    context.key = xmlsec.Key.generate(xmlsec.constants.KeyDataAes, 256, xmlsec.constants.KeyDataTypeSession)
    sealed = context.encrypt_binary(etree.fromstring(template(key_id, bound)), element[1])
    for value in sealed.iter(_VALUE):
        value.text = "".join((value.text or "").split())
    return bytes(etree.tostring(sealed, method="c14n", exclusive=True, with_comments=False)).decode()


def decrypt(encrypted_data: str | bytes, *, find_key: FindKey, bound: BoundTo) -> bytes:
    """The content that was encrypted: what stood between the tags of the body.

    Treat it as any octets from outside: whoever has a public key can encrypt to it.

    Raises:
        DecryptionError: it was altered or cut, was made for another message or another key, or asks for
            anything but AES-256-GCM with RSA-OAEP.
    """
    element = _parsed(encrypted_data)
    parts = _require_shape(element)
    label = (_only(element, _LABEL).text or "").strip()
    if label != bound.label:
        raise DecryptionError(
            "the encrypted body was made for another message: its OAEP label does not name this message, its "
            "conversation, sender and recipient; encrypt it for this message"
        )
    for at in _VALUES_AT:
        _require_base64(parts[at])
    key_id = (_only(element, _KEY_NAME).text or "").strip()
    private = find_key(key_id)
    if private is None:
        raise DecryptionError(
            f"the body is encrypted to key {key_id!r}, whose private half is not in this data folder; "
            "import it, or let the sender encrypt to a key of this agent"
        )
    return _opened(element, private, key_id)


def _opened(element: etree._Element, private: RSAPrivateKey, key_id: str) -> bytes:
    xmlsec = _xmlsec()
    pem = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    # Without a type the library gives octets back and does not put anything into a tree.
    del element.attrib["Type"]
    try:
        content = xmlsec.EncryptionContext(_managers.of(pem, key_id)).decrypt(element)
    except (xmlsec.Error, ValueError, TypeError):
        # One sentence for every failure, as details of it would help to guess the key.
        raise DecryptionError(
            f"the body cannot be decrypted with key {key_id}: it was altered, cut, or encrypted with another key"
        ) from None
    return bytes(content)


def _parsed(encrypted_data: str | bytes) -> etree._Element:
    octets = encrypted_data.encode() if isinstance(encrypted_data, str) else encrypted_data
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False, huge_tree=True)
    try:
        root = etree.fromstring(octets, parser)
    except (etree.XMLSyntaxError, ValueError) as problem:
        raise DecryptionError(f"the encrypted body is not well-formed: {problem}") from None
    if root.getroottree().docinfo.internalDTD is not None:
        raise DecryptionError("the encrypted body brings a document type along; nothing may be defined in it")
    return root


def _require_shape(element: etree._Element) -> list[etree._Element]:
    """The elements in document order, if they are exactly those that :func:`encrypt` writes."""
    parts: list[Any] = list(element.iter())
    fits = len(parts) == len(_SHAPE)
    for at, part in enumerate(parts if fits else ()):
        tag, attributes = _SHAPE[at]
        parent = part.getparent()
        fits = fits and part.tag == tag and dict(part.attrib) == attributes
        fits = fits and (parent is None if at == 0 else parent is parts[_PARENTS[at]])
    if not fits:
        raise DecryptionError(
            "the encrypted body is not of the one accepted shape: AES-256-GCM, its key encrypted with RSA-OAEP "
            "labelled with the message it is for, a KeyName, and nothing else (docs/security.md shows it)"
        )
    return parts


def _require_base64(value: etree._Element) -> None:
    try:
        octets = b64decode(unspaced(value.text or ""), validate=True)
    except (Base64Error, ValueError):
        octets = b""
    if len(octets) < _LEAST_BYTES:
        raise DecryptionError("the encrypted body was cut: a cipher value is not base64 or too short")


class _Managers(threading.local):
    """The library's key managers of this thread. Making one reads the system's certificates: 8 ms."""

    def __init__(self) -> None:
        self._made: dict[tuple[bytes, str], Any] = {}

    def of(self, pem: bytes, key_id: str) -> Any:
        """The manager that knows this key alone, under this name."""
        manager = self._made.get((pem, key_id))
        if manager is None:
            xmlsec = _xmlsec()
            key = xmlsec.Key.from_memory(pem, xmlsec.constants.KeyDataFormatPem, None)
            key.name = key_id
            manager = xmlsec.KeysManager()
            manager.add_key(key)
            if len(self._made) >= _MANAGERS:
                del self._made[next(iter(self._made))]
            self._made[pem, key_id] = manager
        return manager


_managers = _Managers()


def _only(element: etree._Element, tag: str) -> etree._Element:
    return next(element.iter(tag))


def _xmlsec() -> Any:
    """The library, loaded when first needed: what does not encrypt does not pay for it."""
    import xmlsec

    return xmlsec

"""Seals texts for the agents that read them, with the keys that sign: AES-256-GCM under a key that is wrapped for each reader.

The wrapping key is what the keys of sender and reader share (X25519), as for the codes of `keyring.codes`: it costs no
operation of RSA, however many texts there are. Where one of the two signs with RSA, the content's key is encrypted to the
reader's encryption key instead.
"""

from __future__ import annotations

import os
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from orchestrator.envelope.encryption import Recipient
from orchestrator.errors import KeyringError, SignatureError
from orchestrator.keyring.codes import Codes, derived_key
from orchestrator.keyring.ring import Keyring
from orchestrator.policy.sealed_text import token

_DOMAIN: Final = b"agent-orchestra sealed text 1\n"
_NONCE: Final = 12
#: Texts of more octets are compressed before they are sealed.
_COMPRESS_ABOVE: Final = 512
#: Octets that one sealed text may have when it is opened.
_MOST: Final = 1 << 30
_OAEP: Final = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=_DOMAIN)


class SealedTexts:
    """Seals and opens with the keys of one data folder. Safe to share between threads.

    Args:
        recipient: finds the key to encrypt to an agent with, where its signing key shares nothing.
        always: agents that read everything that is sealed.
    """

    def __init__(
        self,
        keyring: Keyring,
        codes: Codes,
        *,
        recipient: Callable[[str], Recipient],
        always: tuple[str, ...] = (),
    ) -> None:
        self._keyring = keyring
        self._codes = codes
        self._recipient = recipient
        self._always = always

    def seal(self, text: str, *, label: str, by: str, to: tuple[str, ...]) -> str:
        """Seal a text of ``by`` for itself, for the agents ``to``, and for those that always read.

        Raises:
            KeyringError: the key of ``by`` is not in this data folder, or a reader has no key.
        """
        plan = self._codes.plan(by, (by, *to, *self._always))
        key, nonce = AESGCM.generate_key(256), os.urandom(_NONCE)
        readers = [
            f"{reader}={_text(aes_key_wrap(derived_key(secret, _DOMAIN), key))}"
            for reader, secret in plan.secrets
        ]
        for reader in plan.missing:
            name, public = self._recipient(reader)
            readers.append(f"{name}~{_text(public.encrypt(key, _OAEP))}")
        octets = text.encode(errors="surrogatepass")
        packed = b"z" + zlib.compress(octets, 1) if len(octets) > _COMPRESS_ABOVE else b"t" + octets
        content = nonce + AESGCM(key).encrypt(nonce, packed, _bound(label))
        return token(plan.sender, ",".join(readers), label, _text(content))

    def open(self, sender: str, readers: str, label: str, content: str) -> str | None:
        """Return the opened text; None if no key of this data folder opens it, or it was altered."""
        for reader in readers.split(","):
            try:
                key = self._content_key(sender, reader)
                if key is not None:
                    octets = _octets(content)
                    packed = AESGCM(key).decrypt(octets[:_NONCE], octets[_NONCE:], _bound(label))
                    return _unpacked(packed)
            except (InvalidTag, InvalidUnwrap, ValueError, KeyringError, SignatureError, zlib.error):
                continue
        return None

    def _content_key(self, sender: str, reader: str) -> bytes | None:
        if "~" in reader:
            name, _, wrapped = reader.partition("~")
            private = self._keyring.decryption_key(name)
            return None if private is None else private.decrypt(_octets(wrapped), _OAEP)
        name, _, wrapped = reader.partition("=")
        secret = self._codes.shared(sender, name)
        return aes_key_unwrap(derived_key(secret, _DOMAIN), _octets(wrapped)) if secret else None


def _bound(label: str) -> bytes:
    return _DOMAIN + label.encode()


def _unpacked(packed: bytes) -> str:
    octets = packed[1:]
    if packed[:1] == b"z":
        reader = zlib.decompressobj()
        octets = reader.decompress(octets, _MOST)
        if reader.unconsumed_tail:
            raise ValueError("a sealed text is too large")
    return octets.decode(errors="surrogatepass")


def _text(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def _octets(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))

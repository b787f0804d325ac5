"""Proofs of who wrote something for whom, many times cheaper to check than a signature, and texts sealed with them.

Sender and reader each have an Ed25519 key, made known by the registry. From one's private and the other's public key
both get the same secret (X25519), and nobody else does; a code is a keyed BLAKE2b under that. A proof has one code for each
reader. Where a reader has no such key, it has a signature instead, which everybody can check.

    KEY-ID-OF-THE-SENDER KEY-ID-OF-A-READER=CODE … [*=SIGNATURE]

Codes and signatures are in hex.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final, TypeVar

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from orchestrator.envelope.encryption import Recipient
from orchestrator.envelope.signature import Signer
from orchestrator.errors import KeyringError, SignatureError
from orchestrator.keyring import algorithms
from orchestrator.keyring.certificates import KeyCertificate
from orchestrator.keyring.registry import Keyring
from orchestrator.machine import Clock, SystemClock
from orchestrator.policy.sealed_text import token

K = TypeVar("K")
V = TypeVar("V")

_DOMAIN: Final = b"agent-orchestra code 1\n"
#: Bytes of a code: as strong as the keys.
_LENGTH: Final = 16
#: Seconds for which it is remembered which keys a reader has.
_READERS_S: Final = 30.0
#: Seconds for which keys are not asked for again, and how many pairs are remembered.
_PLAN_S: Final = 1.0
_PLANS: Final = 4096
#: A reader's host may not have its newest key yet.
_KEYS_OF_A_READER: Final = 2
_SIGNATURE: Final = "*"
#: Codes and signatures of a proof that are looked at: more than any honest one has.
_PARTS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Keys with which one agent attests what it writes for certain readers, and seals what only they may read."""

    sender: str  #: its key
    secrets: tuple[tuple[str, bytes], ...]  #: for each key of a reader
    missing: tuple[str, ...]  #: the readers that have no key which shares a secret with it
    signer: Signer | None  #: where there are such readers
    until: float


class Codes:
    """Makes and checks proofs with the keys of one data folder. Safe to share between threads."""

    def __init__(self, keyring: Keyring, *, clock: Clock | None = None) -> None:
        self._keyring = keyring
        self._clock = clock or SystemClock()
        self._secrets: dict[tuple[str, str], bytes] = {}
        self._readers: dict[str, tuple[float, tuple[KeyCertificate, ...]]] = {}
        self._plans: dict[tuple[str, tuple[str, ...]], Plan] = {}
        self._lock = threading.Lock()

    def make(self, octets: bytes, *, by: str, to: Iterable[str]) -> str:
        """Return the proof that ``by`` wrote these bytes, for each of the agents ``to``.

        Raises:
            KeyringError: the key of ``by`` is not in this data folder.
        """
        plan = self.plan(by, tuple(to))
        parts = [plan.sender, *[f"{reader}={_code(secret, octets)}" for reader, secret in plan.secrets]]
        if plan.signer is not None:
            parts.append(f"{_SIGNATURE}={plan.signer.sign(octets).hex()}")
        return " ".join(parts)

    def plan(self, by: str, to: tuple[str, ...]) -> Plan:
        """Return the secrets that ``by`` shares with each of the agents ``to``; looked up again after a second.

        Raises:
            KeyringError: the key of ``by`` is not in this data folder.
        """
        now = self._clock.monotonic()
        known = self._plans.get((by, to))
        if known is not None and now < known.until:
            return known
        signer = self._keyring.signer(by)
        secrets: list[tuple[str, bytes]] = []
        missing: list[str] = []
        for reader in dict.fromkeys(to):
            before = len(secrets)
            secrets += [
                (key.key_id, secret)
                for key in self._keys_of(reader)
                if (secret := self._secret(signer.key_id, key.key_id, mine=signer.key_id, other=key))
            ]
            if len(secrets) == before:
                missing.append(reader)
        plan = Plan(
            sender=signer.key_id,
            secrets=tuple(secrets),
            missing=tuple(missing),
            signer=signer if missing else None,
            until=now + _PLAN_S,
        )
        self._remember(self._plans, (by, to), plan)
        return plan

    def writer(self, octets: bytes, proof: str, *, reader: str) -> str:
        """Return the agent that wrote these bytes, as ``reader`` can tell by the proof.

        Raises:
            SignatureError: nobody is known to have written them; with the rule.
        """
        if not proof:
            raise SignatureError("signature-missing", "no writer has attested it")
        name, *parts = proof.split(" ")
        key = self._lookup(name)
        if key is None:
            raise SignatureError("key-unknown", f"no public key {name!r} is registered")
        if key.revoked_ms is not None:
            raise SignatureError("key-revoked", f"key {name} of {key.agent!r} was revoked")
        for part in parts[:_PARTS]:
            reading, _, value = part.partition("=")
            if self._fits(octets, value, key, reading, reader):
                return key.agent
        raise SignatureError("signature-invalid", f"it is not what {key.agent!r} wrote for {reader!r}")

    def shared(self, sender: str, reader: str) -> bytes:
        """Return the secret that two keys share, the reader's of which is here; empty if it is not, or they share
        none.
        """
        key = self._lookup(sender)
        return b"" if key is None else self._secret(sender, reader, mine=reader, other=key)

    def _fits(self, octets: bytes, value: str, key: KeyCertificate, reading: str, reader: str) -> bool:
        if reading == _SIGNATURE:
            try:
                return key.verifies(bytes.fromhex(value), octets)
            except ValueError:
                return False
        mine = self._lookup(reading)
        if mine is None or mine.agent != reader or mine.revoked_ms is not None:
            return False
        secret = self._secret(key.key_id, reading, mine=reading, other=key)
        return bool(secret) and value.isascii() and compare_digest(value, _code(secret, octets))

    def _remember(self, memory: dict[K, V], about: K, value: V) -> None:
        with self._lock:
            if len(memory) >= _PLANS:
                memory.clear()
            memory[about] = value

    def _keys_of(self, reader: str) -> tuple[KeyCertificate, ...]:
        now = self._clock.monotonic()
        known = self._readers.get(reader)
        if known is None or now - known[0] > _READERS_S or any(map(self._is_revoked, known[1])):
            certificates = self._keyring.registry.signing_keys(reader)[:_KEYS_OF_A_READER]
            if not certificates:
                return ()  # its first key may be made at any moment
            known = (now, tuple(certificates))
            self._remember(self._readers, reader, known)
        return known[1]

    def _is_revoked(self, key: KeyCertificate) -> bool:
        try:
            now = self._lookup(key.key_id)
        except SignatureError:  # somebody has overwritten its record
            return True
        return now is None or now.revoked_ms is not None

    def _lookup(self, key_id: str) -> KeyCertificate | None:
        """Return a key that the registry knows, or this data folder: Redis may have been made to forget it."""
        return self._keyring.lookup(key_id) or self._keyring.store.lookup(key_id)

    def _secret(self, sender: str, reader: str, *, mine: str, other: KeyCertificate) -> bytes:
        """Return the secret that ``sender`` and ``reader`` share, from the key ``mine`` of this host; empty if none."""
        known = self._secrets.get((sender, reader))
        if known is None:
            known = self._agree(mine, other)
            if known:
                known = hashlib.sha256(_DOMAIN + known + f"{sender} {reader}".encode()).digest()
                # Where the private key is not here yet, it may be brought at any moment.
                self._remember(self._secrets, (sender, reader), known)
        return known

    def _agree(self, mine: str, other: KeyCertificate) -> bytes:
        try:
            private = self._keyring.store.private_key(mine)
        except KeyringError:
            return b""
        if not isinstance(private, Ed25519PrivateKey) or not isinstance(other.public, Ed25519PublicKey):
            return b""
        return algorithms.shared_secret(private, other.public)


def _code(secret: bytes, octets: bytes) -> str:
    return hashlib.blake2b(octets, key=secret, digest_size=_LENGTH).hexdigest()


def derived_key(secret: bytes, purpose: bytes) -> bytes:
    """Return a key of 32 bytes for a purpose, from what two agents share."""
    return hashlib.blake2b(purpose, key=secret, digest_size=32).digest()


_TEXT_DOMAIN: Final = b"agent-orchestra sealed text 1\n"
_NONCE: Final = 12
#: Texts of more bytes are compressed before they are sealed.
_COMPRESS_ABOVE: Final = 512
#: Bytes that one sealed text may have when it is opened.
_MOST: Final = 1 << 30
_OAEP: Final = padding.OAEP(mgf=padding.MGF1(hashes.SHA256()), algorithm=hashes.SHA256(), label=_TEXT_DOMAIN)


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
            f"{reader}={_text(aes_key_wrap(derived_key(secret, _TEXT_DOMAIN), key))}"
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
        return aes_key_unwrap(derived_key(secret, _TEXT_DOMAIN), _octets(wrapped)) if secret else None


def _bound(label: str) -> bytes:
    return _TEXT_DOMAIN + label.encode()


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

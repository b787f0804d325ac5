"""The kinds of keys: how each is made, named, written down and used."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from typing import Final, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey, generate_private_key
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from nacl.bindings import crypto_scalarmult
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from orchestrator.envelope.signature import ED25519, RSA_SHA256
from orchestrator.errors import KeyringError

PrivateKey: TypeAlias = RSAPrivateKey | Ed25519PrivateKey
PublicKey: TypeAlias = RSAPublicKey | Ed25519PublicKey

#: What a key for encryption is for; it signs nothing.
RSA_OAEP: Final = "RSA-OAEP"
RSA_BITS: Final = 2048

_WRONG_KIND: Final = "the key is neither RSA nor Ed25519; make one with `orchestra keys generate`"

_PADDING = padding.PKCS1v15()
_HASH = hashes.SHA256()


def generate(algorithm: str) -> PrivateKey:
    """Return a new private key for ``algorithm``.

    Raises:
        KeyringError: there is no such algorithm.
    """
    if algorithm in (RSA_SHA256, RSA_OAEP):
        return generate_private_key(public_exponent=65537, key_size=RSA_BITS)
    if algorithm == ED25519:
        return Ed25519PrivateKey.generate()
    raise KeyringError(f"there is no algorithm {algorithm!r}; choose {RSA_SHA256} or {ED25519}")


def signing_algorithm(key: PrivateKey | PublicKey) -> str:
    """Return the signature algorithm of a key, which depends on nothing but its type."""
    return RSA_SHA256 if isinstance(key, RSAPrivateKey | RSAPublicKey) else ED25519


def signing(key: PrivateKey) -> Callable[[bytes], bytes]:
    """Return the function that makes the raw signatures of a key."""
    if isinstance(key, RSAPrivateKey):
        return lambda octets: key.sign(octets, _PADDING, _HASH)
    # libsodium takes two thirds of the time of OpenSSL, which has this in portable C only, and half of it to verify.
    sodium = SigningKey(key.private_bytes_raw())
    return lambda octets: sodium.sign(octets).signature


def verifies(key: PublicKey, signature: bytes, octets: bytes) -> bool:
    """Return True if ``signature`` is that key's signature of ``octets``."""
    try:
        if isinstance(key, RSAPublicKey):
            key.verify(signature, octets, _PADDING, _HASH)
        else:
            VerifyKey(key.public_bytes_raw()).verify(octets, signature)
    except (InvalidSignature, BadSignatureError, ValueError):
        return False
    return True


def shared_secret(private: Ed25519PrivateKey, public: Ed25519PublicKey) -> bytes:
    """Return the secret that the holders of two signing keys share: X25519 of the same curve's points."""
    mine = SigningKey(private.private_bytes_raw()).to_curve25519_private_key()
    theirs = VerifyKey(public.public_bytes_raw()).to_curve25519_public_key()
    return crypto_scalarmult(mine.encode(), theirs.encode())


def key_id(public: PublicKey) -> str:
    """``key_`` and the first 32 hex digits of the SHA-256 of the key itself (DER, SubjectPublicKeyInfo)."""
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return f"key_{hashlib.sha256(der).hexdigest()[:32]}"


def private_pem(key: PrivateKey, passphrase: bytes | None = None) -> bytes:
    """PKCS #8 in PEM, encrypted if there is a passphrase."""
    protection: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if passphrase:
        protection = serialization.BestAvailableEncryption(passphrase)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)


def public_pem(key: PublicKey) -> str:
    """SubjectPublicKeyInfo in PEM."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    ).decode()


def load_private(pem: bytes, passphrase: bytes | None = None) -> PrivateKey:
    """Read a private key.

    Raises:
        KeyringError: it is no key of a kind used here, is too short, or the passphrase is wrong.
    """
    try:
        key = serialization.load_pem_private_key(pem, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        advice = "; say the right passphrase with --passphrase-file" if b"ENCRYPTED" in pem else ""
        raise KeyringError(f"a private key cannot be read: {problem}{advice}") from None
    if not isinstance(key, RSAPrivateKey | Ed25519PrivateKey):
        raise KeyringError(_WRONG_KIND)
    _require_length(key)
    return key


@lru_cache(maxsize=4096)
def load_public(pem: str | bytes) -> PublicKey:
    """Read a public key.

    Raises:
        KeyringError: it is no key of a kind used here, or is too short.
    """
    try:
        key = serialization.load_pem_public_key(pem.encode() if isinstance(pem, str) else pem)
    except (ValueError, TypeError, UnsupportedAlgorithm) as problem:
        raise KeyringError(f"a public key cannot be read: {problem}") from None
    return require_kind(key)


def require_kind(key: PublicKeyTypes) -> PublicKey:
    """Return a public key of a kind used here.

    Raises:
        KeyringError: it is of another kind, or too short.
    """
    if not isinstance(key, RSAPublicKey | Ed25519PublicKey):
        raise KeyringError(_WRONG_KIND)
    _require_length(key)
    return key


def _require_length(key: PrivateKey | PublicKey) -> None:
    if isinstance(key, RSAPrivateKey | RSAPublicKey) and key.key_size < RSA_BITS:
        raise KeyringError(f"an RSA key of {key.key_size} bits is too short; it needs {RSA_BITS} or more")

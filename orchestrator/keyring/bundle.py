"""The file in which keys travel from one host to another: JSON, private keys encrypted if wanted."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms
from orchestrator.keyring.algorithms import PrivateKey
from orchestrator.keyring.record import KeyRecord

_FORMAT: Final = "agent-orchestra keys 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBundle:
    """What a bundle holds."""

    operator_pem: str
    operator_key: Ed25519PrivateKey | None
    entries: list[tuple[KeyRecord, PrivateKey | None]]
    #: What the operator vouched for about agents, each with the operator's signature.
    agents: list[bytes]


def pack(
    *,
    operator_pem: str,
    operator_key: Ed25519PrivateKey | None,
    entries: Sequence[tuple[KeyRecord, PrivateKey | None]],
    agents: Sequence[bytes] = (),
    passphrase: bytes | None,
) -> bytes:
    """Write a bundle."""

    def secret(key: PrivateKey | None) -> str | None:
        return None if key is None else algorithms.private_pem(key, passphrase).decode()

    document: dict[str, Any] = {
        "format": _FORMAT,
        "operator": {"public": operator_pem, "private": secret(operator_key)},
        "keys": [{"record": asdict(record), "private": secret(key)} for record, key in entries],
        "agents": [sealed.decode() for sealed in agents],
    }
    if passphrase is not None:
        salt = secrets.token_bytes(16)
        document["authentication"] = {"salt": salt.hex(), "hmac": _hmac(document, passphrase, salt)}
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"


def unpack(content: bytes, passphrase: bytes | None) -> KeyBundle:
    """Read a bundle. Whether its records are vouched for is the store's to check.

    With a passphrase all of it is authenticated, what is public too: an operator that somebody else put in would
    be trusted from then on.

    Raises:
        KeyringError: it is no bundle, a private key does not fit its record, the passphrase is wrong or missing, or
            there is one and the bundle was not made with it.
    """
    try:
        document: dict[str, Any] = json.loads(content)
        if document["format"] != _FORMAT:
            raise KeyError("format")
        _authenticate(document, passphrase)
        operator = document["operator"]
        operator_pem = str(operator["public"])
        operator_secret = _optional_text(operator["private"])
        raw = [(json.dumps(entry["record"]), _optional_text(entry["private"])) for entry in document["keys"]]
        agents = [str(sealed).encode() for sealed in document.get("agents", [])]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KeyringError(
            "this is neither a bundle of `orchestra keys export` nor a PEM file; nothing was imported"
        ) from None
    entries = [_entry(KeyRecord.from_json(record), pem, passphrase) for record, pem in raw]
    return KeyBundle(
        operator_pem=operator_pem,
        operator_key=_operator_key(operator_pem, operator_secret, passphrase),
        entries=entries,
        agents=agents,
    )


def _authenticate(document: dict[str, Any], passphrase: bytes | None) -> None:
    seal = document.pop("authentication", None)
    if seal is None and passphrase is None:
        return
    if seal is None:
        raise KeyringError(
            "nothing vouches for this bundle: it was exported without a passphrase, by an earlier version, or was altered; "
            "export it again with --passphrase-file, or import it without one"
        )
    if passphrase is None:
        raise KeyringError(
            "the bundle is closed by a passphrase; say the right passphrase with --passphrase-file"
        )
    if not hmac.compare_digest(_hmac(document, passphrase, bytes.fromhex(seal["salt"])), str(seal["hmac"])):
        raise KeyringError(
            "the bundle was altered or closed with another passphrase; say the right passphrase with --passphrase-file"
        )


def _hmac(document: dict[str, Any], passphrase: bytes, salt: bytes) -> str:
    """The HMAC of a document, independent of blanks and order."""
    content = json.dumps(document, sort_keys=True, separators=(",", ":"))
    key = hashlib.scrypt(passphrase, salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=32)
    return hmac.new(key, content.encode(), "sha256").hexdigest()


def _entry(
    record: KeyRecord, pem: str | None, passphrase: bytes | None
) -> tuple[KeyRecord, PrivateKey | None]:
    if pem is None:
        return record, None
    key = _private(pem, passphrase)
    if algorithms.key_id(key.public_key()) != record.key_id:
        raise KeyringError(f"the private key beside {record.key_id} is another one; nothing was imported")
    return record, key


def _operator_key(public_pem: str, pem: str | None, passphrase: bytes | None) -> Ed25519PrivateKey | None:
    if pem is None:
        return None
    key = _private(pem, passphrase)
    if not isinstance(key, Ed25519PrivateKey) or algorithms.public_pem(key.public_key()) != public_pem:
        raise KeyringError("the operator's private key does not fit its public key; nothing was imported")
    return key


def _optional_text(value: object) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("a private key is text")
    return value


def _private(pem: str, passphrase: bytes | None) -> PrivateKey:
    # A passphrase given for keys that are not encrypted is no mistake worth stopping for.
    return algorithms.load_private(pem.encode(), passphrase if "ENCRYPTED" in pem else None)

"""Signatures of the operator under short JSON documents about an audit database."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as Base64Error

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.proof import Keys, KeysAt
from orchestrator.envelope.signature import Signer
from orchestrator.errors import SignatureError


def vouch(octets: bytes, signer: Signer) -> str:
    """The signature over the octets, in base64."""
    return b64encode(signer.sign(octets)).decode()


def fault_of(octets: bytes, signature: str, key_id: str, at_ms: int, keys: Keys) -> str:
    """Why the operator does not stand for the octets; empty: it does."""
    try:
        key = KeysAt(keys, at_ms).lookup(key_id) if key_id else None
    except SignatureError as error:
        return str(error)
    if key is None:
        return f"its key {key_id!r} is not known" if key_id else "it is not signed"
    if key.agent != OPERATOR or key.revoked_ms is not None:
        return f"its key {key_id} is not a valid key of the operator"
    try:
        decoded = b64decode(signature, validate=True)
    except (Base64Error, ValueError):
        return "its signature is not base64"
    return "" if key.verifies(decoded, octets) else "its signature does not hold"

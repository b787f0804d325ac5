"""The record of an agent: its facts, with the operator's signature over all of them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from typing import Any, Final, TypeAlias

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from orchestrator.keyring import algorithms

Facts: TypeAlias = dict[str, Any]

#: Stands before the facts, so that this signature is never one of something else.
_DOMAIN: Final = b"agent-orchestra agent record 1\n"
_VOUCH: Final = "vouch"


def seal(facts: Facts, operator: Ed25519PrivateKey) -> bytes:
    """The record with the operator's signature, as JSON."""
    signature = algorithms.signing(operator)(_octets(facts))
    return _write({**facts, _VOUCH: b64encode(signature).decode()})


def opened(sealed: bytes, operator: Ed25519PublicKey) -> Facts | None:
    """The facts of a record, or None if that operator does not stand for them."""
    try:
        facts = json.loads(sealed)
        signature = b64decode(facts.pop(_VOUCH), validate=True)
        octets = _octets(facts)
    except (Base64Error, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return dict(facts) if algorithms.verifies(operator, signature, octets) else None


def _octets(facts: Facts) -> bytes:
    return _DOMAIN + _write(facts)


def _write(facts: Facts) -> bytes:
    return json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()

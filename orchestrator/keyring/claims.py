"""Signed claims: JSON objects as compact JSON Web Signatures (RFC 7515), which any JOSE library verifies.

    BASE64URL({"alg", "kid", "typ"}) "." BASE64URL(claims) "." BASE64URL(signature)

``typ`` says what the claims are for. It is signed with them, so that claims of one purpose never pass for another's. The
signed bytes begin with ``eyJ``: no envelope, certificate or statement of the ledger does.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, Protocol, TypeVar

from orchestrator.envelope.signature import ED25519, RSA_SHA256, Signer
from orchestrator.errors import SignatureError

#: The names that JOSE has for the algorithms.
_JOSE: Final = {RSA_SHA256: "RS256", ED25519: "EdDSA"}


class Purpose(StrEnum):
    """Purpose of signed claims; each purpose is a domain of its own."""

    AGENT = "agent-orchestra.agent"
    SUBMISSION = "agent-orchestra.submission"
    AUDIT_HEAD = "agent-orchestra.audit-head"
    AUDIT_AMENDMENT = "agent-orchestra.audit-amendment"


class ClaimsKey(Protocol):
    """A public key that claims are verified with."""

    @property
    def algorithm(self) -> str: ...

    def verifies(self, signature: bytes, octets: bytes) -> bool:
        """Return whether ``signature`` is this key's signature of ``octets``."""
        ...


K = TypeVar("K", bound=ClaimsKey)


def sign(claims: Mapping[str, Any], purpose: Purpose, signer: Signer) -> str:
    """Return the claims with a signature."""
    signed = f"{_header(purpose, signer.algorithm, signer.key_id)}.{_text(_json(claims))}"
    return f"{signed}.{_text(signer.sign(signed.encode()))}"


def unsigned(claims: Mapping[str, Any]) -> str:
    """Return claims that nobody signs, in the same form: :func:`verify` refuses them, :func:`payload` reads them."""
    return f".{_text(_json(claims))}."


def payload(text: str | bytes) -> bytes:
    """Return the claims as JSON, unchecked.

    Raises:
        ValueError: the text has another form.
    """
    return _octets(_parts(text)[1])


def verify(text: str | bytes, purpose: Purpose, find: Callable[[str], K | None]) -> tuple[dict[str, Any], K]:
    """Return the claims and the key that has signed them. The caller decides whether that key may sign them, and
    still may.

    Raises:
        SignatureError: with the rule: the text has another form, is not signed, or not by a key that ``find`` finds.
    """
    try:
        header, body, signature = _parts(text)
        if not (header or signature):
            raise SignatureError("signature-missing", "it is not signed")
        key_id = json.loads(_octets(header))["kid"]
        raw, claims = _octets(signature), dict(json.loads(_octets(body)))
        key = find(str(key_id))
    except (ValueError, TypeError, LookupError, RecursionError):
        raise SignatureError("signature-malformed", "it is not a compact JSON Web Signature") from None
    if key is None:
        raise SignatureError("key-unknown", f"its key {key_id!r} is not known")
    # The key decides the algorithm, the reader the purpose; the header may say nothing else.
    expected = _header(purpose, key.algorithm, key_id)
    if header != expected or not key.verifies(raw, f"{header}.{body}".encode()):
        raise SignatureError("signature-invalid", "its signature does not hold")
    return claims, key


def _header(purpose: Purpose, algorithm: str, key_id: str) -> str:
    return _text(_json({"alg": _JOSE.get(algorithm, ""), "kid": key_id, "typ": purpose.value}))


def _json(claims: Mapping[str, Any]) -> bytes:
    return json.dumps(claims, sort_keys=True, separators=(",", ":")).encode()


def _parts(text: str | bytes) -> tuple[str, str, str]:
    header, body, signature = (text if isinstance(text, str) else text.decode()).split(".")
    return header, body, signature


def _text(octets: bytes) -> str:
    return urlsafe_b64encode(octets).rstrip(b"=").decode()


def _octets(text: str) -> bytes:
    octets = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if _text(octets) != text:
        raise ValueError("base64url has one spelling")
    return octets

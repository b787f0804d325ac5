"""Signed claims as a forger has them: read, and changed under a signature that is not theirs."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any


def claims_in(text: str | bytes) -> dict[str, Any]:
    """Return what a JSON Web Signature says."""
    text = text.decode() if isinstance(text, bytes) else text
    found: dict[str, Any] = json.loads(_octets(text.split(".")[1]))
    return found


def forged(text: str | bytes, *, header: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return the text with other claims, or another header, and the signature that it had."""
    text = text.decode() if isinstance(text, bytes) else text
    head, payload, signature = text.split(".")
    if header is not None:
        head = _text({**json.loads(_octets(head)), **header})
    if changes:
        payload = _text({**claims_in(text), **changes})
    return f"{head}.{payload}.{signature}"


def _octets(part: str) -> bytes:
    return urlsafe_b64decode(part + "=" * (-len(part) % 4))


def _text(value: dict[str, Any]) -> str:
    octets = json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    return urlsafe_b64encode(octets).decode().rstrip("=")

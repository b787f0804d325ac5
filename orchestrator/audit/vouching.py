"""Short JSON documents about an audit database that the operator signs."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, ClassVar, Final, Self, cast

from pydantic import ConfigDict, TypeAdapter

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.proof import Keys, KeysAt
from orchestrator.envelope.signature import Signer
from orchestrator.errors import SignatureError

#: How documents are read that anybody may have written: every field as it is declared, and no other.
STRICT: Final = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """What every signed document says; each kind adds what it is about."""

    __pydantic_config__: ClassVar = STRICT
    #: Stands before the document in what is signed, so that no kind passes for another, nor for an envelope.
    domain: ClassVar[bytes]

    #: The name of the database among all.
    database: str
    #: When, in ms since the epoch.
    at_ms: int = 0
    key_id: str = ""
    #: Base64 of the signature over everything else.
    signature: str = ""

    def facts(self) -> dict[str, Any]:
        """The values as they are stored."""
        return asdict(self)

    def to_json(self) -> str:
        """The document as it is stored."""
        return json.dumps(self.facts(), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Self | None:
        """The inverse of :meth:`to_json`; None: it is no document of this kind."""
        try:
            found: Self = _adapter(cast("Any", cls)).validate_json(text)
        except ValueError:
            return None
        return found

    def signed_by(self, signer: Signer) -> Self:
        """This document with a signature."""
        bare = replace(self, key_id=signer.key_id, signature="")
        return replace(bare, signature=vouch(_octets(bare), signer))

    def fault(self, keys: Keys, database: str) -> str:
        """Why the operator does not stand for this document about a database; empty: it does."""
        if self.database != database:
            return "it is of another database"
        octets = _octets(replace(self, signature=""))
        return fault_of(octets, self.signature, self.key_id, self.at_ms, keys)


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


def _octets(document: Vouched) -> bytes:
    return document.domain + document.to_json().encode()


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)

"""Short documents about an audit database that the operator signs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, ClassVar, Final, Self, cast

from pydantic import ConfigDict, TypeAdapter

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.proof import Keys, KeysAt
from orchestrator.envelope.signature import Signer
from orchestrator.errors import SignatureError
from orchestrator.keyring import claims
from orchestrator.keyring.claims import Purpose

#: How documents are read that anybody may have written: every field as it is declared, and no other.
STRICT: Final = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedDocument:
    """Common fields of signed documents; each kind adds its own."""

    __pydantic_config__: ClassVar = STRICT
    purpose: ClassVar[Purpose]

    #: The name of the database among all.
    database: str
    #: When, in ms since the epoch.
    at_ms: int = 0
    #: This document as the operator has signed it; empty: nobody has.
    jws: str = ""

    def claims(self) -> dict[str, Any]:
        """Return what is signed."""
        return {name: value for name, value in asdict(self).items() if name != "jws"}

    def to_text(self) -> str:
        """Return the document as it is stored."""
        return self.jws or claims.unsigned(self.claims())

    @classmethod
    def from_text(cls, text: str | bytes) -> Self | None:
        """Return the document that :meth:`to_text` wrote, unchecked; None if it is no document of this kind."""
        try:
            document: Self = _adapter(cast("Any", cls)).validate_json(claims.payload(text))
        except ValueError:
            return None
        text = text.decode() if isinstance(text, bytes) else text
        return document if text.startswith(".") else replace(document, jws=text)

    def signed_by(self, signer: Signer) -> Self:
        """Return this document with a signature."""
        return replace(self, jws=claims.sign(self.claims(), self.purpose, signer))

    def fault(self, keys: Keys, database: str) -> str:
        """Return why the operator does not stand for this document about a database; empty: it does."""
        if self.database != database:
            return "it is of another database"
        try:
            signed_claims, key = claims.verify(self.to_text(), self.purpose, KeysAt(keys, self.at_ms).lookup)
        except SignatureError as error:
            return str(error)
        if key.agent != OPERATOR or key.revoked_ms is not None:
            return f"its key {key.key_id} is not a valid key of the operator"
        return "" if signed_claims == self.claims() else "its signature is of another document"


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)

"""A public key with its facts, in the form that the operator vouches for."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, Literal, NewType

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms
from orchestrator.keyring.algorithms import PublicKey

Use = Literal["sign", "encrypt"]

#: Stands before the record in what is vouched for. An envelope's canonical form begins with ``<``, so
#: no signature of the one kind can ever pass for the other.
_DOMAIN: Final = b"agent-orchestra key record 1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """One public key. Times are milliseconds since the epoch."""

    key_id: str
    agent: str
    use: Use
    algorithm: str
    public_pem: str
    created_ms: int
    #: Signatures that say they were made later than this do not count; None while the key is current.
    retired_ms: int | None = None
    #: Set once and for good: nothing the key signed counts any more.
    revoked_ms: int | None = None
    #: Grows with every change, so that an older copy never replaces a newer one.
    serial: int = 1
    #: Base64 of the operator's Ed25519 signature over everything above.
    vouch: str = ""

    @property
    def current(self) -> bool:
        """Whether new messages may be signed with it, or encrypted to it."""
        return self.retired_ms is None and self.revoked_ms is None

    def changed(self, **changes: Any) -> KeyRecord:
        """A newer version of this record, not vouched for yet."""
        return replace(self, **changes, serial=self.serial + 1, vouch="")

    def _octets(self) -> bytes:
        """What the operator signs."""
        facts = asdict(self)
        del facts["vouch"]
        return _DOMAIN + json.dumps(facts, sort_keys=True, separators=(",", ":")).encode()

    def vouched_by(self, operator: Ed25519PrivateKey) -> KeyRecord:
        """This record with the operator's signature."""
        return replace(self, vouch=b64encode(operator.sign(self._octets())).decode())

    def is_vouched_by(self, operator: Ed25519PublicKey) -> bool:
        """Whether the operator stands for every fact in here, and the id is the key's own."""
        try:
            signature = b64decode(self.vouch, validate=True)
        except (Base64Error, ValueError, TypeError):
            return False
        if not algorithms.verifies(operator, signature, self._octets()):
            return False
        return self.key_id == algorithms.key_id(self.public)

    @property
    def public(self) -> PublicKey:
        """The key itself."""
        return algorithms.load_public(self.public_pem)

    def verifies(self, signature: bytes, octets: bytes) -> bool:
        """Whether ``signature`` is this key's signature of ``octets``."""
        return algorithms.verifies(self.public, signature, octets)

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), sort_keys=True, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> KeyRecord:
        """Read what :meth:`to_json` wrote.

        Raises:
            KeyringError: it is something else.
        """
        try:
            facts = json.loads(text)
            record = cls(**{field.name: facts[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError, RecursionError) as problem:
            raise KeyringError(f"a key record cannot be read: {problem!r}") from None
        if record.use not in ("sign", "encrypt"):
            raise KeyringError(
                f"key record {record.key_id} is for {record.use!r}, which is not a use of a key"
            )
        return record


#: A record that the pinned operator vouches for.
TrustedKey = NewType("TrustedKey", KeyRecord)

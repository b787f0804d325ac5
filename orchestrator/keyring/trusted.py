"""A public key that may be believed, as the verification of signatures wants it."""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.keyring import algorithms
from orchestrator.keyring.algorithms import PublicKey
from orchestrator.keyring.record import KeyRecord


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key whose record the pinned operator vouches for."""

    record: KeyRecord
    public: PublicKey = field(repr=False)

    @classmethod
    def of(cls, record: KeyRecord) -> TrustedKey:
        """The key of a record that has been checked."""
        return cls(record, algorithms.load_public(record.public_pem))

    @property
    def key_id(self) -> str:
        return self.record.key_id

    @property
    def agent(self) -> str:
        return self.record.agent

    @property
    def algorithm(self) -> str:
        return self.record.algorithm

    @property
    def created_ms(self) -> int:
        return self.record.created_ms

    @property
    def retired_ms(self) -> int | None:
        return self.record.retired_ms

    @property
    def revoked_ms(self) -> int | None:
        return self.record.revoked_ms

    def verifies(self, signature: bytes, octets: bytes) -> bool:
        """Whether ``signature`` is this key's signature of ``octets``."""
        return algorithms.verifies(self.public, signature, octets)

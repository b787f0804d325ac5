"""Amendments: what the operator took out of the trail, signed, so that the chain holds around it.

A *tombstone* stands for the oldest rows of a table, which were removed. A *redaction* stands for the text of one
message, which was removed while its row and its facts stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from orchestrator.audit.heads import End
from orchestrator.audit.proof import Keys
from orchestrator.audit.vouching import fault_of, vouch
from orchestrator.envelope.signature import Signer

#: Stands before the amendment in what is signed.
_DOMAIN: Final = b"agent-orchestra audit amendment 1\n"
TOMBSTONE: Final = "tombstone"
REDACTION: Final = "redaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """One amendment, as it is stored and signed."""

    kind: str
    #: The table that it is about.
    table: str
    #: The row that lost its text, or the last row that was removed; and its chain.
    seq: int
    chain: str
    #: Of a tombstone: how many entries of each stream were removed, by this one and those before it.
    counts: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    #: The name of the database among all.
    database: str = ""
    #: When, in ms since the epoch.
    at_ms: int = 0
    key_id: str = ""
    #: Base64 of the signature over everything above.
    signature: str = ""

    @property
    def subject(self) -> str:
        """Its name among those of its kind: the table of a tombstone, the row of a redaction."""
        return self.table if self.kind == TOMBSTONE else str(self.seq)

    def to_json(self) -> str:
        """The amendment as it is stored."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Amendment | None:
        """The inverse of :meth:`to_json`; None: it is not an amendment."""
        try:
            return cls(**json.loads(text))
        except (ValueError, TypeError):
            return None

    def signed_by(self, signer: Signer) -> Amendment:
        """This amendment with a signature."""
        bare = replace(self, key_id=signer.key_id, signature="")
        return replace(bare, signature=vouch(_DOMAIN + bare.to_json().encode(), signer))

    def fault(self, keys: Keys, database: str) -> str:
        """Why the operator does not stand for this amendment of a database; empty: it does."""
        if self.database != database:
            return "it is of another database"
        octets = _DOMAIN + replace(self, signature="").to_json().encode()
        return fault_of(octets, self.signature, self.key_id, self.at_ms, keys)


@dataclass(frozen=True, kw_only=True)
class Amended:
    """What a trail lacks by the operator's word."""

    #: Where each table that lost its beginning begins: the last row that was removed.
    begins: Mapping[str, End] = field(default_factory=dict)
    #: Rows of messages without their text → their chain.
    redacted: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def by(cls, amendments: Iterable[Amendment]) -> Amended:
        """By these, all of which count."""
        known = list(amendments)
        return cls(
            begins={a.table: End(seq=a.seq, chain=a.chain) for a in known if a.kind == TOMBSTONE},
            redacted={a.seq: a.chain for a in known if a.kind == REDACTION},
        )

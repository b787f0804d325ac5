"""Signed heads: how far the tables of an audit database have come, attested by the operator.

The chain shows a change if one knows where it must end. A head states that, and needs the operator's key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from orchestrator.audit.proof import Keys
from orchestrator.audit.schema import CHAINED
from orchestrator.audit.signed_documents import STRICT, SignedDocument
from orchestrator.envelope.signature import Signer
from orchestrator.keyring.claims import Purpose
from orchestrator.machine import Clock, SystemClock

#: The tables that have a chain.
TABLES: Final = tuple(CHAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The last row of a table, which stands for all before it; of an empty one, 0 and ''."""

    __pydantic_config__: ClassVar = STRICT

    seq: int = 0
    chain: str = ""
    #: Of transitions: how many entries its rows hold, and those before it.
    entries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Head(SignedDocument):
    """The ends of the tables at a moment."""

    purpose: ClassVar = Purpose.AUDIT_HEAD

    messages: End
    dead_letters: End
    transitions: End = End()

    def end(self, table: str) -> End:
        """Return the end of one table."""
        end: End = getattr(self, table)
        return end

    def follows(self, other: Head) -> bool:
        """Return True if this head says at least as much of every table as another one, and more of one of them."""
        ours = [(self.end(table).seq, other.end(table).seq) for table in TABLES]
        return all(mine >= theirs for mine, theirs in ours) and any(mine > theirs for mine, theirs in ours)


class HeadChanged(Exception):
    """The database does not end where the last signed head says. Raised with one sentence."""


class HeadSigner:
    """Signs the next head of a database, if the present rows are those of the last one.

    Args:
        signer: gives the operator's signer; raises KeyringError where its key is not in the data folder.
        keys: whose heads are believed.
    """

    def __init__(self, signer: Callable[[], Signer], keys: Keys, *, clock: Clock | None = None) -> None:
        self.signer = signer
        self._keys = keys
        self._clock = clock or SystemClock()
        #: The latest head that was signed here or believed.
        self.known: Head | None = None

    def believe(self, head: Head | None, database: str) -> None:
        """Accept a head that was kept elsewhere as the state that this database had reached, if the operator signed
        it.

        Of several heads the one that covers the most rows counts.
        """
        if head is None or head.fault(self._keys, database):
            return
        if self.known is None or head.follows(self.known):
            self.known = head

    def next(self, stored: Head | None, before: Head, after: Head, signer: Signer) -> Head:
        """Return the signed head that follows upon ``stored``. ``before`` and ``after`` are the ends around a batch,
        unsigned.

        Raises:
            HeadChanged: ``before`` is not what was signed last.
        """
        if stored is None:
            if self.known is not None:
                raise HeadChanged("the signed head was removed from the database")
        elif stored != self.known and (fault := stored.fault(self._keys, before.database)):
            raise HeadChanged(f"the stored head does not count: {fault}")
        last = stored or before
        for table in TABLES:
            if before.end(table) != last.end(table):
                raise HeadChanged(
                    f"{table} ends at row {before.end(table).seq}, and not with the row {last.end(table).seq} that was signed"
                )
            if self.known is not None and last.end(table).seq < self.known.end(table).seq:
                raise HeadChanged(
                    f"{table} ends at row {last.end(table).seq}, and row {self.known.end(table).seq} was written before"
                )
        return replace(after, at_ms=self._clock.now_ms()).signed_by(signer)

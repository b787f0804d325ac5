"""Amendments: what the operator removed from the trail or declared lost, signed, so that the chain holds around it.

A *tombstone* takes the place of the oldest rows of a table. A *redaction* takes the place of the text of one message,
whose row and facts stay. An *acceptance* takes nothing out: it says that the ledger lost the session of a launch, for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from sqlalchemy import Connection, Delete, Table, func, select

from orchestrator.audit import records, words
from orchestrator.audit.database import (
    AMENDMENTS,
    DEAD_LETTERS,
    MESSAGES,
    TRANSITION_SESSIONS,
    TRANSITIONS,
    Database,
)
from orchestrator.audit.heads import End, SignedDocument
from orchestrator.envelope.signature import Signer
from orchestrator.keyring.claims import Purpose

TOMBSTONE: Final = "tombstone"
REDACTION: Final = "redaction"
ACCEPTANCE: Final = "acceptance"
#: The tables that are pruned, and the time of a row.
_TIMES: Final = {
    MESSAGES: MESSAGES.c.published_ms,
    DEAD_LETTERS: DEAD_LETTERS.c.at_ms,
    TRANSITIONS: TRANSITIONS.c.last_ms,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment(SignedDocument):
    """An amendment, as it is stored and signed."""

    purpose: ClassVar = Purpose.AUDIT_AMENDMENT

    kind: str
    #: The table that it is about.
    table: str
    #: The row that lost its text, the last row that was removed, or the launch; and its chain.
    seq: int
    chain: str
    #: Of a tombstone: how many entries of each stream were removed, by this one and those before it.
    counts: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    database: str = ""

    @property
    def subject(self) -> str:
        """Its name among those of its kind: the table of a tombstone, else the row."""
        return self.table if self.kind == TOMBSTONE else str(self.seq)


@dataclass(frozen=True, kw_only=True)
class Amended:
    """Rows that the operator has removed from a trail, or whose text it has."""

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


def redact(database: Database, message_id: str, reason: str, signer: Signer, *, at_ms: int) -> int:
    """Remove the text of every attempt of a message, and sign that; how many rows lost theirs.

    Raises:
        AuditError: nothing was removed, or the files still have it.
    """
    redaction = _of_message(REDACTION, database, reason, at_ms)
    with database.write() as db:
        query = select(MESSAGES.c.seq, MESSAGES.c.chain).where(
            MESSAGES.c.message_id == message_id, MESSAGES.c.xml != b""
        )
        rows = db.execute(query).fetchall()
        for seq, chain in rows:
            db.execute(
                MESSAGES.update()
                .where(MESSAGES.c.seq == seq)
                .values(xml=b"", sha256="", salt="", body="", octets=0)
            )
            words.forget(db, seq, seq)
            _amend(db, replace(redaction, seq=seq, chain=chain), signer)
        if rows:
            records.forget(db)
            words.erase(db)
    database.forget_removed()
    return len(rows)


def accept(database: Database, rows: Sequence[int], reason: str, signer: Signer, *, at_ms: int) -> None:
    """Sign that the sessions launched by these messages are lost for good.

    Raises:
        AuditError: nothing was signed.
    """
    acceptance = _of_message(ACCEPTANCE, database, reason, at_ms)
    with database.write() as db:
        query = select(MESSAGES.c.seq, MESSAGES.c.chain).where(MESSAGES.c.seq.in_(rows))
        for seq, chain in db.execute(query).fetchall():
            _amend(db, replace(acceptance, seq=seq, chain=chain), signer)


def _of_message(kind: str, database: Database, reason: str, at_ms: int) -> Amendment:
    """Return an amendment of a message that is still to be named."""
    return Amendment(
        kind=kind, table=MESSAGES.name, seq=0, chain="", reason=reason, database=database.id, at_ms=at_ms
    )


def prune(
    database: Database, before_ms: int, signer: Signer, *, at_ms: int, dry_run: bool = False
) -> dict[str, int]:
    """Remove the oldest rows up to the first one that is not older, and sign that; how many of each table.

    A dead letter stays for as long as its message.

    Raises:
        AuditError: nothing was removed.
    """
    removed = {}
    with database.write() as db:
        for table, time in _TIMES.items():
            end = end_of(db, table.name)
            first = db.execute(select(func.min(table.c.seq)).where(time >= before_ms)).scalar()
            last = end.seq if first is None else int(first) - 1
            gone = table.c.seq <= last
            removed[table.name] = int(db.execute(select(func.count()).where(gone)).scalar_one())
            if removed[table.name] and not dry_run:
                tombstone = Amendment(
                    kind=TOMBSTONE, table=table.name, seq=last, chain="", database=database.id, at_ms=at_ms
                )
                _remove(db, table, last, tombstone, signer)
            if table is MESSAGES:
                oldest = db.execute(select(func.min(MESSAGES.c.published_ms)).where(~gone)).scalar()
                before_ms = min(before_ms, oldest or before_ms)
    return removed


def _remove(db: Connection, table: Table, last: int, tombstone: Amendment, signer: Signer) -> None:
    gone = table.c.seq <= last
    chain = str(db.execute(select(table.c.chain).where(table.c.seq == last)).scalar_one())
    counts: Counter[str] = Counter()
    for known in read_amendments(db):
        if known.kind == TOMBSTONE and known.table == table.name:
            counts.update(known.counts)
        elif table.name == known.table and known.seq <= last:
            db.execute(_same_amendment(known))
    if table is not DEAD_LETTERS:
        entries = func.count() if table is MESSAGES else func.sum(TRANSITIONS.c.entries)
        rows = db.execute(select(table.c.stream, entries).where(gone).group_by(table.c.stream))
        counts.update({row[0]: int(row[1]) for row in rows})
    db.execute(table.delete().where(gone))
    if table is MESSAGES:
        records.forget(db)
        words.forget(db, 0, last)
    if table is TRANSITIONS:
        db.execute(TRANSITION_SESSIONS.delete().where(TRANSITION_SESSIONS.c.seq <= last))
    _amend(db, replace(tombstone, seq=last, chain=chain, counts=dict(counts)), signer)


def _amend(db: Connection, amendment: Amendment, signer: Signer) -> None:
    """Sign an amendment and keep it in place of the one of the same name."""
    amendment = amendment.signed_by(signer)
    db.execute(_same_amendment(amendment))
    db.execute(
        AMENDMENTS.insert().values(
            kind=amendment.kind, subject=amendment.subject, document=amendment.to_text()
        )
    )


def end_of(db: Connection, table: str) -> End:
    """Return the last row of a table, also if the operator has removed all of its rows."""
    entries = "total" if table == "transitions" else "0"
    row = db.exec_driver_sql(
        f"SELECT seq, chain, {entries} FROM {table} ORDER BY seq DESC LIMIT 1"  # noqa: S608 - names of ours
    ).fetchone()
    if row is None:  # nothing was ever written, or the operator has removed all of it
        query = select(AMENDMENTS.c.document).where(
            AMENDMENTS.c.kind == TOMBSTONE, AMENDMENTS.c.subject == table
        )
        document = db.execute(query).scalar()
        tombstone = Amendment.from_text(document) if document else None
        if tombstone is None:
            return End()
        removed = sum(tombstone.counts.values()) if table == "transitions" else 0
        return End(seq=tombstone.seq, chain=tombstone.chain, entries=removed)
    return End(seq=row[0], chain=row[1], entries=row[2])


def read_amendments(db: Connection) -> list[Amendment]:
    """Return the amendments in the database, unchecked. Unreadable ones are left out and have no effect."""
    rows = db.execute(select(AMENDMENTS.c.document).order_by(AMENDMENTS.c.kind, AMENDMENTS.c.subject))
    return [known for row in rows if (known := Amendment.from_text(row[0])) is not None]


def _same_amendment(amendment: Amendment) -> Delete:
    """Removes the amendment of the same name."""
    return AMENDMENTS.delete().where(
        AMENDMENTS.c.kind == amendment.kind, AMENDMENTS.c.subject == amendment.subject
    )

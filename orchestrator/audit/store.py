"""The audit database: rows are only ever added, each chained to the one before; read by anybody.

Each row's ``chain`` is a hash over the row and the chain of the row before, so that changing, removing or
inserting a row anywhere shows in every later one. The operator signs where the tables end, in the same
transaction as their rows.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Connection, Delete, Executable, and_, func, select
from sqlalchemy.exc import IntegrityError

from orchestrator.audit import bodies, bulk, words
from orchestrator.audit.amendments import REDACTION, TOMBSTONE, Amended, Amendment
from orchestrator.audit.database import Database
from orchestrator.audit.heads import End, Head, HeadChanged, HeadSigner
from orchestrator.audit.records import DeadRecord, MessageRecord
from orchestrator.audit.schema import (
    AMENDMENTS,
    BODIES,
    CHAINED,
    DEAD_LETTERS,
    HEADS,
    MESSAGES,
    TRANSITION_SESSIONS,
    TRANSITIONS,
)
from orchestrator.audit.text import text_of
from orchestrator.audit.transitions import StepsRecord, digest, ms_of, order_of, sessions_in, unpack
from orchestrator.envelope.signature import Signer
from orchestrator.errors import AuditError, KeyringError

_SALT: Final = 16
#: Writes the JSON of `json.dumps(…, ensure_ascii=False, separators=(",", ":"))` in a tenth of the time.
_JSON: Final = TypeAdapter(list[Any])
#: Rows that one fetch takes while a whole table is walked over.
_STEP: Final = 1000
#: Characters that are indexed in one transaction, give or take one message.
_TEXT_AT_ONCE: Final = 16 * 1024 * 1024
_CHAINED_TABLES: Final = {"messages": MESSAGES, "dead_letters": DEAD_LETTERS, "transitions": TRANSITIONS}
#: The time of a row, for pruning.
_TIMES: Final = {
    "messages": MESSAGES.c.published_ms,
    "dead_letters": DEAD_LETTERS.c.at_ms,
    "transitions": TRANSITIONS.c.last_ms,
}
_WHY_DEAD: Final = func.coalesce(
    select(DEAD_LETTERS.c.rule + ": " + DEAD_LETTERS.c.reason)
    .where(DEAD_LETTERS.c.stream == MESSAGES.c.stream, DEAD_LETTERS.c.entry_id == MESSAGES.c.entry_id)
    .order_by(DEAD_LETTERS.c.seq)
    .limit(1)
    .scalar_subquery(),
    "",
)
#: Messages that became dead letters.
IS_DEAD: Final = (
    select(DEAD_LETTERS.c.seq)
    .where(DEAD_LETTERS.c.stream == MESSAGES.c.stream, DEAD_LETTERS.c.entry_id == MESSAGES.c.entry_id)
    .exists()
)
_MESSAGE_ROWS: Final = select(MESSAGES, _WHY_DEAD.label("dead"))


#: A trail that nothing was taken out of.
NOT_AMENDED: Final = Amended()


@dataclass(frozen=True, kw_only=True)
class Break:
    """A place where the trail is not what was written."""

    table: str
    seq: int
    what: str


class AuditStore:
    """One audit database. Safe to share between threads."""

    def __init__(
        self, where: Path | str, *, read_only: bool = False, heads: HeadSigner | None = None
    ) -> None:
        """Open the database, a file or a URL; a writer makes it if it is not there. ``heads`` signs what is written.

        Raises:
            AuditError: it cannot be opened or made, or is no audit database of this version.
        """
        #: Why heads are not signed any more, if somebody has changed the database; else empty.
        self.changed = ""
        #: Why rows are not signed, where the operator's key is not at hand; else empty.
        self.unsigned = ""
        self._heads = heads
        #: Up to which message the words are indexed, and the last message, as far as this writer knows; None: not at all.
        self._indexed: int | None = None
        self._last = 0
        self.database = Database(where, read_only=read_only)

    @property
    def id(self) -> str:
        """The name of this database among all, for as long as it lives."""
        return self.database.id

    @property
    def name(self) -> str:
        """Where the database is, without a password."""
        return self.database.name

    @property
    def signed_head(self) -> Head | None:
        """The latest head that this writer has signed, or knows from elsewhere."""
        return self._heads.known if self._heads is not None else None

    def believe(self, head: Head | None) -> None:
        """Take a head that was kept elsewhere for what this database had reached, if the operator stands for it."""
        if self._heads is not None:
            self._heads.believe(head, self.id)

    def stored_head(self) -> Head | None:
        """The signed head in the database, unchecked; None: it has none that can be read."""
        with self.database.read() as db:
            return _stored_head(db)[1]

    def close(self) -> None:
        """Close the database."""
        self.database.close()

    # --- writing -----------------------------------------------------------------------------

    def add(
        self,
        messages: Sequence[MessageRecord],
        dead: Sequence[DeadRecord] = (),
        transitions: Sequence[StepsRecord] = (),
    ) -> int:
        """Write records that are not there yet and sign where they end, all in one transaction; how many were new.

        Of transitions each step counts.

        Raises:
            AuditError: the disk is full, the server away, or the operator's key gone; nothing of the batch was
                written.
        """
        if not messages and not dead and not transitions:
            return 0
        signer = self._signer()
        try:
            # Nearly always all of them are new: looking first would cost every batch a look at every row.
            return self._add(messages, dead, transitions, signer, look=False)
        except IntegrityError:
            pass
        try:
            return self._add(messages, dead, transitions, signer, look=True)
        except IntegrityError as error:
            hint = "let `orchestra audit verify` say what was changed; nothing is lost meanwhile"
            raise AuditError(self.name, str(error.orig), hint) from error

    def _add(
        self,
        messages: Sequence[MessageRecord],
        dead: Sequence[DeadRecord],
        transitions: Sequence[StepsRecord],
        signer: Signer | None,
        *,
        look: bool,
    ) -> int:
        with self.database.write() as db:
            if look:
                messages, dead = _unwritten(db, messages), _unwritten_dead(db, dead)
            large = {record.body: record.body_octets for record in messages if record.body}
            if large:
                bodies.keep(db, large)
            transitions = [new for record in transitions if (new := _unwritten_steps(db, record)).steps]
            if not messages and not dead and not transitions:
                return 0
            before = self._ends(db)
            after = Head(
                database=self.id,
                messages=_append_messages(db, before.messages, messages) if messages else before.messages,
                dead_letters=_append_dead(db, before.dead_letters, dead) if dead else before.dead_letters,
                transitions=_append_steps(db, before.transitions, transitions)
                if transitions
                else before.transitions,
            )
            signed = None if signer is None else self._sign(db, before, after, signer)
        self._last = after.messages.seq
        if signed is not None and self._heads is not None:
            self._heads.known = signed
        return len(messages) + len(dead) + sum(len(record.steps) for record in transitions)

    def _signer(self) -> Signer | None:
        """The operator's signer; None where it does not sign: never in a database of which it has signed a part."""
        if self._heads is None:
            return None
        try:
            return self._heads.signer()
        except KeyringError as error:
            if self.stored_head() is None:
                self.unsigned = str(error)
                return None
            hint = "bring the operator's key (`orchestra keys export operator`); nothing is lost meanwhile"
            raise AuditError(self.name, f"its rows cannot be signed: {error}", hint) from error

    def _sign(self, db: Connection, before: Head, after: Head, signer: Signer) -> Head | None:
        """Sign where the tables end now; None: they were changed, and nobody vouches for what follows."""
        assert self._heads is not None
        try:
            there, stored = _stored_head(db)
            if there and stored is None:
                raise HeadChanged("the stored head cannot be read")
            head = self._heads.next(stored, before, after, signer)
        except HeadChanged as error:
            self.changed = str(error)
            return None
        if there:
            db.execute(HEADS.update().values(document=head.to_json()))
        else:
            db.execute(HEADS.insert().values(only=1, document=head.to_json()))
        return head

    def _ends(self, db: Connection) -> Head:
        """Where the tables end, unsigned."""
        return Head(
            database=self.id,
            messages=_end(db, "messages"),
            dead_letters=_end(db, "dead_letters"),
            transitions=_end(db, "transitions"),
        )

    # --- words -------------------------------------------------------------------------------

    def unindexed(self) -> int:
        """How many messages have no words in the index yet, as far as this writer knows."""
        if self._indexed is None:
            self._indexed, self._last = self.indexed(), self.ends().messages.seq
        return max(0, self._last - self._indexed)

    def indexed(self) -> int:
        """The number of the last message whose words are in the index."""
        with self.database.read() as db:
            return words.last(db)

    def index(self, most: int) -> int:
        """Put the words of up to so many messages into the index, oldest first; how many.

        Raises:
            AuditError: the database cannot be written to; nothing was.
        """
        if not self.unindexed():
            return 0
        with self.database.write() as db:
            start = words.last(db)
            query = select(MESSAGES.c.seq, MESSAGES.c.xml, BODIES.c.content).outerjoin(
                BODIES, BODIES.c.sha256 == MESSAGES.c.body
            )
            query = query.where(MESSAGES.c.seq > start).order_by(MESSAGES.c.seq).limit(most)
            texts, size, last = [], 0, start
            for seq, xml, content in db.execute(query):
                said = text_of(bytes(xml), bodies.body_of(bytes(content)) if content else b"")
                texts.append((seq, said))
                last, size = seq, size + len(said)
                if size > _TEXT_AT_ONCE:
                    break
            words.index(db, texts)
        self._indexed = last if texts else max(self._last, last)
        return len(texts)

    # --- taking out --------------------------------------------------------------------------

    def redact(self, message_id: str, reason: str, signer: Signer, *, at_ms: int) -> int:
        """Remove the text of every attempt of a message, and sign that; how many rows lost theirs.

        Raises:
            AuditError: nothing was removed.
        """
        with self.database.write() as db:
            query = select(MESSAGES.c.seq, MESSAGES.c.chain, MESSAGES.c.commitment).where(
                MESSAGES.c.message_id == message_id, MESSAGES.c.xml != b""
            )
            rows = db.execute(query).fetchall()
            for seq, chain, commitment in rows:
                # The chain of a row without a commitment covers the digest itself.
                digests = {"sha256": "", "salt": "", "body": ""} if commitment else {}
                db.execute(MESSAGES.update().where(MESSAGES.c.seq == seq).values(xml=b"", **digests))
                words.forget(db, seq, seq)
                redaction = Amendment(
                    kind=REDACTION, table="messages", seq=seq, chain=chain, reason=reason, at_ms=at_ms
                )
                self._amend(db, redaction, signer)
            if rows:
                bodies.forget(db)
                words.erase(db)
        self.database.forget_removed()
        return len(rows)

    def prune(self, before_ms: int, signer: Signer, *, at_ms: int, dry_run: bool = False) -> dict[str, int]:
        """Remove the oldest rows up to the first one that is not older, and sign that; how many of each table.

        A dead letter stays for as long as its message.

        Raises:
            AuditError: nothing was removed.
        """
        removed = {}
        with self.database.write() as db:
            for name, time in _TIMES.items():
                table, end = _CHAINED_TABLES[name], _end(db, name)
                first = db.execute(select(func.min(table.c.seq)).where(time >= before_ms)).scalar()
                last = end.seq if first is None else int(first) - 1
                gone = table.c.seq <= last
                removed[name] = int(db.execute(select(func.count()).where(gone)).scalar_one())
                if removed[name] and not dry_run:
                    self._remove(db, name, last, signer, at_ms)
                if name == "messages":
                    oldest = db.execute(select(func.min(MESSAGES.c.published_ms)).where(~gone)).scalar()
                    before_ms = min(before_ms, oldest or before_ms)
        return removed

    def _remove(self, db: Connection, name: str, last: int, signer: Signer, at_ms: int) -> None:
        table = _CHAINED_TABLES[name]
        gone = table.c.seq <= last
        chain = str(db.execute(select(table.c.chain).where(table.c.seq == last)).scalar_one())
        counts: Counter[str] = Counter()
        for known in _amendments(db):
            if known.kind == TOMBSTONE and known.table == name:
                counts.update(known.counts)
            elif known.kind == REDACTION and name == "messages" and known.seq <= last:
                db.execute(_same_amendment(known))
        if name != "dead_letters":
            entries = func.count() if name == "messages" else func.sum(TRANSITIONS.c.entries)
            rows = db.execute(select(table.c.stream, entries).where(gone).group_by(table.c.stream))
            counts.update({row[0]: int(row[1]) for row in rows})
        db.execute(table.delete().where(gone))
        if name == "messages":
            bodies.forget(db)
            words.forget(db, 0, last)
        if name == "transitions":
            db.execute(TRANSITION_SESSIONS.delete().where(TRANSITION_SESSIONS.c.seq <= last))
        tombstone = Amendment(
            kind=TOMBSTONE, table=name, seq=last, chain=chain, counts=dict(counts), at_ms=at_ms
        )
        self._amend(db, tombstone, signer)

    def _amend(self, db: Connection, amendment: Amendment, signer: Signer) -> None:
        """Sign an amendment and keep it in place of the one of the same name."""
        amendment = replace(amendment, database=self.id).signed_by(signer)
        db.execute(_same_amendment(amendment))
        db.execute(
            AMENDMENTS.insert().values(
                kind=amendment.kind, subject=amendment.subject, document=amendment.to_json()
            )
        )

    # --- reading -----------------------------------------------------------------------------

    def messages(
        self,
        *where: ColumnElement[bool],
        order: Sequence[ColumnElement[Any]] = (MESSAGES.c.seq,),
        limit: int | None = None,
    ) -> list[MessageRecord]:
        """The messages that every condition holds for, with the reason of those that are dead."""
        query = _MESSAGE_ROWS.where(*where).order_by(*order).limit(limit)
        return [_record(row) for row in self.query(query)]

    def each_message(
        self, *where: ColumnElement[bool], order: Sequence[ColumnElement[Any]] = (MESSAGES.c.seq,)
    ) -> Iterator[MessageRecord]:
        """The same one by one, without having all of them in memory."""
        return map(_record, self.each(_MESSAGE_ROWS.where(*where).order_by(*order)))

    def query(self, query: Executable) -> Sequence[Any]:
        """All rows of a reading query."""
        with self.database.read() as db:
            return db.execute(query).fetchall()

    def each(self, query: Executable) -> Iterator[Any]:
        """The rows of a reading query, a step at a time."""
        with (
            self.database.read() as db,
            db.execute(query, execution_options={"yield_per": _STEP, "stream_results": True}) as rows,
        ):
            yield from rows

    def counts(self) -> dict[str, int]:
        """How many entries of each stream were written, those included that the operator has removed."""
        query = select(MESSAGES.c.stream, func.count()).group_by(MESSAGES.c.stream)
        counts = Counter({row[0]: row[1] for row in self.query(query)})
        steps = select(TRANSITIONS.c.stream, func.sum(TRANSITIONS.c.entries)).group_by(TRANSITIONS.c.stream)
        counts.update({row[0]: int(row[1]) for row in self.query(steps)})
        for amendment in self.amendments():
            counts.update(amendment.counts)
        return dict(counts)

    def body(self, sha256: str) -> bytes | None:
        """A stored body as it was published; None: the trail does not have it."""
        rows = self.query(select(BODIES.c.content).where(BODIES.c.sha256 == sha256))
        return bodies.body_of(bytes(rows[0][0])) if rows else None

    def total(self) -> int:
        """How many messages are written."""
        return int(self.query(select(func.count()).select_from(MESSAGES))[0][0])

    def snapshot(self) -> AbstractContextManager[None]:
        """Everything that this thread reads inside is of one moment, whatever is written meanwhile."""
        return self.database.snapshot()

    def ends(self) -> Head:
        """Where the tables end, unsigned."""
        with self.database.read() as db:
            return self._ends(db)

    def chain_at(self, table: str, seq: int) -> str | None:
        """The chain of one row; None: there is no such row."""
        columns = _CHAINED_TABLES[table].c
        rows = self.query(select(columns.chain).where(columns.seq == seq))
        return rows[0][0] if rows else None

    def amendments(self) -> list[Amendment]:
        """What is said to have been taken out, unchecked; what cannot be read is left out, and stands for nothing."""
        with self.database.read() as db:
            return _amendments(db)

    def broken_chain(self, amended: Amended = NOT_AMENDED) -> Iterator[Break]:
        """Walk over the tables and name each row that does not fit its chain; ``amended``: what may be lacking."""
        for name, table in _CHAINED_TABLES.items():
            begin = amended.begins.get(name, End())
            chain, expected = begin.chain, begin.seq + 1
            chained_of = attrgetter(*CHAINED[name])
            for row in self.each(select(table).order_by(table.c.seq)):
                if row.seq != expected:
                    yield Break(
                        table=name, seq=expected, what=f"rows {expected} to {row.seq - 1} are missing"
                    )
                values = chained_of(row)
                if name == "messages":
                    values = (*values[:-1], row.commitment or row.sha256)
                if name == "transitions" and digest(row.document) != row.sha256:
                    yield Break(table=name, seq=row.seq, what="its entries are not what was published")
                is_redacted = (
                    name == "messages" and amended.redacted.get(row.seq) == row.chain and not row.xml
                )
                if name == "messages" and not is_redacted and not _is_committed(row):
                    yield Break(table=name, seq=row.seq, what="its XML is not what was published")
                elif _link(chain, values) != row.chain:
                    yield Break(table=name, seq=row.seq, what="its facts, or the row before it, were changed")
                chain, expected = row.chain, row.seq + 1
        yield from self._unindexed()
        yield from self._without_body()

    def _without_body(self) -> Iterator[Break]:
        """Messages whose stored body is not what their envelope names, or not there any more."""
        rows = self.each(select(BODIES.c.sha256, BODIES.c.content))
        bad = set(bodies.altered((row[0], row[1]) for row in rows))
        known = select(BODIES.c.sha256).where(BODIES.c.sha256 == MESSAGES.c.body).exists()
        query = select(MESSAGES.c.seq, MESSAGES.c.body, known).where(MESSAGES.c.body != "")
        for seq, sha256, there in self.each(query.order_by(MESSAGES.c.seq)):
            if not there or sha256 in bad:
                what = "its stored body is missing" if not there else "its stored body was changed"
                yield Break(table="messages", seq=seq, what=what)

    def _unindexed(self) -> Iterator[Break]:
        """Rows of transitions that a search for a session does not find: the index is made from them."""
        listed = self.each(select(TRANSITION_SESSIONS).order_by(TRANSITION_SESSIONS.c.seq))
        known = groupby(listed, key=attrgetter("seq"))
        seq, sessions = next(((seq, {row.session for row in rows}) for seq, rows in known), (0, set()))
        for row in self.each(select(TRANSITIONS.c.seq, TRANSITIONS.c.document).order_by(TRANSITIONS.c.seq)):
            while seq and seq < row.seq:
                seq, sessions = next(
                    ((seq, {row.session for row in rows}) for seq, rows in known), (0, set())
                )
            try:
                wanted = sessions_in(unpack(row.document))
            except ValueError:
                continue  # named above
            if wanted != (sessions if seq == row.seq else set()):
                yield Break(table="transitions", seq=row.seq, what="its index of sessions was changed")

    def unrefused(self) -> Iterator[Any]:
        """Every message with text and without a dead letter, for itself or for another attempt with the same octets."""
        refused = select(MESSAGES.c.sha256).join(
            DEAD_LETTERS,
            and_(DEAD_LETTERS.c.stream == MESSAGES.c.stream, DEAD_LETTERS.c.entry_id == MESSAGES.c.entry_id),
        )
        columns = [
            MESSAGES.c[name] for name in ("seq", "stream", "entry_id", "published_ms", "sha256", "xml")
        ]
        return self.each(
            select(*columns)
            .where(MESSAGES.c.sha256.not_in(refused), MESSAGES.c.xml != b"")
            .order_by(MESSAGES.c.seq)
        )


# --- rows ------------------------------------------------------------------------------------


_MADE: Final = ("seq", "chain", "salt", "commitment", "status", "body")
_MESSAGE_VALUES: Final = [c.name for c in MESSAGES.c if c.name not in _MADE]
_message_values: Final = attrgetter(*_MESSAGE_VALUES)
_dead_values: Final = attrgetter(*CHAINED["dead_letters"])


def _append_messages(db: Connection, end: End, records: Sequence[MessageRecord]) -> End:
    salts = os.urandom(_SALT * len(records)).hex()
    seq, chain, rows = end.seq, end.chain, []
    for number, record in enumerate(records):
        salt = salts[number * 2 * _SALT : (number + 1) * 2 * _SALT]
        commitment = commit(salt, record.sha256 + record.status + record.body)
        seq += 1
        values = _message_values(record)  # in the order of the chain, then the bytes and their digest
        chain = _link(chain, (*values[:-2], commitment))
        rows.append((seq, *values, chain, salt, commitment, record.status, record.body))
    bulk.write(db, MESSAGES, rows)
    return End(seq=seq, chain=chain)


def _append_dead(db: Connection, end: End, records: Sequence[DeadRecord]) -> End:
    seq, chain, rows = end.seq, end.chain, []
    for record in records:
        values = _dead_values(record)
        seq += 1
        chain = _link(chain, values)
        rows.append((seq, *values, chain))
    bulk.write(db, DEAD_LETTERS, rows)
    return End(seq=seq, chain=chain)


def _append_steps(db: Connection, end: End, records: Sequence[StepsRecord]) -> End:
    seq, chain, total, rows, about = end.seq, end.chain, end.entries, [], []
    for record in records:
        seq, total = seq + 1, total + len(record.steps)
        document = record.document
        first, last = record.steps[0].entry_id, record.steps[-1].entry_id
        facts = (record.stream, first, last, ms_of(first), ms_of(last), len(record.steps), total)
        sha256 = digest(document)
        chain = _link(chain, (*facts, record.received_ms, sha256))
        rows.append((seq, *facts, record.received_ms, document, sha256, chain))
        about += [(session, seq) for session in sessions_in(record.steps)]
    bulk.write(db, TRANSITIONS, rows)
    if about:
        bulk.write(db, TRANSITION_SESSIONS, about)
    return End(seq=seq, chain=chain, entries=total)


def _unwritten_steps(db: Connection, record: StepsRecord) -> StepsRecord:
    """Those that are not in the database, each once, in their order."""
    new = {step.entry_id: step for step in record.steps}
    ids = sorted(new, key=order_of)
    query = select(TRANSITIONS.c.document).where(
        TRANSITIONS.c.stream == record.stream,
        TRANSITIONS.c.last_ms >= ms_of(ids[0]),
        TRANSITIONS.c.first_ms <= ms_of(ids[-1]),
    )
    written = {step.entry_id for (document,) in db.execute(query) for step in unpack(document)}
    return replace(record, steps=[new[entry_id] for entry_id in ids if entry_id not in written])


def _unwritten(db: Connection, records: Sequence[MessageRecord]) -> list[MessageRecord]:
    """Those that are not in the database, each once."""
    new = {(record.stream, record.entry_id): record for record in reversed(records)}
    by_stream: dict[str, list[str]] = {}
    for stream, entry_id in new:
        by_stream.setdefault(stream, []).append(entry_id)
    for stream, ids in by_stream.items():
        query = select(MESSAGES.c.entry_id).where(MESSAGES.c.stream == stream, MESSAGES.c.entry_id.in_(ids))
        for (entry_id,) in db.execute(query):
            del new[stream, entry_id]
    return list(reversed(new.values()))


def _unwritten_dead(db: Connection, records: Sequence[DeadRecord]) -> list[DeadRecord]:
    new = {record.dead_id: record for record in reversed(records)}
    query = select(DEAD_LETTERS.c.dead_id).where(DEAD_LETTERS.c.dead_id.in_(new))
    for (dead_id,) in db.execute(query).fetchall():
        del new[dead_id]
    return list(reversed(new.values()))


def _end(db: Connection, table: str) -> End:
    entries = "total" if table == "transitions" else "0"
    row = db.exec_driver_sql(
        f"SELECT seq, chain, {entries} FROM {table} ORDER BY seq DESC LIMIT 1"  # noqa: S608 - names of ours
    ).fetchone()
    if row is None:  # nothing was ever written, or the operator has removed all of it
        query = select(AMENDMENTS.c.document).where(
            AMENDMENTS.c.kind == TOMBSTONE, AMENDMENTS.c.subject == table
        )
        document = db.execute(query).scalar()
        tombstone = Amendment.from_json(document) if document else None
        if tombstone is None:
            return End()
        removed = sum(tombstone.counts.values()) if table == "transitions" else 0
        return End(seq=tombstone.seq, chain=tombstone.chain, entries=removed)
    return End(seq=row[0], chain=row[1], entries=row[2])


def _amendments(db: Connection) -> list[Amendment]:
    rows = db.execute(select(AMENDMENTS.c.document).order_by(AMENDMENTS.c.kind, AMENDMENTS.c.subject))
    return [known for row in rows if (known := Amendment.from_json(row[0])) is not None]


def _same_amendment(amendment: Amendment) -> Delete:
    """Removes the amendment of the same name."""
    return AMENDMENTS.delete().where(
        AMENDMENTS.c.kind == amendment.kind, AMENDMENTS.c.subject == amendment.subject
    )


def _stored_head(db: Connection) -> tuple[bool, Head | None]:
    """Whether there is a head, and which; None: it cannot be read."""
    row = db.exec_driver_sql("SELECT document FROM heads").fetchone()
    return row is not None, Head.from_json(row[0]) if row else None


def _record(row: Any) -> MessageRecord:
    return MessageRecord(**row._mapping)  # noqa: SLF001 - the public name of it in SQLAlchemy


def commit(salt: str, sha256: str) -> str:
    """The commitment to a message's digest and that of its stored body, which says nothing about the message once the salt is gone."""
    return hashlib.sha256(f"{salt}{sha256}".encode()).hexdigest()


def _is_committed(row: Any) -> bool:
    """Whether the bytes of a message are those that its chain covers."""
    if hashlib.sha256(row.xml).hexdigest() != row.sha256:
        return False
    return not row.commitment or commit(row.salt, row.sha256 + row.status + row.body) == row.commitment


def _link(chain: str, values: Sequence[Any]) -> str:
    """The chain after a row: SHA-256 of a JSON list of the chain before and the row's values."""
    return hashlib.sha256(_JSON.dump_json([chain, *values])).hexdigest()

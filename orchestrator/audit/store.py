"""The audit database: rows are only ever added, by its writer and by changes that it records, and read by anybody.

The operator signs where the tables end, in the same transaction as their rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Executable, and_, func, select
from sqlalchemy.exc import IntegrityError

from orchestrator.audit import chain, records, words
from orchestrator.audit.amendments import Amendment, end_of, read_amendments
from orchestrator.audit.database import (
    BODIES,
    DEAD_LETTERS,
    HEADS,
    MESSAGES,
    METADATA,
    TRANSITION_SESSIONS,
    TRANSITIONS,
    Database,
)
from orchestrator.audit.heads import TABLES, Head, HeadChanged, HeadSigner
from orchestrator.audit.records import DeadRecord, MessageRecord
from orchestrator.audit.text import text_of
from orchestrator.audit.transitions import StepsRecord, Transition, order_of, transitions_of, unpack
from orchestrator.audit.words import index_faults
from orchestrator.envelope.signature import Signer
from orchestrator.errors import AuditError, KeyringError

#: Rows that one fetch takes while a whole table is walked over.
_STEP: Final = 1000
#: Characters that are indexed in one transaction, give or take one message.
_TEXT_AT_ONCE: Final = 16 * 1024 * 1024
#: A dead letter of a message.
_DIED: Final = and_(
    DEAD_LETTERS.c.stream == MESSAGES.c.stream, DEAD_LETTERS.c.entry_id == MESSAGES.c.entry_id
)
_WHY_DEAD: Final = func.coalesce(
    select(DEAD_LETTERS.c.rule + ": " + DEAD_LETTERS.c.reason)
    .where(_DIED)
    .order_by(DEAD_LETTERS.c.seq)
    .limit(1)
    .scalar_subquery(),
    "",
)
#: Messages that became dead letters.
IS_DEAD: Final = select(DEAD_LETTERS.c.seq).where(_DIED).exists()
_MESSAGE_ROWS: Final = select(
    *(column for column in MESSAGES.c if column.name != "octets"), _WHY_DEAD.label("dead")
)
#: All that the text of a message is made of, in the order of the rows.
_TEXT_ROWS: Final = (
    select(MESSAGES.c.seq, MESSAGES.c.message_id, MESSAGES.c.xml, BODIES)
    .outerjoin(BODIES, BODIES.c.sha256 == MESSAGES.c.body)
    .order_by(MESSAGES.c.seq)
)


class AuditStore:
    """An audit database. Safe to share between threads."""

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
        #: The name of this database among all, for as long as it lives.
        self.id = self.database.id
        #: Where the database is, without a password.
        self.name = self.database.name

    @property
    def signed_head(self) -> Head | None:
        """The latest head that this writer has signed, or knows from elsewhere."""
        return self._heads.known if self._heads is not None else None

    def believe(self, head: Head | None) -> None:
        """Accept a head that was kept elsewhere as the state that this database had reached, if the operator signed
        it.
        """
        if self._heads is not None:
            self._heads.believe(head, self.id)

    def stored_head(self) -> Head | None:
        """Return the signed head in the database, unchecked; None if it has none that can be read."""
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
                messages, dead = chain.unwritten_messages(db, messages), chain.unwritten_dead(db, dead)
            large = {record.body: record.body_octets for record in messages if record.body}
            if large:
                records.keep(db, large)
            transitions = [new for record in transitions if (new := chain.unwritten_steps(db, record)).steps]
            if not messages and not dead and not transitions:
                return 0
            before = self._ends(db)
            after = Head(
                database=self.id,
                messages=chain.append_messages(db, before.messages, messages),
                dead_letters=chain.append_dead(db, before.dead_letters, dead),
                transitions=chain.append_steps(db, before.transitions, transitions),
            )
            signed = None if signer is None else self._sign(db, before, after, signer)
        self._last = after.messages.seq
        if signed is not None and self._heads is not None:
            self._heads.known = signed
        return len(messages) + len(dead) + sum(len(record.steps) for record in transitions)

    def _signer(self) -> Signer | None:
        """Return the operator's signer; None if it does not sign: never in a database of which it has signed a part."""
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
        """Sign the present ends of the tables; None if the tables were changed, so that what follows cannot be
        attested.
        """
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
            db.execute(HEADS.update().values(document=head.to_text()))
        else:
            db.execute(HEADS.insert().values(only=1, document=head.to_text()))
        return head

    def _ends(self, db: Connection) -> Head:
        messages, dead_letters, transitions = (end_of(db, table) for table in TABLES)
        return Head(database=self.id, messages=messages, dead_letters=dead_letters, transitions=transitions)

    # --- words -------------------------------------------------------------------------------

    def unindexed(self) -> int:
        """Return how many messages have no words in the index yet, as far as this writer knows."""
        if self._indexed is None:
            self._indexed, self._last = self.indexed(), self.ends().messages.seq
        return max(0, self._last - self._indexed)

    def indexed(self) -> int:
        """Return the number of the last message whose words are in the index."""
        with self.database.read() as db:
            return words.last(db)

    def index(self, most: int) -> int:
        """Add the words of up to ``most`` messages to the index, oldest first; return how many messages.

        Raises:
            AuditError: the database cannot be written to; nothing was.
        """
        if not self.unindexed():
            return 0
        with self.database.write() as db:
            start = words.last(db)
            texts = _texts_after(db, start, most)
            words.index(db, texts)
        self._indexed = texts[-1][0] if texts else max(self._last, start)
        return len(texts)

    def misindexed(self) -> Iterator[int]:
        """Yield the messages that a search by their words may miss: somebody has changed the index. What is not
        indexed yet is read.
        """
        for row in self.each(_TEXT_ROWS.where(MESSAGES.c.seq <= self.indexed())):
            with self.database.read() as db:
                if not words.is_whole(db, row.seq, _text(*row[1:])):
                    yield row.seq

    def index_faults(self) -> Iterator[tuple[str, str]]:
        """Yield the tables of which a search may miss rows, as SQLite's own tables were changed, and what is wrong."""
        return iter(()) if self.database.path is None else index_faults(self.database.path)

    # --- reading -----------------------------------------------------------------------------

    def messages(
        self,
        *where: ColumnElement[bool],
        order: Sequence[ColumnElement[Any]] = (MESSAGES.c.seq,),
        limit: int | None = None,
    ) -> list[MessageRecord]:
        """Return the messages that every condition holds for, with the reason of those that are dead."""
        query = _MESSAGE_ROWS.where(*where).order_by(*order).limit(limit)
        return [_record(row) for row in self.query(query)]

    def each_message(
        self, *where: ColumnElement[bool], order: Sequence[ColumnElement[Any]] = (MESSAGES.c.seq,)
    ) -> Iterator[MessageRecord]:
        """Yield the same one by one, without having all of them in memory."""
        return map(_record, self.each(_MESSAGE_ROWS.where(*where).order_by(*order)))

    def query(self, query: Executable) -> Sequence[Any]:
        """Return all rows of a reading query."""
        with self.database.read() as db:
            return db.execute(query).fetchall()

    def each(self, query: Executable) -> Iterator[Any]:
        """Yield the rows of a reading query, a step at a time."""
        with (
            self.database.read() as db,
            db.execute(query, execution_options={"yield_per": _STEP, "stream_results": True}) as rows,
        ):
            yield from rows

    def counts(self) -> dict[str, int]:
        """Return how many entries of each stream were written, those included that the operator has removed."""
        query = select(MESSAGES.c.stream, func.count()).group_by(MESSAGES.c.stream)
        counts = Counter({row[0]: row[1] for row in self.query(query)})
        steps = select(TRANSITIONS.c.stream, func.sum(TRANSITIONS.c.entries)).group_by(TRANSITIONS.c.stream)
        counts.update({row[0]: int(row[1]) for row in self.query(steps)})
        for amendment in self.amendments():
            counts.update(amendment.counts)
        return dict(counts)

    def body(self, sha256: str) -> bytes | None:
        """Return a stored body as it was published; None if the trail does not have it, or somebody has changed it
        there.
        """
        if not sha256:
            return None
        rows = self.query(select(BODIES.c.content).where(BODIES.c.sha256 == sha256))
        return records.body_of(sha256, bytes(rows[0][0])) if rows else None

    def total(self) -> int:
        """Return the number of messages written."""
        return int(self.query(select(func.count()).select_from(MESSAGES))[0][0])

    def ends(self) -> Head:
        """Return the ends of the tables, unsigned."""
        with self.database.read() as db:
            return self._ends(db)

    def chain_at(self, table: str, seq: int) -> str | None:
        """Return the chain of one row; None if there is no such row."""
        columns = METADATA.tables[table].c
        rows = self.query(select(columns.chain).where(columns.seq == seq))
        return rows[0][0] if rows else None

    def amendments(self) -> list[Amendment]:
        """Return the operator's amendments, unchecked."""
        with self.database.read() as db:
            return read_amendments(db)

    def unrefused(self) -> Iterator[Any]:
        """Yield every message with text and without a dead letter, for itself or for another attempt with the same
        octets.
        """
        refused = select(MESSAGES.c.sha256).join(DEAD_LETTERS, _DIED)
        columns = [
            MESSAGES.c[name] for name in ("seq", "stream", "entry_id", "published_ms", "sha256", "xml")
        ]
        return self.each(
            select(*columns)
            .where(MESSAGES.c.sha256.not_in(refused), MESSAGES.c.xml != b"")
            .order_by(MESSAGES.c.seq)
        )


def _texts_after(db: Connection, start: int, most: int) -> list[tuple[int, str]]:
    """Return the texts of up to ``most`` messages that follow upon a row, fewer of long ones."""
    texts, size = [], 0
    for seq, *row in db.execute(_TEXT_ROWS.where(MESSAGES.c.seq > start).limit(most)):
        texts.append((seq, _text(*row)))
        size += len(texts[-1][1])
        if size > _TEXT_AT_ONCE:
            break
    return texts


def _text(message_id: str, xml: bytes, sha256: str | None, content: bytes | None) -> str:
    """Return the text of a message, with its stored body."""
    stored = records.body_of(sha256, bytes(content or b"")) if sha256 else None
    return text_of(bytes(xml), stored or b"", known=bool(message_id))


def _stored_head(db: Connection) -> tuple[bool, Head | None]:
    """Return True if there is a head, and the head; None if it cannot be read."""
    row = db.exec_driver_sql("SELECT document FROM heads").fetchone()
    return row is not None, Head.from_text(row[0]) if row else None


def _record(row: Any) -> MessageRecord:
    return MessageRecord(**row._mapping)  # noqa: SLF001 - the public name of it in SQLAlchemy


_T = TRANSITIONS.c
#: Digits of a number that no database holds.
_DIGITS = 19


class Changes:
    """Reads the transitions of an audit database that others may be writing to."""

    def __init__(self, store: AuditStore) -> None:
        self._store = store

    def page(
        self,
        *,
        session: str | None = None,
        kind: str | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        before: str | None = None,
        limit: int = 100,
    ) -> tuple[list[Transition], str | None]:
        """Return the latest changes that meet every condition, newest first, and the start of the next page; None if
        none.

        Raises:
            ValueError: ``before`` is not what a page says.
        """
        found = self._newest_first(session, since_ms, until_ms, _place(before) if before else None)
        wanted = (
            (place, change)
            for place, change in found
            if (kind is None or change.kind == kind)
            and (session is None or change.session == session)
            and (since_ms is None or change.at_ms >= since_ms)
            and (until_ms is None or change.at_ms < until_ms)
        )
        page = list(islice(wanted, limit))
        following = "{}.{}".format(*page[-1][0]) if len(page) == limit else None
        return [change for _, change in page], following

    def of(self, session: str | None) -> list[Transition]:
        """Return every change of a session, or of all of them, oldest first."""
        # A row that was written later may hold entries that were read earlier, by another writer.
        found = self.page(session=session, limit=1 << 31)[0][::-1]
        return sorted(found, key=lambda change: (change.stream, *order_of(change.entry_id)))

    def _newest_first(
        self,
        session: str | None,
        since_ms: int | None,
        until_ms: int | None,
        before: tuple[int, int] | None,
    ) -> Iterator[tuple[tuple[int, int], Transition]]:
        conditions: list[ColumnElement[bool]] = []
        if session is not None:
            about = select(TRANSITION_SESSIONS.c.seq).where(TRANSITION_SESSIONS.c.session == session)
            conditions.append(_T.seq.in_(about))
        if since_ms is not None:
            conditions.append(_T.last_ms >= since_ms)
        if until_ms is not None:
            conditions.append(_T.first_ms < until_ms)
        if before is not None:
            conditions.append(_T.seq <= before[0])
        query = select(_T.seq, _T.stream, _T.document).where(*conditions).order_by(_T.seq.desc())
        for seq, stream, document in self._store.each(query):
            changes = [change for step in unpack(document) for change in transitions_of(stream, step)]
            for number in range(len(changes) - 1, -1, -1):
                if before is None or (seq, number) < before:
                    yield (seq, number), changes[number]


def _place(text: str) -> tuple[int, int]:
    row, _, number = text.partition(".")
    if not all(part.isascii() and part.isdigit() and len(part) < _DIGITS for part in (row, number)):
        raise ValueError(f"{text!r} is not what a page says, like 12.34")
    return int(row), int(number)

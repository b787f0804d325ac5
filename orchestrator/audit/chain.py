"""The hash chain of each table: new rows are told from written ones, appended, and linked.

Each row's ``chain`` is a hash over the row and the chain of the row before, so that changing, removing or
inserting a row anywhere shows in every later one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final

from pydantic_core import to_json
from sqlalchemy import BigInteger, Connection, Integer, LargeBinary, Table, Text, insert, select
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, IntegrityError

from orchestrator import machine
from orchestrator.audit import database
from orchestrator.audit.database import CHAINED, DEAD_LETTERS, MESSAGES, TRANSITION_SESSIONS, TRANSITIONS
from orchestrator.audit.heads import End
from orchestrator.audit.records import DeadRecord, MessageRecord
from orchestrator.audit.transitions import StepsRecord, ms_of, order_of, sessions_in, unpack

#: PostgreSQL's names for the types of the schema.
_TYPES: Final = {
    BigInteger: "int8",
    Integer: "int4",
    Text: "text",
    LargeBinary: "bytea",
    database.Packed: "bytea",
}


def write(db: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Write rows that have a value for each column of the table, in the order of its columns.

    Raises:
        IntegrityError: a row is there already; the transaction can only be rolled back.
        DBAPIError: the database refused something.
    """
    if not rows:
        return
    if db.dialect.name == "sqlite":
        db.exec_driver_sql(_insert(db.dialect, table), list(rows))
    else:
        copy(db, table.name, [column.name for column in table.c], rows, types=_types(table))


def copy(
    db: Connection,
    table: str,
    columns: Sequence[str],
    rows: Iterable[tuple[Any, ...]],
    *,
    types: Sequence[str] = (),
) -> None:
    """Write rows to a table of PostgreSQL with COPY: in its binary form if the types of the columns are given.

    Raises:
        IntegrityError: a row is there already; the transaction can only be rolled back.
        DBAPIError: the database refused something.
    """
    statement = f"COPY {table} ({', '.join(columns)}) FROM STDIN" + " (FORMAT BINARY)" * bool(types)
    driver: Any = db.connection
    errors: Any = db.dialect.loaded_dbapi
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as stream:
            if types:
                stream.set_types(types)
            for row in rows:
                stream.write_row(row)
    except errors.IntegrityError as error:
        raise IntegrityError(statement, None, error) from error
    except errors.Error as error:
        gone = bool(driver.driver_connection.closed)
        raise DBAPIError(statement, None, error, connection_invalidated=gone) from error


@lru_cache(maxsize=8)
def _insert(dialect: Dialect, table: Table) -> str:
    """Return the driver's own spelling of an insert with a value for each column in order."""
    return str(insert(table).compile(dialect=dialect))


@lru_cache(maxsize=8)
def _types(table: Table) -> list[str]:
    return [_TYPES[type(column.type)] for column in table.c]


#: Octets of the random salt of a commitment.
_SALT: Final = 16
#: In the order of the chain, without the digest at its end.
_message_values: Final = attrgetter(*CHAINED["messages"][:-1])
_dead_values: Final = attrgetter(*CHAINED["dead_letters"])


def append_messages(db: Connection, end: End, records: Sequence[MessageRecord]) -> End:
    """Append messages to their table, which ends at ``end``; where it ends then."""
    salts = machine.token_hex(_SALT * len(records))
    seq, chain, rows = end.seq, end.chain, []
    for number, record in enumerate(records):
        salt = salts[number * 2 * _SALT : (number + 1) * 2 * _SALT]
        commitment = commit(salt, record.sha256 + record.status + record.body)
        seq += 1
        values = _message_values(record)
        chain = link(chain, (*values, commitment))
        proofs = (record.sha256, chain, salt, commitment, record.status, record.body)
        rows.append((seq, *values, len(record.xml), database.pack(record.xml), *proofs))
    write(db, MESSAGES, rows)
    return End(seq=seq, chain=chain)


def append_dead(db: Connection, end: End, records: Sequence[DeadRecord]) -> End:
    """Append dead letters to their table, which ends at ``end``; where it ends then."""
    seq, chain, rows = end.seq, end.chain, []
    for record in records:
        values = _dead_values(record)
        seq += 1
        chain = link(chain, values)
        rows.append((seq, *values, chain))
    write(db, DEAD_LETTERS, rows)
    return End(seq=seq, chain=chain)


def append_steps(db: Connection, end: End, records: Sequence[StepsRecord]) -> End:
    """Append steps of the ledger to their table, which ends at ``end``; where it ends then."""
    seq, chain, total, rows, about = end.seq, end.chain, end.entries, [], []
    for record in records:
        seq, total = seq + 1, total + len(record.steps)
        document = record.document
        first, last = record.steps[0].entry_id, record.steps[-1].entry_id
        facts = (record.stream, first, last, ms_of(first), ms_of(last), len(record.steps), total)
        sha256 = hashlib.sha256(document).hexdigest()
        chain = link(chain, (*facts, record.received_ms, sha256))
        rows.append((seq, *facts, record.received_ms, document, sha256, chain))
        about += [(session, seq) for session in sessions_in(record.steps)]
    write(db, TRANSITIONS, rows)
    write(db, TRANSITION_SESSIONS, about)
    return End(seq=seq, chain=chain, entries=total)


def unwritten_steps(db: Connection, record: StepsRecord) -> StepsRecord:
    """Return the steps that are not in the database, each once, in their order."""
    new = {step.entry_id: step for step in record.steps}
    ids = sorted(new, key=order_of)
    query = select(TRANSITIONS.c.document).where(
        TRANSITIONS.c.stream == record.stream,
        TRANSITIONS.c.last_ms >= ms_of(ids[0]),
        TRANSITIONS.c.first_ms <= ms_of(ids[-1]),
    )
    written = {step.entry_id for (document,) in db.execute(query) for step in unpack(document)}
    return replace(record, steps=[new[entry_id] for entry_id in ids if entry_id not in written])


def unwritten_messages(db: Connection, records: Sequence[MessageRecord]) -> list[MessageRecord]:
    """Return the messages that are not in the database, each once."""
    new = {(record.stream, record.entry_id): record for record in reversed(records)}
    by_stream: dict[str, list[str]] = {}
    for stream, entry_id in new:
        by_stream.setdefault(stream, []).append(entry_id)
    for stream, ids in by_stream.items():
        query = select(MESSAGES.c.entry_id).where(MESSAGES.c.stream == stream, MESSAGES.c.entry_id.in_(ids))
        for (entry_id,) in db.execute(query):
            del new[stream, entry_id]
    return list(reversed(new.values()))


def unwritten_dead(db: Connection, records: Sequence[DeadRecord]) -> list[DeadRecord]:
    """Return the dead letters that are not in the database, each once."""
    new = {record.dead_id: record for record in reversed(records)}
    query = select(DEAD_LETTERS.c.dead_id).where(DEAD_LETTERS.c.dead_id.in_(new))
    for (dead_id,) in db.execute(query).fetchall():
        del new[dead_id]
    return list(reversed(new.values()))


def commit(salt: str, sha256: str) -> str:
    """Return the commitment to a message's digest and that of its stored body, which says nothing about the message
    once the salt is gone.
    """
    return hashlib.sha256(f"{salt}{sha256}".encode()).hexdigest()


def link(chain: str, values: Sequence[Any]) -> str:
    """Return the chain after a row: SHA-256 of a JSON list of the chain before and the row's values."""
    return hashlib.sha256(to_json([chain, *values])).hexdigest()

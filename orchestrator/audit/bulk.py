"""Many rows at once: `executemany` for SQLite, COPY for PostgreSQL, past what SQLAlchemy does for each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Integer, LargeBinary, Table, Text, insert
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, IntegrityError

#: PostgreSQL's names for the types of the schema.
_TYPES: Final = {BigInteger: "int8", Integer: "int4", Text: "text", LargeBinary: "bytea"}


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

"""The trail as a file: every row of every table as a JSON line, compressed with zstd, and back."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any, Final

import zstandard
from sqlalchemy import LargeBinary, insert, select
from sqlalchemy.exc import IntegrityError

from orchestrator.audit.amendments import end_of
from orchestrator.audit.database import (
    AMENDMENTS,
    BODIES,
    DEAD_LETTERS,
    FACTS,
    HEADS,
    MESSAGES,
    METADATA,
    REVISION,
    TRANSITION_SESSIONS,
    TRANSITIONS,
    Packed,
)
from orchestrator.audit.heads import TABLES
from orchestrator.audit.store import AuditStore
from orchestrator.errors import AuditError, InputError

_FORMAT: Final = "agent-orchestra audit trail"
_TABLES: Final = (FACTS, AMENDMENTS, BODIES, MESSAGES, DEAD_LETTERS, TRANSITIONS, TRANSITION_SESSIONS, HEADS)
#: Columns that hold octets, which a line has in base64.
_OCTETS: Final = {
    table.name: column.name
    for table in _TABLES
    for column in table.c
    if isinstance(column.type, (LargeBinary, Packed))
}
#: Rows that one statement writes.
_STEP: Final = 500
#: Octets of the longest line that is read.
_LONGEST: Final = 1 << 30


def export(store: AuditStore, target: Path) -> int:
    """Write the trail as it is at one moment; how many messages. The file is there once it is whole.

    Raises:
        AuditError: the database cannot be read, or the file not written.
    """
    part, messages = target.with_name(f"{target.name}.part"), 0
    try:
        part.touch(mode=0o600)
        with part.open("wb") as raw, zstandard.ZstdCompressor(level=6).stream_writer(raw) as out:
            out.write(_line({"format": _FORMAT, "revision": REVISION, "database": store.id}))
            with store.database.snapshot():
                for table in _TABLES:
                    for row in store.each(select(table).order_by(*table.primary_key)):
                        values = dict(row._mapping)  # noqa: SLF001 - the public name of it in SQLAlchemy
                        if table is MESSAGES:
                            messages += 1
                        if octets := _OCTETS.get(table.name):
                            values[octets] = b64encode(values[octets]).decode()
                        out.write(_line({"table": table.name, **values}))
            out.write(_line({"end": messages}))
        part.replace(target)
    except OSError as error:
        raise AuditError(target, str(error), "choose a file that can be written") from error
    finally:
        part.unlink(missing_ok=True)
    return messages


def load(source: Path, store: AuditStore) -> int:
    """Write an exported trail into a database that is empty; how many messages. All of it is written, or nothing.

    Raises:
        AuditError: the file is not a whole exported trail, or the database is not empty.
    """
    messages = 0
    try:
        with store.database.write() as db:
            if any(end_of(db, table).seq for table in TABLES):
                raise AuditError(store.name, "it is not empty", "import into a new database")
            db.execute(FACTS.delete())
            for table, rows in _batches(source):
                db.execute(insert(METADATA.tables[table]), rows)
                messages += len(rows) if table == MESSAGES.name else 0
            if db.execute(select(FACTS.c.value).where(FACTS.c.name == "id")).scalar() is None:
                raise AuditError(source, "it does not name its database", "export it again")
    except (IntegrityError, InputError) as error:
        raise AuditError(source, f"a row of it does not fit: {error}", "export it again") from error
    return messages


def _batches(source: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    name, rows = "", list[dict[str, Any]]()
    for values in _lines(source):
        table = str(values.pop("table"))
        if rows and (table != name or len(rows) == _STEP):
            yield name, rows
            rows = []
        name = table
        rows.append(values)
    if rows:
        yield name, rows


def _lines(source: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the file, between its first line and its last."""
    tables = {table.name: {column.name for column in table.c} for table in _TABLES}
    whole = False
    try:
        with source.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as packed:
            # A longer line is cut, so that it is no JSON.
            lines = iter(partial(BufferedReader(packed).readline, _LONGEST), b"")
            head = json.loads(next(lines, b"null"))
            if (
                not isinstance(head, dict)
                or head.get("format") != _FORMAT
                or head.get("revision") != REVISION
            ):
                raise AuditError(
                    source, f"it is not an exported trail of revision {REVISION}", "name another file"
                )
            for values in map(json.loads, lines):
                if not isinstance(values, dict):
                    raise TypeError("a line of it is not a row of the trail")
                if "end" in values:
                    whole = True
                    break
                if tables.get(str(values.get("table"))) != values.keys() - {"table"}:
                    raise TypeError("a line of it is not a row of the trail")
                if octets := _OCTETS.get(values["table"]):
                    values[octets] = b64decode(values[octets])
                yield values
    except (OSError, ValueError, TypeError, RecursionError, zstandard.ZstdError) as error:
        raise AuditError(source, str(error), "name a file that `orchestra audit export` wrote") from error
    if not whole:
        raise AuditError(source, "its end is missing", "export it again")


def _line(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"

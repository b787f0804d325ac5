"""Check that the indexes of a SQLite file match its tables: whoever may write to the file may write into these, too.

PostgreSQL keeps its indexes itself: a statement reaches its tables only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from orchestrator.errors import AuditError

#: How words are looked up; made by version 6.
_OPTIONS: Final = "columnsize=0, tokenize='unicode61 remove_diacritics 0'"
_MADE: Final = f"CREATE VIRTUAL TABLE message_words USING fts5(words, {_OPTIONS})"
#: The index of words as SQLite keeps it, and that over which its check runs: to be asked of the file itself, it
#: would have to be opened for writing.
_COPIED: Final = ("data", "idx", "config")
_COPY: Final = (
    "CREATE TEMP VIEW indexed AS SELECT id, c0 FROM main.message_words_content",
    f"CREATE VIRTUAL TABLE temp.copy USING fts5(c0, content='indexed', content_rowid='id', {_OPTIONS})",
    *(f"DELETE FROM temp.copy_{part}" for part in _COPIED),  # noqa: S608
    *(f"INSERT INTO temp.copy_{part} SELECT * FROM main.message_words_{part}" for part in _COPIED),  # noqa: S608
    "INSERT INTO temp.copy (copy, rank) VALUES ('integrity-check', 1)",
)
#: What SQLite calls damage: tables that are not what they should be, or not there.
_DAMAGE: Final = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR}


def index_faults(path: Path) -> Iterator[tuple[str, str]]:
    """Yield where a search by an index of this file may miss rows: the table, and what is wrong.

    Raises:
        AuditError: it cannot be found out.
    """
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            for (answer,) in db.execute("PRAGMA integrity_check(1)").fetchall():
                if answer != "ok":
                    yield "messages", f"SQLite says: {answer}; `REINDEX` makes its indexes anew"
            made = db.execute("SELECT sql FROM sqlite_master WHERE name = 'message_words'").fetchone()
            if made != (_MADE,):
                yield "message_words", f"the index of searches is not the one that was made: {_MADE}"
            elif _is_damaged(db):
                anew = "INSERT INTO message_words (message_words) VALUES ('rebuild')"
                yield (
                    "message_words",
                    f"the index of searches does not hold its words; to make it anew: {anew}",
                )
    except sqlite3.Error as error:
        raise AuditError(str(path), str(error), "check the file, and the room for temporary files") from error


def _is_damaged(db: sqlite3.Connection) -> bool:
    try:
        for statement in _COPY:
            db.execute(statement)
    except sqlite3.Error as error:
        if error.sqlite_errorcode & 0xFF not in _DAMAGE:
            raise
        return True
    return False

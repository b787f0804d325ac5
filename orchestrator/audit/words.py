"""The full-text index of the trail: which words each message has, for SQLite's FTS5 and PostgreSQL's tsvector.

Words are split here, so that both databases find the same. A long text is several rows, which share a few words, so
that no row is too long for PostgreSQL and a phrase is found across them. The writer indexes when nothing else is to be
written. Each message has at least one row, so that the last row says how far it has come; what follows is searched
without an index.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text

from orchestrator.audit import chain
from orchestrator.errors import AuditError

_WORD: Final = re.compile(r"[^\W_]+")
#: What becomes of each character of ASCII: a letter small, a digit itself, anything else a blank.
_ASCII: Final = {code: chr(code).lower() if chr(code).isalnum() else " " for code in range(128)}
#: Signs between words for which most texts are not of ASCII alone: dashes, quotation marks, an ellipsis.
_SIGNS: Final = "–—‘’“”…"
#: Characters by which words differ: PostgreSQL's are shorter than 2 KiB.
_LONGEST: Final = 200
#: Words of a row, and those that it shares with the one before: PostgreSQL knows 16,383 places.
_STEP: Final = 10_000
_SHARED: Final = 50
#: Places of one word in a row, and characters of all: PostgreSQL forgets places from 256 on, and takes up to 1 MiB.
_OFTEN: Final = 250
_ROOM: Final = 200_000
#: The places of the words of a row, as PostgreSQL spells them.
_PLACES: Final = [str(number) for number in range(1, _STEP + _SHARED + 1)]
#: Rows of one message, and their place in the number of a row: enough for 64 MiB of one word.
_PARTS: Final = 1 << 18


def words_of(content: str) -> list[str]:
    """Return the words of a text, in order, in lower case."""
    # The first way gives the same as the second one in a quarter of its time.
    if not content.isascii():
        for sign in _SIGNS:
            content = content.replace(sign, " ")
    words = content.translate(_ASCII).split() if content.isascii() else _WORD.findall(content.casefold())
    return [word[:_LONGEST] for word in words] if len(max(words, key=len, default="")) > _LONGEST else words


def has_words(content: str, phrase: Sequence[str]) -> bool:
    """Return True if the words follow each other in a text."""
    return f" {' '.join(phrase)} " in f" {' '.join(words_of(content))} "


def index(db: Connection, texts: Sequence[tuple[int, str]]) -> None:
    """Add the texts of messages, given with their numbers."""
    if not texts:
        return
    rows = (
        (seq * _PARTS + part, words)
        for seq, content in texts
        for part, words in enumerate(_parts(words_of(content)))
    )
    if db.dialect.name == "sqlite":
        spelt = [(number, " ".join(words)) for number, words in rows]
        db.exec_driver_sql("INSERT INTO message_words (rowid, words) VALUES (?, ?)", spelt)
    else:
        chain.copy(
            db, "message_words", ("rowid", "words"), ((number, _vector(words)) for number, words in rows)
        )


def last(db: Connection) -> int:
    """Return the number of the last message that is indexed; 0: none is."""
    rowid = db.execute(text("SELECT rowid FROM message_words ORDER BY rowid DESC LIMIT 1")).scalar()
    return int(rowid or 0) // _PARTS


def is_whole(db: Connection, seq: int, content: str) -> bool:
    """Return True if the words of a message are what :func:`index` has written of its text."""
    limits = {"first": seq * _PARTS, "last": (seq + 1) * _PARTS - 1}
    query = text("SELECT rowid, words FROM message_words WHERE rowid BETWEEN :first AND :last ORDER BY rowid")
    rows = {int(number): str(words) for number, words in db.execute(query, limits)}
    if not content and not rows:
        return True  # the operator has removed its text
    expected = dict(enumerate(_parts(words_of(content)), seq * _PARTS))
    return rows.keys() == expected.keys() and all(
        _is_row(db, rows[number], words) for number, words in expected.items()
    )


def _is_row(db: Connection, row: str, words: Sequence[str]) -> bool:
    """Return True if a row has these words, each in its place."""
    if db.dialect.name == "sqlite":
        return row == " ".join(words)
    vector = {part.replace(":", "':", 1) for part in _vector(words).split()}
    return set(row.split()) == {f"'{part}" for part in vector}


def forget(db: Connection, first: int, final: int) -> None:
    """Remove the words of the messages from one number to another."""
    limits = {"first": first * _PARTS, "last": (final + 1) * _PARTS - 1}
    db.execute(text("DELETE FROM message_words WHERE rowid BETWEEN :first AND :last"), limits)


def erase(db: Connection) -> None:
    """Erase removed words from a SQLite file; PostgreSQL erases them when it vacuums the table."""
    if db.dialect.name == "sqlite":
        db.exec_driver_sql("INSERT INTO message_words (message_words) VALUES ('optimize')")


def find(db: Connection, phrase: Sequence[str], *, below: int, most: int, above: int = 0) -> list[int]:
    """Return the numbers of the newest messages that have the words one after the other; not more than ``most`` rows'
    worth.

    Of those between two numbers, which are not among them.
    """
    sqlite = db.dialect.name == "sqlite"
    if sqlite:
        # FTS5 matches its own table by name; the words hold no quotation marks.
        condition, query = "message_words MATCH :query", f'"{" ".join(phrase)}"'
    else:
        condition, query = "words @@ CAST(:query AS tsquery)", " <-> ".join(f"'{word}'" for word in phrase)
    values: dict[str, Any] = {
        "query": query,
        "above": (above + 1) * _PARTS,
        "below": below * _PARTS,
        "most": most,
    }
    source, where = "message_words", f"{condition} AND "
    if not sqlite and not above and not _is_frequent(db, condition, values):
        # PostgreSQL guesses that rare words are frequent ones, and would look through the whole table for them.
        source = (
            f"(WITH found AS MATERIALIZED (SELECT rowid FROM message_words WHERE {condition}) TABLE found) f"  # noqa: S608
        )
        where = ""
    bounds = "rowid >= :above AND rowid < :below ORDER BY rowid DESC LIMIT :most"
    statement = f"SELECT rowid FROM {source} WHERE {where}{bounds}"  # noqa: S608
    return [row[0] // _PARTS for row in db.execute(text(statement), values)]


def _is_frequent(db: Connection, condition: str, values: dict[str, Any]) -> bool:
    """Return True if two in a hundred of the newest messages meet a condition."""
    newest = "SELECT words FROM message_words WHERE rowid < :below ORDER BY rowid DESC LIMIT 500"
    result = db.execute(text(f"SELECT count(*) FROM ({newest}) newest WHERE {condition}"), values)  # noqa: S608
    return int(result.scalar_one()) >= 10


def _parts(words: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the rows of a text, each with the last words of the one before. A row that adds nothing is left out."""
    start, size, known = 0, _STEP, set[int]()
    while not start or start < len(words):
        size = min(_STEP, 2 * size)
        while not _fits(row := words[max(0, start - _SHARED) : start + size]):
            size //= 2
        start += size
        if (same := hash(tuple(row))) not in known:
            known.add(same)
            yield row


def _fits(row: Sequence[str]) -> bool:
    """Return True if PostgreSQL takes a row, and keeps every place of every word."""
    return len(row) < _OFTEN or (sum(map(len, row)) < _ROOM and max(Counter(row).values()) < _OFTEN)


def _vector(words: Sequence[str]) -> str:
    """Words as PostgreSQL reads a tsvector, each with its places."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for word, place in zip(words, _PLACES, strict=False):
        places[word].append(place)
    return " ".join([f"{word}:{','.join(known)}" for word, known in places.items()])


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

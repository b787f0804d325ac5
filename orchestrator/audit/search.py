"""Searches of the audit trail: conditions, the way that answers them soonest, and pages, newest first.

The newest by time of publication come first; where nothing but words is asked for, those with the highest numbers. How
rare each condition is decides how a search goes, as SQLite does not know and PostgreSQL guesses badly for words: what few
messages meet is read whole and sorted, otherwise the index of times is walked until the page is full.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, and_, func, literal, select, tuple_

from orchestrator.audit.database import DEAD_LETTERS, MESSAGES
from orchestrator.audit.records import MessageRecord
from orchestrator.audit.store import IS_DEAD, AuditStore
from orchestrator.audit.text import text_of
from orchestrator.audit.words import find, has_words

_M: Final = MESSAGES.c
_NEWEST: Final = (_M.published_ms.desc(), _M.seq.desc())
#: Columns of whose conditions an index says how many messages meet them.
_INDEXED: Final = ("type", "sender", "recipient", "task_id", "correlation_id", "message_id", "status")
#: Columns in which nearly all messages have one value, which no index has.
_USUAL: Final = {"priority": "normal", "attempt": 1}
#: So many messages count as few: all of them are looked at; so many if each text has to be read.
_FEW: Final = 5_000
_READ: Final = 1_000
#: Numbers in one statement, and the numbers that a look into the index of words takes: the first, and the most later.
_CHUNK: Final = 1_000
_STEP: Final = 500
_MOST: Final = 16_000
#: More numbers than any look into the index finds.
_ALL: Final = 1 << 62
#: Messages that are read for those numbers at once.
_PAGE: Final = 100


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """Conditions on messages, other than their words."""

    #: Columns with one value, as pairs.
    facts: tuple[tuple[str, Any], ...] = ()
    since_ms: int | None = None
    until_ms: int | None = None
    #: Dead letters only, not at all, or either.
    dead: bool | None = None
    #: The rule that it broke, where ``dead``.
    rule: str | None = None

    def __bool__(self) -> bool:
        return self != _NOTHING

    def where(self, *, hidden: bool = False) -> list[ColumnElement[bool]]:
        """As SQL; ``hidden`` from indexes, for messages that are given by their numbers."""
        conditions = [_is(name, value, hidden=hidden) for name, value in self.facts]
        time = func.coalesce(_M.published_ms, 0) if hidden else _M.published_ms
        conditions += [] if self.since_ms is None else [time >= self.since_ms]
        conditions += [] if self.until_ms is None else [time < self.until_ms]
        if self.dead is not None:
            conditions.append(IS_DEAD if self.dead else ~IS_DEAD)
        if self.rule is not None:
            conditions.append(IS_DEAD.where(DEAD_LETTERS.c.rule == self.rule))
        return conditions

    @property
    def several(self) -> bool:
        """True if no single index answers the conditions."""
        return len(self.facts) > 1 or bool(self.dead)

    def ways(self) -> Iterator[list[ColumnElement[bool]]]:
        """Yield the conditions that one index answers together, for each index."""
        times = Conditions(since_ms=self.since_ms, until_ms=self.until_ms).where()
        for name, value in self.facts:
            if name in _INDEXED or _USUAL.get(name, value) != value:
                yield [_is(name, value), *times]
        if self.since_ms is not None:
            yield times


_NOTHING: Final = Conditions()


def _is(name: str, value: Any, *, hidden: bool = False) -> ColumnElement[bool]:
    column = _M[name]
    same: ColumnElement[bool] = (func.coalesce(column, type(value)()) if hidden else column) == value
    usual = _USUAL.get(name, value)
    return same if hidden or usual == value else and_(same, column != usual)


class Search:
    """Answers searches from one database."""

    def __init__(self, store: AuditStore) -> None:
        self._store = store

    def page(
        self, conditions: Conditions, phrase: Sequence[str] | None, *, before: int | None, limit: int
    ) -> list[MessageRecord]:
        """Return the newest messages that meet the conditions and say the words of ``phrase`` one after the other.

        ``before``: the number of the message after which the page begins. A phrase without a word is found nowhere.
        """
        if phrase is None:
            return self._meeting(conditions, before, limit)
        if not phrase:
            return []
        found = (
            self._meeting_and_saying(conditions, phrase, before)
            if conditions
            else self._saying(phrase, before)
        )
        return list(islice(found, limit))

    def _meeting(self, conditions: Conditions, before: int | None, limit: int) -> list[MessageRecord]:
        """Return the newest that meet the conditions."""
        few = self._few(conditions, _FEW) if conditions.several else None
        if few is not None:
            return list(self._records(self._sorted(few, conditions, before)[:limit]))
        return self._store.messages(*conditions.where(), *self._below(before), order=_NEWEST, limit=limit)

    def _meeting_and_saying(
        self, conditions: Conditions, phrase: Sequence[str], before: int | None
    ) -> Iterator[MessageRecord]:
        """Both: by the rarer of them, or one after the other until the page is full."""
        few = self._few(conditions, _READ)
        if few is None and (saying := self._few_saying(conditions, phrase)) is not None:
            return self._records(self._sorted(saying, conditions, before))
        if few is None:
            return self._walk(conditions, phrase, before)
        records = self._records(self._sorted(few, conditions, before))
        return (record for record in records if self._says(record, phrase))

    def _walk(
        self, conditions: Conditions, phrase: Sequence[str], before: int | None
    ) -> Iterator[MessageRecord]:
        """Yield those that meet the conditions, some at a time, as far as the index has the phrase between their
        numbers.
        """
        indexed, size, query = self._store.indexed(), _PAGE, select(_M.seq).order_by(*_NEWEST)
        while True:
            where = [*conditions.where(), *self._below(before)]
            numbers = [row[0] for row in self._store.query(query.where(*where).limit(size))]
            if not numbers:
                return
            saying = set(self._find(phrase, max(numbers) + 1, _ALL, above=min(numbers) - 1))
            for record in self._records([seq for seq in numbers if seq in saying or seq > indexed]):
                if record.seq in saying or self._says(record, phrase):
                    yield record
            before, size = numbers[-1], min(2 * size, _CHUNK)

    def _saying(self, phrase: Sequence[str], before: int | None) -> Iterator[MessageRecord]:
        """Yield the messages that say a phrase, with the highest number first: those not indexed yet, then the
        others.
        """
        indexed = self._store.indexed()
        below = indexed + 1 if before is None else before
        later = () if before is None else (_M.seq < before,)
        for record in self._store.each_message(_M.seq > indexed, *later, order=(_M.seq.desc(),)):
            if self._says(record, phrase):
                yield record
        below, step = min(indexed + 1, below), _STEP
        while True:
            found = self._find(phrase, below, step)
            yield from self._records(list(dict.fromkeys(found)))
            if len(found) < step:
                return
            below, step = found[-1], min(2 * step, _MOST)

    # --- few ---------------------------------------------------------------------------------

    def _few(self, conditions: Conditions, most: int) -> list[int] | None:
        """Return the numbers of all messages that meet one of the conditions, if those are few; None if every one has
        many.
        """
        for way in conditions.ways():
            numbers = self._numbers(select(_M.seq).where(*way), most)
            if numbers is not None:
                return numbers
        if not conditions.dead:
            return None
        deaths = DEAD_LETTERS.c
        which = () if conditions.rule is None else (deaths.rule == conditions.rule,)
        dead = select(deaths.stream, deaths.entry_id).where(*which).limit(most + 1).subquery()
        if self._store.query(select(func.count()).select_from(dead))[0][0] > most:
            return None
        same = and_(_M.stream == dead.c.stream, _M.entry_id == dead.c.entry_id)
        return self._numbers(select(_M.seq).select_from(dead.join(MESSAGES, same)), most)

    def _few_saying(self, conditions: Conditions, phrase: Sequence[str]) -> list[int] | None:
        """Return the numbers of all messages that say the phrase, if those are few, of those not indexed yet meeting
        the conditions.
        """
        indexed = self._store.indexed()
        found = self._find(phrase, indexed + 1, _FEW)
        if len(found) == _FEW:
            return None
        new = self._store.each_message(_M.seq > indexed, *conditions.where(hidden=True))
        return [*found, *(record.seq for record in new if self._says(record, phrase))]

    def _numbers(self, query: Select[tuple[int]], most: int) -> list[int] | None:
        numbers = [row[0] for row in self._store.query(query.limit(most + 1))]
        return numbers if len(numbers) <= most else None

    def _sorted(self, numbers: Sequence[int], conditions: Conditions, before: int | None) -> list[int]:
        """Return those of the numbers whose messages meet the conditions and belong to the page or those after it."""
        unique, where = list(dict.fromkeys(numbers)), conditions.where(hidden=True)
        found: list[tuple[int, int]] = []
        for start in range(0, len(unique), _CHUNK):
            chosen = _M.seq.in_(unique[start : start + _CHUNK])
            found += map(tuple, self._store.query(select(_M.published_ms, _M.seq).where(chosen, *where)))
        last = None if before is None else (self._published_ms(before), before)
        return [seq for at_ms, seq in sorted(found, reverse=True) if last is None or (at_ms, seq) < last]

    # --- reading -----------------------------------------------------------------------------

    def _records(self, numbers: Sequence[int]) -> Iterator[MessageRecord]:
        """Yield the messages of these numbers, in their order, read as they are wanted."""
        for start in range(0, len(numbers), _PAGE):
            page = numbers[start : start + _PAGE]
            records = {record.seq: record for record in self._store.messages(_M.seq.in_(page), order=())}
            yield from (records[seq] for seq in page if seq in records)

    def _says(self, record: MessageRecord, phrase: Sequence[str]) -> bool:
        stored = self._store.body(record.body) or b""
        return has_words(text_of(record.xml, stored, known=bool(record.message_id)), phrase)

    def _find(self, phrase: Sequence[str], below: int, most: int, *, above: int = 0) -> list[int]:
        with self._store.database.read() as db:
            return find(db, phrase, above=above, below=below, most=most)

    def _below(self, before: int | None) -> list[ColumnElement[bool]]:
        """Return the condition for what comes after a message in the order of newest first."""
        if before is None:
            return []
        at_ms = self._published_ms(before)
        return [
            _M.published_ms <= at_ms,
            tuple_(_M.published_ms, _M.seq) < tuple_(literal(at_ms), literal(before)),
        ]

    def _published_ms(self, seq: int) -> int:
        """When a message was published; it was before all others if the operator has removed it."""
        rows = self._store.query(select(_M.published_ms).where(_M.seq == seq))
        return int(rows[0][0]) if rows else -1

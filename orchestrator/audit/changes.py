"""Changes of the ledger, read from the trail a page at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sqlalchemy import ColumnElement, select

from orchestrator.audit.schema import TRANSITION_SESSIONS, TRANSITIONS
from orchestrator.audit.store import AuditStore
from orchestrator.audit.transitions import Transition, order_of, transitions_of, unpack

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

"""Search and filters over sessions, kept in the address of a page."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlencode

from orchestrator.console.stack import Stack
from orchestrator.errors import AuditError, InputError
from orchestrator.ids import is_session_id
from orchestrator.ledger.model import Session, SessionState
from orchestrator.policy.moments import parse_duration, parse_moment

#: Sessions of one page, and that an action on a filter takes.
PAGE: Final = 50
MOST_AT_ONCE: Final = 200
#: Messages of the audit trail that a search for words reads.
_MESSAGES: Final = 200
_FIELDS: Final = ("q", "state", "agent", "since", "until")


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The sessions that a page shows."""

    q: str = ""
    state: str = ""
    agent: str = ""
    since: str = ""
    until: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Filter:
        """Return the filter in the fields of an address or a form."""
        return cls(**{name: fields.get(name, "").strip() for name in _FIELDS})

    def address(self, **more: object) -> str:
        """Return the filter as the query of an address."""
        fields = {name: getattr(self, name) for name in _FIELDS} | more
        return urlencode({name: value for name, value in fields.items() if value})

    @property
    def fields(self) -> dict[str, str]:
        """The fields that are set."""
        return {name: getattr(self, name) for name in _FIELDS if getattr(self, name)}

    def fits(self, session: Session) -> bool:
        """Return True if a session is in the state, of the agent and of the time that is asked for."""
        since, until = _ms(self.since), _ms(self.until)
        return (
            (not self.state or session.state.value == self.state)
            and (not self.agent or session.agent == self.agent)
            and (since is None or session.created_ms >= since)
            and (until is None or session.created_ms <= until)
        )


@dataclass(frozen=True, kw_only=True)
class Found:
    """Sessions that a filter shows."""

    sessions: list[Session]
    #: Whether there are more.
    more: bool
    #: Why a part of the search was left out; else empty.
    note: str = ""


def matching(stack: Stack, only: Filter, *, offset: int = 0, limit: int = PAGE) -> Found:
    """Return the sessions that a filter shows, newest first: roots, and with words also sessions below them.

    Raises:
        InputError: a time in it is not valid.
    """
    _ms(only.since), _ms(only.until)
    if only.q:
        return _search(stack, only, offset=offset, limit=limit)
    if only.state == SessionState.SCHEDULED:
        found = [one for one in stack.client.scheduled() if only.fits(one)]
    else:
        where = only.fits if only.fields else None
        found = stack.client.sessions(limit=offset + limit + 1, where=where)
    return Found(sessions=found[offset : offset + limit], more=len(found) > offset + limit)


def _search(stack: Stack, only: Filter, *, offset: int, limit: int) -> Found:
    """Look for the beginning of an id, then for words in titles, then in what was delegated."""
    reader, words, note = stack.parts.reader, only.q.lower(), ""
    found: dict[str, Session] = {}
    if is_session_id(only.q) or " " not in only.q:
        found |= {one.id: one for one in reader.find(reader.beginning_with(words)[:limit]) if only.fits(one)}

    def titled(session: Session) -> bool:
        return only.fits(session) and words in session.title.lower()

    found |= {one.id: one for one in stack.client.sessions(limit=offset + limit + 1, where=titled)}
    trail = stack.trail()
    if trail is None:
        note = "prompts were not searched: there is no audit trail here"
    else:
        with suppress(AuditError):
            messages = trail.search(text=only.q, message_type="task-delegation", limit=_MESSAGES)
            names = [m.task_id for m in messages if is_session_id(m.task_id) and m.task_id not in found]
            found |= {one.id: one for one in reader.find(list(dict.fromkeys(names))) if only.fits(one)}
    ranked = sorted(found.values(), key=lambda one: one.created_ms, reverse=True)
    return Found(sessions=ranked[offset : offset + limit], more=len(ranked) > offset + limit, note=note)


def _ms(text: str) -> int | None:
    """Return a time as people write it, in milliseconds since the epoch.

    Raises:
        InputError: it is neither how long ago nor a time.
    """
    if not text:
        return None
    try:
        when = parse_moment(text)
    except InputError:
        try:
            when = datetime.now(UTC) - parse_duration(text)
        except InputError:
            raise InputError(
                f"{text!r} is neither how long ago (90s, 15m, 2h, 7d) nor a time (2026-01-31T08:00:00Z)"
            ) from None
    return round(when.timestamp() * 1000)

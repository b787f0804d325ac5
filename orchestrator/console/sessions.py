"""Search and filters over sessions, kept in the address of a page."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from urllib.parse import urlencode

from orchestrator.audit.reader import AuditReader
from orchestrator.console.stack import Stack
from orchestrator.errors import AuditError
from orchestrator.ids import is_session_id
from orchestrator.ledger.model import Session, SessionFilter, SessionState

#: Sessions of one page, and that an action on a filter takes.
PAGE: Final = 50
MOST_AT_ONCE: Final = 200
#: Messages of the audit trail that a search for words reads, of each type.
_MESSAGES: Final = 200
#: The types of messages that have tasks, answers, later prompts, and why a session failed.
_SEARCHED: Final = ("task-delegation", "task-completion", "message", "error")
_FIELDS: Final = ("q", "state", "agent", "since", "until", "least", "most")


@dataclass(frozen=True, kw_only=True)
class Filter:
    """The sessions that a page shows, as somebody typed it."""

    q: str = ""
    state: str = ""
    agent: str = ""
    since: str = ""
    until: str = ""
    least: str = ""
    most: str = ""

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

    @cached_property
    def conditions(self) -> SessionFilter:
        """The conditions other than words.

        Raises:
            InputError: a time or an amount in it is not valid.
        """
        given = {
            "states": filter(None, [self.state]),
            "agents": filter(None, [self.agent]),
            "since": self.since,
            "until": self.until,
            "cost_from": self.least,
            "cost_to": self.most,
        }
        return SessionFilter.of(given, time.time_ns() // 1_000_000)


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
    fits = only.conditions.fits
    if only.q:
        return _search(stack, only, offset=offset, limit=limit)
    if only.state == SessionState.SCHEDULED:
        found = [one for one in stack.client.scheduled() if fits(one)]
    else:
        found = stack.client.sessions(limit=offset + limit + 1, where=fits if only.conditions else None)
    return Found(sessions=found[offset : offset + limit], more=len(found) > offset + limit)


def _search(stack: Stack, only: Filter, *, offset: int, limit: int) -> Found:
    """Look for the beginning of an id, then for words in titles, then in what the audit trail has of sessions."""
    reader, words, fits = stack.parts.reader, only.q.lower(), only.conditions.fits
    found: dict[str, Session] = {}
    if is_session_id(only.q) or " " not in only.q:
        found |= {one.id: one for one in reader.find(reader.beginning_with(words)[:limit]) if fits(one)}

    def titled(session: Session) -> bool:
        return fits(session) and words in session.title.lower()

    found |= {one.id: one for one in stack.client.sessions(limit=offset + limit + 1, where=titled)}
    trail = stack.trail()
    if trail is None:
        note = "Tasks and answers were not searched: there is no audit trail here."
    else:
        note = (
            "Ids, titles of roots, tasks, later prompts, answers and reasons of failures were searched. What is "
            "encrypted was not: the audit trail cannot read it."
        )
        names = [name for name in _saying(trail, only.q) if name not in found]
        found |= {one.id: one for one in reader.find(names) if fits(one)}
    ranked = sorted(found.values(), key=lambda one: one.created_ms, reverse=True)
    return Found(sessions=ranked[offset : offset + limit], more=len(ranked) > offset + limit, note=note)


def _saying(trail: AuditReader, words: str) -> list[str]:
    """Return the sessions of which the audit trail has a message with these words one after the other."""
    with suppress(AuditError):
        messages = [
            message
            for kind in _SEARCHED
            for message in trail.search(text=words, message_type=kind, limit=_MESSAGES)
        ]
        return list(dict.fromkeys(one.task_id for one in messages if is_session_id(one.task_id)))
    return []

"""The report on a time: its page, and the same as a file of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any, Final

from orchestrator.audit.report import make_report
from orchestrator.audit.store import AuditStore
from orchestrator.console.rendering import conversation_in, report_page, report_shown
from orchestrator.console.stack import Stack
from orchestrator.policy.moments import parse_past

#: The time on which the page reports where nobody says another.
_SINCE: Final = "24h"


def report(stack: Stack, query: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page of a report shows."""
    return {**report_shown(*_made(stack, query)), "since": _since(query), "until": query.get("until", "")}


def page(stack: Stack, query: Mapping[str, str]) -> str:
    """Return a report as a file."""
    return report_page(*_made(stack, query))


def _since(query: Mapping[str, str]) -> str:
    return query.get("since", _SINCE).strip()


def _made(stack: Stack, query: Mapping[str, str]) -> tuple[Any, ...]:
    """Make a report; the next one begins when it is there, as it reads all that happened in its time.

    Raises:
        InputError: a time is not valid, or there are too many hours in it.
        AuditError: there is no trail, or it cannot be read.
    """
    now_ms = time.time_ns() // 1_000_000
    since_ms, until_ms = (
        parse_past(text, now_ms=now_ms) if text else None
        for text in (_since(query), query.get("until", "").strip())
    )
    with stack.reporting, closing(AuditStore(stack.settings.audit_database, read_only=True)) as store:
        made = make_report(store, made_ms=now_ms, since_ms=since_ms, until_ms=until_ms)
        return made, *conversation_in(store, made.longest_conversation)

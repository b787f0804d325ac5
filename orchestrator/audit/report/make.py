"""Makes a report: the walks over the database, in one snapshot of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orchestrator.audit.report.ledger import LedgerFigures, added, all_callbacks
from orchestrator.audit.report.messages import MessageFigures, Period
from orchestrator.audit.report.model import UNIT_MS, Bucket, Report, Unit
from orchestrator.audit.store import AuditStore
from orchestrator.errors import InputError

#: Buckets of a time line: about a year of hours.
_MOST: Final = 10_000
#: Hours up to which a time is divided by hours where nobody says how.
_HOURS: Final = 72

#: Told what is being done, how much of it is done, and how much there is.
Progress = Callable[[str, int, int], object]


def make_report(
    store: AuditStore,
    *,
    made_ms: int,
    since_ms: int | None = None,
    until_ms: int | None = None,
    by: Unit | None = None,
    progress: Progress = lambda _what, _done, _all: None,
) -> Report:
    """A report on what was published in a time.

    Args:
        made_ms: when it is made.
        by: what the time line is divided by; None: hours where the time has up to 72 of them, else days.

    Raises:
        InputError: the time has too many hours.
        AuditError: the database cannot be read.
    """
    period = Period(since_ms, until_ms)
    timeline: dict[int, Bucket] = {}
    steps: list[str] = []

    def doing(what: str) -> None:
        steps.append(what)
        progress(what, len(steps), _STEPS)

    with store.database.snapshot():
        figures = MessageFigures(store, period)
        doing("looking for the first and the last message")
        first_ms, last_ms = figures.span()
        by = by or _unit(first_ms, last_ms)
        unit_ms = UNIT_MS[by]
        if first_ms is not None and last_ms is not None and (last_ms - first_ms) // unit_ms > _MOST:
            number = (last_ms - first_ms) // unit_ms
            raise InputError(
                f"a time of {number} {by}s is too long for a report; choose --by day, or --since and --until"
            )
        doing("counting messages")
        counts = figures.counts(timeline, unit_ms)
        doing("counting dead letters")
        dead, failures = figures.dead(timeline, unit_ms), figures.failures()
        doing("counting conversations")
        conversations, longest = figures.conversations(), figures.longest_conversation()
        doing("looking at agents")
        agents, other_agents = figures.agents()
        doing("measuring hops")
        message_hops = figures.hops()
        ledger = LedgerFigures(store, timeline, unit_ms)
        ledger.read(period, lambda done, whole: progress("reading what the ledger changed", done, whole))
    callbacks, costs = ledger.callbacks, ledger.costs
    return Report(
        database=store.name,
        made_ms=made_ms,
        since_ms=since_ms,
        until_ms=until_ms,
        by=by,
        entries=counts.entries,
        messages=counts.messages,
        retries=counts.entries - counts.messages,
        retried=counts.retried,
        attempts=counts.attempts,
        dead=dead,
        conversations=conversations,
        first_ms=first_ms,
        last_ms=last_ms,
        bytes=counts.bytes,
        by_type=dict(counts.by_type.most_common()),
        by_priority=dict(counts.by_priority.most_common()),
        agents=agents,
        other_agents=other_agents,
        failures=failures,
        hops=(*ledger.hops, *message_hops),
        sessions=dict(ledger.sessions),
        runs_retried=ledger.runs_retried,
        callbacks=all_callbacks(callbacks),
        callbacks_by_agent=callbacks,
        spent=added(*(row.cost for row in costs)),
        spent_by_agent=costs,
        timeline=tuple(timeline[start] for start in sorted(timeline)),
        longest_conversation=longest,
    )


#: Steps before the transitions are read.
_STEPS: Final = 6


def _unit(first_ms: int | None, last_ms: int | None) -> Unit:
    span = 0 if first_ms is None or last_ms is None else last_ms - first_ms
    return "hour" if span <= _HOURS * UNIT_MS["hour"] else "day"

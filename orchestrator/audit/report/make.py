"""Makes a report: the walks over the database, in one snapshot of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orchestrator.audit.report.figures import LedgerFigures, MessageFigures, Period, all_callbacks
from orchestrator.audit.report.model import UNIT_MS, Bucket, Report, Unit
from orchestrator.audit.store import AuditStore
from orchestrator.errors import InputError
from orchestrator.policy.budget import Cost

#: Buckets of a time line: about a year of hours.
_MOST: Final = 10_000
#: Hours up to which a time is divided by hours where nobody says how.
_HOURS: Final = 72
#: Steps before the transitions are read.
_STEPS: Final = 6

#: Called with the present step, how much of it is done, and how much there is.
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
    """Return a report on the messages that were published in a period.

    Args:
        made_ms: when it is made.
        by: what the time line is divided by; None: hours where the time has up to 72 of them, else days.

    Raises:
        InputError: the time has too many hours.
        AuditError: the database cannot be read.
    """
    timeline: dict[int, Bucket] = {}
    done = 0

    def doing(what: str) -> None:
        nonlocal done
        done += 1
        progress(what, done, _STEPS)

    with store.database.snapshot():
        period = Period(since_ms, until_ms)
        figures = MessageFigures(store, period)
        doing("looking for the first and the last message")
        first_ms, last_ms = figures.span()
        lasted_ms = 0 if first_ms is None or last_ms is None else last_ms - first_ms
        by = by or ("hour" if lasted_ms <= _HOURS * UNIT_MS["hour"] else "day")
        unit_ms = UNIT_MS[by]
        if (number := lasted_ms // unit_ms) > _MOST:
            raise InputError(
                f"a time of {number} {by}s is too long for a report; choose --by day, or --since and --until"
            )
        report = Report(
            database=store.name,
            made_ms=made_ms,
            since_ms=since_ms,
            until_ms=until_ms,
            by=by,
            first_ms=first_ms,
            last_ms=last_ms,
        )
        doing("counting messages")
        figures.count(report, timeline, unit_ms)
        doing("counting dead letters")
        report.dead, report.failures = figures.dead(timeline, unit_ms), figures.failures()
        doing("counting conversations")
        report.conversations = figures.conversations()
        report.longest_conversation = figures.longest_conversation()
        doing("looking at agents")
        report.agents, report.other_agents = figures.agents()
        doing("measuring hops")
        message_hops = figures.hops()
        ledger = LedgerFigures(store, timeline, unit_ms)
        ledger.read(period, lambda done, whole: progress("reading what the ledger changed", done, whole))
    report.hops = (*ledger.hops, *message_hops)
    report.sessions, report.runs_retried = dict(ledger.sessions), ledger.runs_retried
    report.callbacks_by_agent, report.spent_by_agent = ledger.callbacks, ledger.costs
    report.callbacks = all_callbacks(report.callbacks_by_agent)
    report.spent = sum((row.cost for row in report.spent_by_agent), Cost())
    report.timeline = tuple(timeline[start] for start in sorted(timeline))
    return report

"""Fixes what the ledger still knows; the rest stays as it is, and the next examination names it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from functools import partial
from typing import Final

from orchestrator.bootstrap import Container
from orchestrator.doctor.findings import Problem, Severity
from orchestrator.ids import child_of
from orchestrator.ledger import leftovers
from orchestrator.log import get_logger
from orchestrator.redisdb.client import is_outage

#: Rules about what is derived from the records of the session, whatever else is wrong with it.
_INDEXES: Final = frozenset(
    {
        "run-unindexed",
        "session-unindexed",
        "result-unindexed",
        "expiry-lost",
        "schedule-lost",
        "closed-owed",
        "approval-unindexed",
    }
)
#: Rules about what is derived from its items: counters and queue.
_ITEMS: Final = frozenset({"counters", "queue-lost", "queue-stray"})
#: Rules about texts, of which a parent and its child have one each.
_TEXTS: Final = frozenset({"result-gone", "text-lost"})
#: A session with no other break has all of its items, and they are right.
_TRUSTED: Final = _INDEXES | _ITEMS | _TEXTS | {"question-lost", "prompt-gone"}

_log = get_logger()


def repair(parts: Container, findings: Iterable[Problem]) -> None:
    """Fix what these findings name, as far as the ledger knows how; harmless to repeat.

    Raises:
        redis.RedisError, OSError: Redis is away.
    """
    findings = list(findings)
    by_session: dict[str, list[Problem]] = defaultdict(list)
    for finding in findings:
        if finding.severity is Severity.BREAK and finding.session:
            by_session[finding.session].append(finding)
    left = [(finding.rule, finding.subject) for finding in findings]
    repairs = {"": partial(leftovers.fix, parts.ledger, left)}
    repairs |= {session: partial(_repair, parts, session, found) for session, found in by_session.items()}
    for session, fix in repairs.items():
        try:
            fix()
        except Exception as error:
            if is_outage(error):
                raise
            _log.error("repair-failed", session=session, exc_info=error)


def _repair(parts: Container, session: str, found: list[Problem]) -> None:
    rules = {finding.rule for finding in found}
    if rules & (_INDEXES | _ITEMS):
        done = parts.ledger.sweep.reindex(session, recount=rules <= _TRUSTED)
        _log.info("reindexed", session=session, put_right=done)
    for finding in found:
        if finding.rule == "question-lost":
            parts.delivery.give_up(finding.subject, "it was lost from the ledger")
        elif finding.rule in _TEXTS:
            parts.ledger.sweep.restore_text(child_of(finding.subject) or session)

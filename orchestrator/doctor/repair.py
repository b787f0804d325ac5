"""Fixes what the ledger still knows; the rest stays as it is, and the next examination names it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

import redis

from orchestrator.audit.reader import AuditReader
from orchestrator.bootstrap import Container
from orchestrator.doctor.findings import Problem, Severity
from orchestrator.doctor.restoration import restore_end, restore_texts
from orchestrator.ids import asker_of, child_of
from orchestrator.ledger import leftovers
from orchestrator.ledger.snapshot import take_snapshot
from orchestrator.log import get_logger
from orchestrator.redisdb import keys
from orchestrator.redisdb.all_keys import WrongType, wrong_types
from orchestrator.redisdb.client import is_outage
from orchestrator.redisdb.format import FORMAT
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.delayed.parked import DelayedMessages
from orchestrator.runtime.service import shared_keys_of

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
        "timer-lost",
    }
)
#: Rules about what is derived from its items: counters, queue, and where it stands.
_ITEMS: Final = frozenset(
    {
        "counters",
        "queue-lost",
        "queue-stray",
        "busy-with-none",
        "claimed-by-none",
        "state-wrong",
        "waits-for-nothing",
    }
)
#: Rules about what two sessions say of each other, each of which is put right by itself.
_BOTH: Final = frozenset({"told-too-early", "callback-lost", "question-lost", "question-half", "stop-lost"})
#: Rules about what a session said at its end.
_TEXTS: Final = frozenset({"result-gone", "text-lost"})
#: A session with no other break has all of its items, and they are right.
_TRUSTED: Final = _INDEXES | _ITEMS | _TEXTS | _BOTH | {"prompt-gone", "not-genuine", "text-altered"}

#: Rules about keys that all sessions share.
OF_KEYS: Final = frozenset({"key-overwritten", "key-unregistered"})
#: Milliseconds for which a key that was set aside is kept.
_ASIDE_MS: Final = 30 * 86_400_000

_log = get_logger()


def set_aside(parts: Container) -> list[WrongType]:
    """Set the shared keys aside that another program has overwritten; which ones.

    What they held is gone already. What the records still say of it is written again: the public keys of this folder, what
    an operator has limited and paused, and which runs are ready here; the other indexes by :func:`repair` and the sweep.
    """
    wrong = shared_keys_of(parts.redis, parts.settings).wrong()
    limits = parts.concurrency.copies()
    for one in wrong:
        _set_aside(parts.redis, one, limits.get(one.key, {}))
    parts.keyring.registry.register_all()
    if wrong:
        for shard in range(parts.settings.shards):
            parts.delivery.send(parts.ledger.sweep.make_all_ready(shard))
        DelayedMessages(Scripts(parts.redis), shards=range(parts.settings.shards), mark_ms=0).reindex()
    return wrong


def _set_aside(client: redis.Redis, one: WrongType, fields: Mapping[str, str]) -> None:
    names = [one.key, keys.aside(one.key)]
    facts = [part for field in fields.items() for part in field]
    if Scripts(client).run("set_aside", names, [one.wanted, _ASIDE_MS, *facts]):
        _log.warning("key-set-aside", key=one.key, to=keys.aside(one.key))


def restore_format(client: redis.Redis) -> None:
    """Set the keys aside that everybody reads first, if they were overwritten: without them nobody may look.

    Who has that done says by it that a program of this format has written the ledger.
    """
    for one in wrong_types(client, {keys.format_version(): "string", keys.agreed(): "hash"}):
        _set_aside(client, one, {})
        if one.key == keys.format_version():
            client.set(one.key, FORMAT, nx=True)


def repair(parts: Container, findings: Iterable[Problem], audit: AuditReader | None) -> None:
    """Fix what these findings name, as far as ledger and audit trail know how; harmless to repeat.

    Raises:
        redis.RedisError, OSError: Redis is away.
    """
    findings = list(findings)
    by_session: dict[str, list[Problem]] = defaultdict(list)
    for finding in findings:
        if finding.severity is Severity.BREAK and finding.session:
            by_session[finding.session].append(finding)
    left = [(finding.rule, finding.subject) for finding in findings]
    repairs = {
        session: partial(_repair, parts, session, problems, audit) for session, problems in by_session.items()
    }
    # The journal of a run that was just restored is left over no more.
    repairs[""] = partial(leftovers.fix, parts.ledger, left)
    if any(finding.rule == "limits-lost" for finding in findings):
        repairs["limits"] = partial(parts.concurrency.put_back)
    for session, fix in repairs.items():
        try:
            fix()
        except Exception as error:
            if is_outage(error):
                raise
            _log.error("repair-failed", session=session, exc_info=error)


def _repair(parts: Container, session: str, found: list[Problem], audit: AuditReader | None) -> None:
    rules, sweep = {finding.rule for finding in found}, parts.ledger.sweep
    for finding in found:
        match finding.rule:
            case "question-lost":
                parts.delivery.give_up(finding.subject, "it was lost from the ledger")
            case "question-half":
                sweep.reopen_question(finding.subject, asker=asker_of(finding.subject) or "", asked=session)
            case "told-too-early" | "callback-lost":
                _tell_again(parts, child_of(finding.subject) or "")
            case "stop-lost":
                _end_or_free(parts, session)
            case rule if rule in _TEXTS:
                restore_end(parts, audit, child_of(finding.subject) or session)
    if "timer-lost" in rules and (snapshot := take_snapshot(parts.ledger, session)) is not None:
        sweep.restore_question_timers(snapshot.lost_timers)
    if "text-altered" in rules and audit is not None:
        restore_texts(parts.ledger, audit, session)
    if rules & (_INDEXES | _ITEMS | _BOTH):
        done = sweep.reindex(session, recount=rules <= _TRUSTED)
        _log.info("reindexed", session=session, put_right=done)


def _tell_again(parts: Container, child: str) -> None:
    """Deliver a child's end to its parent again, as its agent reported it."""
    session, text, whole, attached, body = parts.ledger.answer_as_kept(child)
    status = parts.authenticity.status_of(session, text, whole, attached, body)
    parts.ledger.sweep.tell_again(child, status)


def _end_or_free(parts: Container, session: str) -> None:
    """End a session for the reason that its records have for it; where there is none, it goes on."""
    ledger = parts.ledger
    failed = [item for item in ledger.items(session) if item.reason == "failed its parent by policy"]
    asked = [run for run in ledger.runs(session) if run.stop]
    if failed:
        ledger.stop(session, f"child {failed[0].child} failed", state="failed", force=True)
    elif asked:
        ledger.stop(session, asked[-1].stop, force=True)
    else:
        ledger.sweep.forget_stop(session)

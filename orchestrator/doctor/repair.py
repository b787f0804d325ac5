"""Fixes what the ledger still knows; the rest stays as it is, and the next examination names it."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import redis

from orchestrator.agents.registry import OPERATOR, SYSTEM_AGENTS
from orchestrator.audit import amendments
from orchestrator.audit.amendments import Amendment
from orchestrator.audit.database import Database
from orchestrator.audit.heads import Proof
from orchestrator.audit.reader import AuditReader, MessageSummary
from orchestrator.audit.text import body_texts
from orchestrator.bootstrap import Container
from orchestrator.display.text import counted
from orchestrator.doctor.authenticity import unreadable_texts
from orchestrator.doctor.findings import Problem, Severity
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.envelope.signature import Signer
from orchestrator.errors import PayloadError, Refused
from orchestrator.ids import asker_of, callback_id, child_of, is_session_id
from orchestrator.ledger import Ledger, Session, leftovers
from orchestrator.ledger.large_text import as_kept, head_of
from orchestrator.ledger.snapshot import take_snapshot
from orchestrator.log import get_logger
from orchestrator.machine import isoformat
from orchestrator.policy.sealed_text import defused
from orchestrator.redisdb import keys
from orchestrator.redisdb.all_keys import WrongType, wrong_types
from orchestrator.redisdb.client import is_outage
from orchestrator.redisdb.format import FORMAT
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.delayed.parked import DelayedMessages
from orchestrator.runtime.process import user_at_host
from orchestrator.runtime.service import shared_keys_of


def restore_texts(ledger: Ledger, audit: AuditReader, session: str) -> None:
    """Store those again that the records of a session refer to, if a message has exactly their octets."""
    snapshot = take_snapshot(ledger, session)
    for _, ref, _ in [] if snapshot is None else unreadable_texts(snapshot, ledger):
        octets = _in_trail(audit, ref)
        if octets is not None:
            ledger.large_texts.restore(ref, octets)


def _in_trail(audit: AuditReader, ref: Mapping[str, Any]) -> bytes | None:
    """Return a text with that digest from a message of its session, or of one below that; None if there is none."""
    for record in audit.find(str(ref["session"])):
        for text in body_texts(audit.body(record)):
            for candidate in (text, text.strip()):
                octets = candidate.encode(errors="surrogatepass")
                if len(octets) == ref["size"] and hashlib.sha256(octets).hexdigest() == ref["sha256"]:
                    return octets
    return None


def restore_end(parts: Container, audit: AuditReader | None, child: str) -> None:
    """Keep again what a child said at the end that its parent was told of, if the proof in the ledger tells it from all
    that the trail, or another record, has.
    """
    about = parts.ledger.session(child)
    item = parts.ledger.item(about.parent, callback_id(child)) if about.parent else None
    if item is None or not item.extra.get("proof") or not parts.authenticity.reads_as_operator:
        return
    for text in _candidates(parts, audit, about, item.extra):
        if not parts.authenticity.item_fault(about.parent, item, text, reader=OPERATOR):
            parts.ledger.sweep.restore_text(child, text)
            return


def _candidates(
    parts: Container, audit: AuditReader | None, about: Session, record: Mapping[str, Any]
) -> Iterator[str]:
    """Yield what the text of an end may have been: a reason, the beginning of a large text, or anything that its message says."""
    yield as_kept(about.reason)
    if record.get("whole"):
        with suppress(PayloadError):
            octets = parts.ledger.large_texts.read(record["whole"]).encode(errors="surrogatepass")
            yield defused(head_of(octets, parts.ledger.limits.inline_bytes))
    if audit is None:
        return
    for message in audit.find(str(record.get("message", ""))):
        for text in body_texts(audit.body(message)):
            yield defused(text)
            yield defused(text.strip())


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
    status, _ = parts.authenticity.judge_answer(session, text, whole, attached, body)
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


#: Sessions that are named one by one.
_MOST_NAMED: Final = 50
#: How far the clocks of those who publish and of the server may be apart.
_CLOCKS_APART_MS: Final = 3_600_000


class LostSessions:
    """Compares the launches of the trail with the sessions of the ledger.

    A tree is kept for its whole lifetime after its end, so that of every younger launch there is a session.
    """

    def __init__(self, parts: Container, audit: AuditReader, proof: Proof) -> None:
        self._parts = parts
        self._audit = audit
        self._proof = proof

    def find(self, *, newest: int | None) -> list[Problem]:
        """Name the lost sessions that nobody has accepted; with ``newest`` only those of so many newest messages."""
        lost = list(self._lost(newest, self._accepted()))
        problems = [_problem(one) for one in lost[:_MOST_NAMED]]
        if more := lost[_MOST_NAMED:]:
            what = f"{counted(len(more), 'more session')} of the audit trail are not in the ledger"
            problems.append(Problem(Severity.BREAK, "session-lost", "", what))
        return problems

    def accept(self, session: str, database: Database, signer: Signer) -> str:
        """Sign that a lost session, and those below it, are given up; return what was done. A second time does
        nothing.

        Raises:
            Refused: the ledger has the session, or the trail does not.
        """
        below = {one.task_id for one in self._audit.find(session) if one.type in SESSION_STARTING}
        accepted = self._accepted()
        rows = {one.seq: one.task_id for one in self._lost(None, accepted) if one.task_id in below}
        if not rows:
            return self._no_more(session, accepted)
        now_ms = self._parts.ledger.server_ms()
        amendments.accept(database, list(rows), f"accepted as lost by {user_at_host()}", signer, at_ms=now_ms)
        others = len(set(rows.values()) - {session})
        also = f", and {counted(others, 'session')} below it" if others else ""
        return f"accepted that {session} is lost{also}"

    def _no_more(self, session: str, accepted: Mapping[int, Amendment]) -> str:
        """Say why there is nothing to accept."""
        if is_session_id(session) and self._parts.ledger.find([session]):
            raise Refused(f"{session} is in the ledger: nothing was lost that could be accepted")
        known = [accepted[one.seq] for one in self._audit.find(session) if one.seq in accepted]
        if known:
            return f"{session} was {known[0].reason} at {isoformat(known[0].at_ms)}"
        raise Refused(
            f"{session} is not in the audit trail as a session that was lost; `orchestra doctor` names those"
        )

    def _accepted(self) -> dict[int, Amendment]:
        """Return the rows of launches that the operator has accepted as lost."""
        store = self._audit.store
        return {
            one.seq: one
            for one in store.amendments()
            if one.kind == amendments.ACCEPTANCE
            and not one.fault(self._proof.keys, store.id)
            and store.chain_at(one.table, one.seq) == one.chain
        }

    def _lost(self, newest: int | None, accepted: Mapping[int, Amendment]) -> Iterator[MessageSummary]:
        ledger, audit = self._parts.ledger, self._audit
        since_ms = ledger.server_ms() - ledger.limits.tree_ttl_ms + _CLOCKS_APART_MS
        for launches in audit.delegations(since_ms=since_ms, newest=newest):
            named = [one for one in launches if is_session_id(one.task_id) and one.seq not in accepted]
            there = {session.id for session in ledger.find([one.task_id for one in named])}
            for one in named:
                if one.task_id in there or not self._is_launch(one):
                    continue
                if not audit.was_refused(one) and not self._proof.fault(audit.xml(one), one.published_ms):
                    yield one

    def _is_launch(self, one: MessageSummary) -> bool:
        """Return True if the sender may have launched it: the operator, or the agent that was given the task above
        it.
        """
        if one.sender in SYSTEM_AGENTS:
            return True
        record = self._parts.agents.get(one.sender)
        if record is not None and record.external:  # its task-ids are its own, whatever they look like
            return False
        return self._audit.given_above(one) == one.sender


def _problem(one: MessageSummary) -> Problem:
    return Problem(
        Severity.BREAK,
        "session-lost",
        one.task_id,
        f"{one.task_id} of agent {one.recipient!r}, launched by {one.sender!r} at {isoformat(one.published_ms)}, is in "
        "the audit trail and not in the ledger, which was put back or lost a part of it; "
        f"`orchestra audit show {one.message_id}` has the task: submit it again if it is still wanted, then "
        f"`orchestra doctor --accept {one.task_id}` takes it and what is below it off this list",
    )

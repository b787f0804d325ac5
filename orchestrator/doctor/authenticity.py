"""Authenticity of the items, answers, tasks, states, steps and messages in the ledger: written by agents that may write them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.heads import Proof
from orchestrator.audit.reader import AuditReader, MessageSummary
from orchestrator.bootstrap import Container
from orchestrator.display.text import counted
from orchestrator.doctor.blockers import Place, coming
from orchestrator.doctor.findings import Problem, Severity, warning
from orchestrator.envelope.codec import decode
from orchestrator.envelope.message_types import SESSION_STARTING
from orchestrator.envelope.model import Header
from orchestrator.envelope.parse import ParseLimits
from orchestrator.envelope.signature import CLOCK_SKEW_MS
from orchestrator.errors import InvalidEnvelope, PayloadError
from orchestrator.ids import is_session_id
from orchestrator.ledger import CLOSED, Item, ItemState, Ledger, RunState, SessionState
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.messages.authenticity import Authenticity
from orchestrator.redisdb import keys
from orchestrator.router.commands import MARK_MARGIN_MS, mark_ms
from orchestrator.router.deadletters.store import DeadLetters
from orchestrator.streams import ROUTER_GROUP, RedisStreams, StreamId

#: Texts that are read at once.
_BATCH: Final = 200
_SAID: Final = (ItemState.QUEUED, ItemState.CLAIMED, ItemState.DELIVERED)


def not_genuine(snapshot: Snapshot, ledger: Ledger, authenticity: Authenticity) -> Iterator[Problem]:
    """Yield the items and the answer of a session that are not genuine, as far as the operator's key is here.

    What a run has refused is named in any case.
    """
    session = snapshot.session
    for item in snapshot.items:
        if item.extra.get("rejected"):
            yield _finding(session.id, item.id, f"{item.id} was not delivered: {item.reason}")
    if session.state not in (*CLOSED, SessionState.DAMAGED) and not snapshot.damage:
        yield from _kept(snapshot, ledger, authenticity)
    if not authenticity.reads_as_operator:
        return
    for item, text in _texts(snapshot, ledger):
        if fault := authenticity.item_fault(session.id, item, text, reader=OPERATOR):
            yield _finding(
                session.id, item.id, f"{item.id} is not what {item.agent or 'a user'} said: {fault}"
            )
    if session.state is SessionState.FINISHED and "result" in snapshot.texts:
        about, text, whole, attached, body = ledger.answer_as_kept(session.id)
        if about.state is SessionState.FINISHED and (
            fault := authenticity.judge_answer(about, text, whole, attached, body)[1]
        ):
            yield _finding(session.id, session.id, f"its answer is not what {session.agent} gave: {fault}")


def _kept(snapshot: Snapshot, ledger: Ledger, authenticity: Authenticity) -> Iterator[Problem]:
    """Yield what of a session's task, and of its agent's own records, cannot be read or is not genuine.

    The latter needs the key of the operator.
    """
    session, run = snapshot.session, snapshot.run
    texts = ledger.own_texts(session)
    for fault in texts.damage:
        yield Problem(Severity.BREAK, "damaged", "state", f"{session.id}: {fault}", session=session.id)
    for what, said, proof in texts.own if authenticity.reads_as_operator else ():
        if fault := authenticity.fault(said, proof, reader=OPERATOR):
            yield _finding(session.id, what, f"its {what} cannot be authenticated: {fault}")
    if run is None or run.state not in (RunState.QUEUED, RunState.RUNNING):
        return
    records = ledger.journal.read(run.id)
    if len(records) != run.steps and (again := ledger.run(run.id)) is not None and again.steps == run.steps:
        yield _finding(
            session.id, run.id, f"{run.id} recorded {run.steps} steps, and there are {len(records)}"
        )
    for key, record in sorted(records.items()) if authenticity.reads_as_operator else ():
        said = record.statement(run.id, session.agent)
        if fault := authenticity.fault(said, record.header.proof, reader=OPERATOR):
            yield _finding(
                session.id, f"{run.id} {key}", f"step {key!r} of {run.id} is not what it recorded: {fault}"
            )


def altered_texts(snapshot: Snapshot, ledger: Ledger) -> Iterator[Problem]:
    """Large texts of a session, or that it was sent, which were altered or are not kept any more; reads all of them."""
    session = snapshot.session
    for subject, _, why in unreadable_texts(snapshot, ledger):
        what = (
            f"{session.id}: the large text of {subject} cannot be had: {why}; `orchestra doctor --full --fix` restores what "
            "the audit trail has of it, and a run that reads it otherwise fails at once"
        )
        yield Problem(Severity.BREAK, "text-altered", subject, what, session=session.id)


def unreadable_texts(snapshot: Snapshot, ledger: Ledger) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """Yield whose text cannot be read, its reference, and why."""
    session = snapshot.session
    if session.state in (SessionState.DELETED, SessionState.DAMAGED) or snapshot.damage:
        return
    references: list[tuple[str, Mapping[str, Any]]]
    references = [(item.id, ref) for item in snapshot.items for ref in item.large_texts]
    references += [(what, ref) for what, ref in ledger.large_references(session.id).items()]
    for subject, ref in references:
        try:
            ledger.large_texts.read(ref)
        except PayloadError as error:
            yield subject, ref, error.args[0]


def _texts(snapshot: Snapshot, ledger: Ledger) -> Iterator[tuple[Item, str]]:
    said = [item for item in snapshot.items if item.state in _SAID and item.id in snapshot.texts]
    for start in range(0, len(said), _BATCH):
        items = said[start : start + _BATCH]
        texts = ledger.texts(snapshot.session.id, [item.id for item in items])
        yield from ((item, texts[item.id]) for item in items if item.id in texts)


def _finding(session: str, subject: str, what: str) -> Problem:
    # A key that was revoked has made nothing wrong that was right before: its texts count no more, and are looked at.
    severity = Severity.WARNING if "key-revoked" in what else Severity.BREAK
    return Problem(severity, "not-genuine", subject, f"{session}: {what}", session=session)


#: The newest messages of the trail that are compared.
MOST: Final = 10_000
#: Messages without a trace that are looked into, and those that are named one by one.
_MOST_SUSPECTS: Final = 1000
_MOST_NAMED: Final = 50
_AT_ONCE: Final = 1000


@dataclass(frozen=True, kw_only=True)
class _Suspect:
    """A message that no router is known to have routed."""

    mention: MessageSummary
    #: The entry under which it came last.
    entry: str
    #: Whether its mark says that it waits under that entry.
    marked: bool

    @property
    def stream(self) -> StreamId:
        """The stream it was published in."""
        return StreamId.parse(self.mention.stream)

    @property
    def place(self) -> Place:
        """The place where it was last."""
        return self.stream, self.entry


class TakenMessages:
    """A comparison of the trail with what routers leave behind."""

    def __init__(self, parts: Container, audit: AuditReader, proof: Proof) -> None:
        self._parts = parts
        self._redis = parts.redis
        self._audit = audit
        self._proof = proof
        self._limits = ParseLimits(size=parts.settings.max_message_bytes)
        self._max_age_ms = round(parts.settings.message_max_age_s * 1000)
        self._now_ms = parts.ledger.server_ms()
        self._since_ms = self._now_ms - self._max_age_ms - MARK_MARGIN_MS

    def find(self) -> list[Problem]:
        """Return the messages that were taken, newest first; for doubtful ones a warning for each stream."""
        suspects = self._still_unmarked([one for one in self._suspects() if self._is_without_trace(one)])
        doubts = self._doubts(suspects) if suspects else {}
        taken = [one for one in suspects if one not in doubts]
        problems = [self._taken(one) for one in taken[:_MOST_NAMED]]
        if more := taken[_MOST_NAMED:]:
            problems.append(
                Problem(
                    Severity.BREAK if Severity.BREAK in map(self._severity, more) else Severity.WARNING,
                    "message-taken",
                    "",
                    f"{counted(len(more), 'more message')} of the audit trail left the streams unrouted",
                )
            )
        return problems + list(_not_compared(doubts))

    # --- who is suspected -------------------------------------------------------------------

    def _suspects(self) -> Iterator[_Suspect]:
        """Messages without the mark of a handled one, which no router will read any more."""
        mentions = self._audit.latest(since_ms=self._since_ms, limit=MOST)
        # A launch of ours leaves its session pending, of which its own rule speaks.
        compared = [m for m in mentions if not (m.type in SESSION_STARTING and is_session_id(m.task_id))]
        left = _MOST_SUSPECTS
        for start in range(0, len(compared), _AT_ONCE):
            part = compared[start : start + _AT_ONCE]
            judged = [_judge(mention, mark) for mention, mark in zip(part, self._marks(part), strict=True)]
            suspects = [one for one in judged if one is not None]
            comes = coming(self._redis, [one.place for one in suspects])
            gone = [one for one in suspects if one.place not in comes][:left]
            left -= len(gone)
            yield from gone

    def _marks(self, mentions: Sequence[MessageSummary]) -> list[str | None]:
        pipeline = self._redis.pipeline(transaction=False)
        for mention in mentions:
            pipeline.get(keys.seen(StreamId.parse(mention.stream).shard, mention.sender, mention.message_id))
        answers: list[Any] = pipeline.execute()
        return [None if answer is None else answer.decode("utf-8", "replace") for answer in answers]

    # --- what a router leaves behind --------------------------------------------------------

    def _is_without_trace(self, suspect: _Suspect) -> bool:
        mention, stream = suspect.mention, suspect.stream
        xml = self._audit.xml(mention)
        if not xml:  # redacted: its bytes can no longer be compared
            return False
        if (mention.stream, hashlib.sha256(xml).hexdigest()) in self._dead:
            return False
        if coming(self._redis, [(stream, entry) for entry in self._audit.entries(mention)]):
            return False
        if not suspect.marked and (self._audit.was_refused(mention) or not self._is_remembered(mention, xml)):
            return False
        return not self._proof.fault(xml, mention.published_ms)

    @cached_property
    def _dead(self) -> frozenset[tuple[str, str]]:
        """Stream and digest of the dead letters that the audit writer may not have read yet."""
        dead_letters = DeadLetters(self._redis, shards=self._parts.settings.shards)
        found = dead_letters.all(since_ms=self._since_ms)
        return frozenset((str(one.stream), hashlib.sha256(one.data).hexdigest()) for one in found)

    def _is_remembered(self, mention: MessageSummary, xml: bytes) -> bool:
        """Return True if the mark of a message that was routed would still be there.

        The earliest of three times counts: the sender's clock, the server's and the audit writer's may each be wrong.
        """
        try:
            header: Header = decode(xml, limits=self._limits).header
        except InvalidEnvelope:
            return False
        began_ms = min(header.timestamp.instant_ms, mention.published_ms, mention.received_ms)
        return self._now_ms < began_ms + mark_ms(header, self._max_age_ms) - CLOCK_SKEW_MS

    def _still_unmarked(self, suspects: Sequence[_Suspect]) -> list[_Suspect]:
        """Return the suspects whose mark is unchanged: a router may have come between two looks. Each message once."""
        unmarked: dict[tuple[str, str, str], _Suspect] = {}
        for one, mark in zip(suspects, self._marks([one.mention for one in suspects]), strict=True):
            again = _judge(one.mention, mark)
            if again is not None and again.entry == one.entry:
                unmarked.setdefault((one.mention.stream, one.mention.sender, one.mention.message_id), one)
        return list(unmarked.values())

    # --- findings -----------------------------------------------------------------------

    def _doubts(self, suspects: Sequence[_Suspect]) -> dict[_Suspect, str]:
        """Return those whose traces may be gone for another reason, and that reason."""
        streams = RedisStreams(self._redis)
        coverage = self._audit.coverage(streams, sorted({one.stream for one in suspects}))
        put_back = {row.stream for row in coverage if row.audited > row.published}
        info: Any = self._redis.info("stats")
        doubts = {}
        for one in suspects:
            removed: Any = self._redis.hget(keys.dead_usage(one.stream.shard), "unaudited-ms")
            if one.stream in put_back:
                doubts[one] = "Redis was emptied or put back to an older state"
            elif int(info.get("evicted_keys", 0)):
                doubts[one] = "Redis has evicted keys for lack of memory"
            elif one.mention.published_ms <= int(removed or -1):
                doubts[one] = "dead letters were removed before the audit writer had read them"
        return doubts

    def _taken(self, suspect: _Suspect) -> Problem:
        mention = suspect.mention
        severity = self._severity(suspect)
        what = (
            f"{mention.type} {mention.message_id} from {mention.sender!r} to {mention.recipient!r} (entry "
            f"{suspect.entry} of {mention.stream}) is gone from group {ROUTER_GROUP!r} and no router has routed it; "
            "find out who else reads as that group or deletes entries"
        )
        again = (
            f", then send it again: orchestra audit show {mention.message_id} --xml > message.xml, and "
            "orchestra message send message.xml"
            if severity is Severity.BREAK
            else "; its effect was in the ledger before, so nothing has to be sent again"
        )
        session = mention.task_id if is_session_id(mention.task_id) else ""
        return Problem(severity, "message-taken", mention.message_id, what + again, session=session)

    def _severity(self, suspect: _Suspect) -> Severity:
        """Return a break where the message itself is the effect: a program sent it, or has yet to read it."""
        names = (suspect.mention.sender, suspect.mention.recipient)
        records = [self._parts.agents.get(name) for name in names]
        external = any(record is not None and record.external for record in records)
        return Severity.BREAK if external else Severity.WARNING


def _judge(mention: MessageSummary, mark: str | None) -> _Suspect | None:
    """Return the suspect that a mark leaves; None if the message was carried out.

    A mark without a digest is that of a message which waited: it came back under the entry that the mark names.
    """
    if mark is None:
        return _Suspect(mention=mention, entry=mention.entry_id, marked=False)
    entry, _, digest = mark.partition(" ")
    return None if digest else _Suspect(mention=mention, entry=entry, marked=True)


def _not_compared(doubts: Mapping[_Suspect, str]) -> Iterator[Problem]:
    for (stream, reason), number in Counter((one.mention.stream, why) for one, why in doubts.items()).items():
        yield warning(
            "messages-not-compared",
            stream,
            f"{stream}: it is unknown whether {counted(number, 'message')} of the audit trail "
            f"{'was' if number == 1 else 'were'} routed, as {reason}",
        )

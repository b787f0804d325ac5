"""Records of one session as they stood at one moment, and its children as they stood just after."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from orchestrator.errors import DamagedRecord
from orchestrator.ids import callback_id, is_session_id, reply_id, shard_of
from orchestrator.ledger import decode
from orchestrator.ledger.ledger import Ledger
from orchestrator.ledger.model import CLOSED, Item, ItemState, Run, Session, SessionState
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.key_table import is_wrong_type

R = TypeVar("R")
V = TypeVar("V")

_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Child:
    """A child, as far as its parent's records are compared with it."""

    id: str
    state: str
    parent_notified: bool  #: its callback was handed over
    ended: bool  #: whether it has ended, whatever has become of it since
    parent: str
    message: str  #: message-id of the envelope that launched it
    text: bool  #: whether its texts have what its parent was told of its end


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A session, its items, its queue, its runs."""

    session: Session
    parent_notified: bool
    items: tuple[Item, ...]
    queue: frozenset[str]
    runs: tuple[Run, ...]
    texts: frozenset[str]  #: the items whose text is there, with its own `prompt` and `result`
    indexed: frozenset[str]  #: the names of the indexes that know it or its run; see ``_indexes``
    children: dict[str, Child] = field(default_factory=dict)
    stop_pending: bool = (
        False  #: a user or a child's failure has ended it; the callback service carries that out
    )
    window_until_ms: int = 0  #: until when callbacks are let come together; 0: no window is open
    lost_timers: dict[str, int] = field(
        default_factory=dict
    )  #: timer that its records speak of and that is not there → due
    wakes_ms: int = 0  #: when a deadline or a window makes the service look at it; 0: never
    question_due_ms: dict[str, int] = field(default_factory=dict)  #: open question → when it is given up
    listed_approvals: frozenset[str] = frozenset()  #: its open approvals that the index knows
    damage: tuple[str, ...] = ()  #: what cannot be read of its records, beside its own record
    settled: bool = False  #: whether its last result was stored for its caller, if it is a root
    questions: int = 0  #: how many are open, by its counter
    groups: dict[tuple[str, str], int] = field(default_factory=dict)  #: (group, what) → its counter
    unasked: frozenset[str] = frozenset()  #: open questions that the session which was asked lacks
    unkept: bool = False  #: its answer is a large text that is not stored any more
    unknown_questions: frozenset[str] = (
        frozenset()
    )  #: queued questions whose askers do not wait for the reply

    @property
    def run(self) -> Run | None:
        """Its non-terminal run."""
        return next((r for r in self.runs if r.id == self.session.run), None)


def take_snapshot(ledger: Ledger, session_id: str) -> Snapshot | None:
    """Return a consistent picture of one session; None if it is gone. Unreadable records are named in ``damage``."""
    shard = shard_of(session_id)
    run_ids, root, run = list[str](), session_id, ""
    while True:
        indexes = _indexes(shard, root, session_id, run)
        pipe = ledger.redis.pipeline(transaction=True)
        pipe.lrange(ledger_keys.runs(session_id), 0, -1)
        pipe.hgetall(ledger_keys.session(session_id))
        pipe.hgetall(ledger_keys.items(session_id))
        pipe.zrange(ledger_keys.queue(session_id), 0, -1)
        pipe.hkeys(ledger_keys.bodies(session_id))
        for key, member in indexes.values():
            pipe.zscore(key, member)
        for one in run_ids:
            pipe.hgetall(ledger_keys.run(one))
        replies, damage = pipe.execute(raise_on_error=False), list[str]()
        ids = [decode.text(r) for r in _readable(replies[0], "its list of runs", damage) or []]
        about = replies[1] if isinstance(replies[1], dict) else {}
        now = ids, decode.text(about.get(b"root")) or session_id, decode.text(about.get(b"run"))
        if now == (run_ids, root, run) or not is_session_id(now[1]):
            break
        run_ids, root, run = now  # they were not asked for yet, or have changed meanwhile
    facts = replies[1]
    items = _readable(replies[2], "its items", damage) or {}
    queue = _readable(replies[3], "its queue", damage) or []
    bodies = _readable(replies[4], "its texts", damage) or []
    found_in = {
        name: _readable(reply, f"the index {name!r}", damage)
        for name, reply in zip(indexes, replies[5:], strict=False)
    }
    wakes = found_in.pop("timers")
    if isinstance(facts, Exception):
        if not is_wrong_type(facts):
            raise facts
        h, session = {}, decode.unreadable_session(session_id, f"its key is not a hash: {facts}")
    elif not facts:
        return None
    else:
        h = decode.mapping(facts)
        session = ledger.seals.model(decode.session(h, session_id))
    found = list(
        _each(
            items.items(), lambda pair: ledger.seals.item(decode.item(decode.text(pair[0]), pair[1])), damage
        )
    )
    run_facts = [
        _readable(reply, f"run {run}", damage)
        for run, reply in zip(run_ids, replies[5 + len(indexes) :], strict=True)
    ]
    asked = _asked(ledger, session_id, h)
    children = _children(ledger, [i.child for i in found if i.kind == "completion"])
    texts = {decode.text(b) for b in bodies} | {callback_id(c.id) for c in children.values() if c.text}
    if callback_id(session_id) in texts:
        texts.add("result")
    return Snapshot(
        session=session,
        parent_notified=h.get("parent_notified") == "1",
        items=tuple(found),
        queue=frozenset(decode.text(i) for i in queue),
        runs=tuple(
            _each([raw for raw in run_facts if raw], lambda raw: decode.run(decode.mapping(raw)), damage)
        ),
        texts=frozenset(texts),
        indexed=frozenset(name for name, score in found_in.items() if score is not None),
        children=children,
        stop_pending=h.get("stop_pending") == "1",
        window_until_ms=_number(h.get("window_until")),
        wakes_ms=int(wakes or 0),
        question_due_ms=_question_times(ledger, session),
        listed_approvals=_listed_approvals(ledger, session),
        settled="settled_ms" in h,
        questions=_number(h.get("questions")),
        groups=_groups(h),
        unasked=frozenset(question for question, record in asked.items() if record is None),
        lost_timers=_lost_timers(ledger, session, h, asked),
        unkept=_unkept(ledger, session_id, bodies),
        unknown_questions=_unknown_questions(ledger, found),
        damage=tuple(damage),
    )


def _indexes(shard: int, root: str, session: str, run: str) -> dict[str, tuple[str, str]]:
    """Return, by name, the key of each index and its member for a session, or for its run."""
    timers = ledger_keys.timers(shard)
    return {
        "dispatch": (ledger_keys.queued(shard), run),
        "running": (ledger_keys.running(shard), run),
        "waiting": (ledger_keys.waiting(shard), session),
        "closing": (ledger_keys.closing(shard), session),
        "results": (ledger_keys.results(shard), session),
        "tree": (ledger_keys.tree(root), session),
        "roots": (ledger_keys.roots(shard), session),
        "expire": (timers, f"expire|{session}"),
        "schedule": (timers, f"submit|{session}"),
        "timers": (timers, f"flush|{session}"),
    }


def _readable(reply: Any, what: str, damage: list[str]) -> Any:
    """Return a reply; None, with a note in ``damage``, if its key was written by somebody else."""
    if not isinstance(reply, Exception):
        return reply
    if not is_wrong_type(reply):
        raise reply
    damage.append(f"{what} cannot be read: its key is of another type")
    return None


def _each(raw: Iterable[R], read: Callable[[R], V], damage: list[str]) -> Iterator[V]:
    """Yield the records that can be read; note each of the others in ``damage``."""
    for one in raw:
        try:
            yield read(one)
        except DamagedRecord as error:
            damage.append(f"{error.args[0]}: {error.args[1]}")


def _number(value: str | None) -> int:
    try:
        return int(value or 0)
    except ValueError:
        return 0


def _question_times(ledger: Ledger, session: Session) -> dict[str, int]:
    timers = [f"{'approval' if one in session.approvals else 'question'}|{one}" for one in session.questions]
    due: Any = ledger.redis.zmscore(ledger_keys.timers(shard_of(session.id)), timers) if timers else []
    return {one: int(at) for one, at in zip(session.questions, due, strict=True) if at is not None}


def _lost_timers(
    ledger: Ledger, session: Session, facts: Mapping[str, str], asked: Mapping[str, Any]
) -> dict[str, int]:
    """Return the missing timers of a session's end, its next deadline and its questions, by its records."""
    wanted: dict[str, int] = {}
    if session.state not in (*CLOSED, SessionState.FINISHED, SessionState.DAMAGED):
        wanted = {
            f"{kind}|{session.id}": _number(facts[f"{kind}_due_ms"])
            for kind in ("limit", "review")
            if f"{kind}_due_ms" in facts
        }
        if session.state is SessionState.IDLE and not session.run and (due := _deadlines(session, facts)):
            wanted[f"flush|{session.id}"] = min(due)
        wanted |= _question_timers(session, asked, ledger.limits.question_ms)
    timers = ledger_keys.timers(shard_of(session.id))
    scores: Any = ledger.redis.zmscore(timers, list(wanted)) if wanted else []
    return {name: due for (name, due), at in zip(wanted.items(), scores, strict=True) if at is None}


def _deadlines(session: Session, facts: Mapping[str, str]) -> list[int]:
    """The deadlines of the groups of which something is outstanding."""
    owed = {group: number for (group, what), number in _groups(facts).items() if what == "owed"}
    owed[""] = session.owed - sum(
        number for group, number in owed.items() if group in session.waiting and group
    )
    return [
        int(rule["deadline_ms"])
        for group, rule in session.waiting.items()
        if rule.get("deadline_ms") and (rule.get("parks") or owed.get(group, 0) > 0)
    ]


def _question_timers(session: Session, asked: Mapping[str, Any], open_ms: int) -> dict[str, int]:
    """The timers of the open questions of a session, approvals apart, and when each is due: at once if it was rejected."""
    # What is of another type, or cannot be read, is damage of the session that was asked.
    found = [
        (question, record)
        for question, record in asked.items()
        if question not in session.approvals and isinstance(record, bytes)
    ]
    due = {}
    for item in _each(found, lambda pair: decode.item(*pair), []):
        if item.state is ItemState.DEAD:
            due[f"rejected|{item.id}"] = item.at_ms
        elif open_ms:
            due[f"question|{item.id}"] = item.at_ms + open_ms
    return due


def _listed_approvals(ledger: Ledger, session: Session) -> frozenset[str]:
    index = ledger_keys.approvals(shard_of(session.id))
    return frozenset(one for one in session.approvals if ledger.redis.zscore(index, one) is not None)


def _groups(facts: Mapping[str, str]) -> dict[tuple[str, str], int]:
    parts = [(name.split(":"), value) for name, value in facts.items() if name.startswith("group:")]
    return {(":".join(middle), what): _number(value) for (_, *middle, what), value in parts}


def _asked(ledger: Ledger, session_id: str, facts: Mapping[str, str]) -> dict[str, Any]:
    """The open questions of a session, each with its record, if the session that was asked has one."""
    asked = {
        name.removeprefix("question:"): who for name, who in facts.items() if name.startswith("question:")
    }
    pipe = ledger.redis.pipeline(transaction=False)
    for question, who in asked.items():
        pipe.hget(ledger_keys.items(who if is_session_id(who) else session_id), question)
    return dict(zip(asked, pipe.execute(raise_on_error=False), strict=True))


def _unknown_questions(ledger: Ledger, items: Iterable[Item]) -> frozenset[str]:
    """The queued questions of other sessions that still run and neither wait for the reply nor have had it."""
    asked = [
        item
        for item in items
        if item.state is ItemState.QUEUED and item.extra.get("question") and is_session_id(item.child)
    ]
    pipe = ledger.redis.pipeline(transaction=False)
    for item in asked:
        pipe.hmget(ledger_keys.session(item.child), "state", f"question:{item.id}")
        pipe.hexists(ledger_keys.items(item.child), reply_id(item.id))
    # A key of another type is damage of the session that asked.
    replies = pipe.execute(raise_on_error=False)
    return frozenset(
        item.id
        for item, facts, had in zip(asked, replies[::2], replies[1::2], strict=True)
        if isinstance(facts, list)
        and had == 0
        and facts[1] is None
        and decode.text(facts[0]) not in ("", *CLOSED)
    )


def _unkept(ledger: Ledger, session_id: str, bodies: Iterable[bytes]) -> bool:
    if b"whole" not in bodies:
        return False
    reference = ledger.texts(session_id, ["whole"]).get("whole")
    return reference is not None and not ledger.large_texts.is_kept(json.loads(reference))


def _children(ledger: Ledger, ids: Sequence[str]) -> dict[str, Child]:
    found: dict[str, Child] = {}
    for start in range(0, len(ids), _BATCH):
        batch = ids[start : start + _BATCH]
        pipe = ledger.redis.pipeline(transaction=False)
        for child in batch:
            pipe.hmget(
                ledger_keys.session(child), "state", "parent_notified", "parent", "message", "ended_ms"
            )
            pipe.hexists(ledger_keys.bodies(child), callback_id(child))
        replies: list[Any] = pipe.execute(raise_on_error=False)
        for child, row, text in zip(batch, replies[::2], replies[1::2], strict=True):
            if isinstance(row, Exception):
                if not is_wrong_type(row):
                    raise row
                row = [SessionState.DAMAGED, b"", b"", b"", b""]
            state, notified, parent, message, ended_ms = (decode.text(value) for value in row)
            if state:
                found[child] = Child(
                    id=child,
                    state=state,
                    parent_notified=notified == "1",
                    ended=state in (*CLOSED, SessionState.FINISHED) or _number(ended_ms) > 0,
                    parent=parent,
                    message=message,
                    text=text == 1,
                )
    return found

"""One session with its books as they stood at one moment, and its children as they stood just after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import UnknownSession
from orchestrator.ids import shard_of
from orchestrator.ledger import Item, Ledger, Run, Session, decode
from orchestrator.redisdb import keys

_BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Child:
    """What a parent's books are compared with."""

    id: str
    state: str
    told: bool  #: its callback was handed over
    parent: str
    message: str  #: message-id of the envelope that launched it


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A session, its items, its queue, its runs."""

    session: Session
    told: bool
    items: tuple[Item, ...]
    queue: frozenset[str]
    runs: tuple[Run, ...]
    texts: frozenset[str]  #: the items whose text is there
    indexed: frozenset[
        str
    ]  #: which of the shard's indexes know it or its run: dispatch, running, waiting, closing, results
    children: dict[str, Child] = field(default_factory=dict)
    doomed: bool = False  #: a user or a child's failure has ended it; the callback service carries that out
    window_until_ms: int = 0  #: until when callbacks are let come together; 0: no window is open
    wakes_ms: int = 0  #: when a deadline or a window makes the service look at it; 0: never
    question_due_ms: dict[str, int] = field(default_factory=dict)  #: open question → when it is given up

    @property
    def run(self) -> Run | None:
        """Its non-terminal run."""
        return next((r for r in self.runs if r.id == self.session.run), None)


def take(ledger: Ledger, session_id: str) -> Snapshot | None:
    """A consistent picture of one session, or None when it is gone."""
    shard = shard_of(session_id)
    try:
        run_ids = _runs(ledger, session_id)
        while True:
            pipe = ledger.redis.pipeline(transaction=True)
            pipe.hgetall(keys.session(session_id))
            pipe.hgetall(keys.items(session_id))
            pipe.zrange(keys.queue(session_id), 0, -1)
            pipe.hkeys(keys.bodies(session_id))
            pipe.lrange(keys.runs(session_id), 0, -1)
            last = run_ids[-1] if run_ids else ""
            pipe.zscore(keys.dispatch(shard), last)
            pipe.zscore(keys.running(shard), last)
            pipe.zscore(keys.waiting(shard), session_id)
            pipe.zscore(keys.closing(shard), session_id)
            pipe.zscore(keys.results(shard), session_id)
            pipe.zscore(keys.timers(shard), f"flush|{session_id}")
            for run in run_ids:
                pipe.hgetall(keys.run(run))
            facts, items, queue, bodies, now_runs, *rest = pipe.execute()
            if not facts:
                return None
            ids = [decode.text(r) for r in now_runs]
            if ids == run_ids:
                break
            run_ids = ids  # a run was made meanwhile: look again
    except UnknownSession:
        return None
    scores, wakes, run_facts = rest[:5], rest[5], rest[6:]
    names = ("dispatch", "running", "waiting", "closing", "results")
    h = decode.mapping(facts)
    found = tuple(decode.item(decode.text(i), raw) for i, raw in items.items())
    session = decode.session(h)
    return Snapshot(
        session=session,
        told=h.get("told") == "1",
        items=found,
        queue=frozenset(decode.text(i) for i in queue),
        runs=tuple(decode.run(decode.mapping(raw)) for raw in run_facts if raw),
        texts=frozenset(decode.text(b) for b in bodies),
        indexed=frozenset(n for n, score in zip(names, scores, strict=True) if score is not None),
        children=_children(ledger, [i.child for i in found if i.kind == "completion"]),
        doomed=h.get("doomed") == "1",
        window_until_ms=int(h.get("window_until") or 0),
        wakes_ms=int(wakes or 0),
        question_due_ms=_question_times(ledger, session),
    )


def _question_times(ledger: Ledger, session: Session) -> dict[str, int]:
    timers = keys.timers(shard_of(session.id))
    due = {question: ledger.redis.zscore(timers, f"question|{question}") for question in session.questions}
    return {question: int(at) for question, at in due.items() if at is not None}


def _runs(ledger: Ledger, session_id: str) -> list[str]:
    return [decode.text(r) for r in ledger.redis.lrange(keys.runs(session_id), 0, -1)]


def _children(ledger: Ledger, ids: Sequence[str]) -> dict[str, Child]:
    found: dict[str, Child] = {}
    for start in range(0, len(ids), _BATCH):
        batch = ids[start : start + _BATCH]
        pipe = ledger.redis.pipeline(transaction=False)
        for child in batch:
            pipe.hmget(keys.session(child), "state", "told", "parent", "message")
        rows: list[Any] = pipe.execute()
        for child, row in zip(batch, rows, strict=True):
            state, told, parent, message = (decode.text(v) for v in row)
            if state:
                found[child] = Child(id=child, state=state, told=told == "1", parent=parent, message=message)
    return found

"""Sizes and ages of what waits in the ledger, by its indexes: one round trip for each shard. Nothing is changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import redis

from orchestrator.ledger import decode
from orchestrator.ledger.model import CLOSED, SessionState
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.key_table import is_wrong_type
from orchestrator.redisdb.raw_pipeline import exchange

#: Sessions that one round trip asks for.
_BATCH: Final = 500
#: Fields of a session that its standing is read from.
_STANDING: Final = (
    *("agent", "root", "state", "questions", "updated_ms", "ended_ms"),
    *("launched", "delivered", "dead"),
)


_ENDED: Final = frozenset({*CLOSED, SessionState.FINISHED})


@dataclass(kw_only=True)
class Gauges:
    """Sizes of all shards together."""

    ready: Counter[str] = field(default_factory=Counter)  #: by agent
    at_work: Counter[str] = field(default_factory=Counter)  #: by agent
    approvals: int = 0
    #: Since when the oldest approval, and the oldest result of a root that is not published, waits; 0: none does.
    oldest_ms: dict[str, int] = field(default_factory=dict)
    #: Ready runs that wait because their tree has as many at work as it may.
    blocked: int = 0


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A session, as far as it is counted."""

    agent: str
    root: str
    state: str
    questions: int
    pending: int  #: callbacks neither delivered nor dead
    updated_ms: int
    ended_ms: int  #: 0: it has not


def read_gauges(client: redis.Redis, shards: int, agents: Sequence[str]) -> Gauges:
    """Return the sizes. A key that somebody has spoilt counts as empty; the doctor names it.

    Raises:
        redis.RedisError: the server does not answer.
    """
    found = Gauges()
    for shard in range(shards):
        pipe = client.pipeline(transaction=False)
        pipe.zcard(ledger_keys.approvals(shard))
        for index in (ledger_keys.approvals(shard), ledger_keys.results(shard)):
            pipe.zrange(index, 0, 0, withscores=True)
        pipe.smembers(ledger_keys.blocked_trees(shard))
        if agents:
            pipe.hmget(ledger_keys.at_work(shard), [f"agent:{agent}" for agent in agents])
        for agent in agents:
            pipe.zcard(ledger_keys.ready(shard, agent))
        approvals, *oldest, blocked, work, ready = _grouped(pipe.execute(raise_on_error=False), len(agents))
        found.approvals += _number(approvals)
        for kind, first in zip(("approval", "result"), oldest, strict=True):
            at_ms = int(first[0][1]) if isinstance(first, list) and first else 0
            found.oldest_ms[kind] = min(filter(None, (found.oldest_ms.get(kind, 0), at_ms)), default=0)
        if isinstance(blocked, set) and blocked:
            trees = client.pipeline(transaction=False)
            for root in map(decode.text, blocked):
                trees.zcard(ledger_keys.blocked(root))
            found.blocked += sum(map(_number, trees.execute(raise_on_error=False)))
        found.at_work.update(dict(zip(agents, map(_number, work), strict=True)))
        found.ready.update(dict(zip(agents, map(_number, ready), strict=True)))
    return found


def standings(client: redis.Redis, sessions: Sequence[str]) -> dict[str, Standing]:
    """Return the sessions that are there.

    Raises:
        redis.RedisError: the server does not answer.
    """
    found: dict[str, Standing] = {}
    for start in range(0, len(sessions), _BATCH):
        batch = sessions[start : start + _BATCH]
        answers = exchange(client, [("HMGET", ledger_keys.session(session), *_STANDING) for session in batch])
        for session, row in zip(batch, answers, strict=True):
            if isinstance(row, Exception):
                if not is_wrong_type(row):
                    raise row
                continue
            agent, root, state, *numbers = map(decode.text, row)
            if state:
                questions, updated, ended, launched, delivered, dead = (
                    int(n) if n.isdecimal() else 0 for n in numbers
                )
                found[session] = Standing(
                    agent=agent,
                    root=root,
                    state=state,
                    questions=questions,
                    pending=launched - delivered - dead,
                    updated_ms=updated,
                    ended_ms=ended,
                )
    return found


def with_budgets(client: redis.Redis, roots: Sequence[str]) -> list[str]:
    """Return the sessions of these trees that have a budget of their own and have not ended.

    Raises:
        redis.RedisError: the server does not answer.
    """
    found: list[str] = []
    for root in roots:
        members: Any = client.zrange(ledger_keys.tree(root), 0, -1)
        names = [decode.text(name) for name in members]
        for start in range(0, len(names), _BATCH):
            page = names[start : start + _BATCH]
            # No script, as who only looks may not run one.
            rows = exchange(
                client, [("HMGET", ledger_keys.session(name), "budgets", "state") for name in page]
            )
            for name, row in zip(page, rows, strict=True):
                if isinstance(row, Exception):
                    if not is_wrong_type(row):
                        raise row
                elif row[0] and row[0].endswith(name.encode()) and decode.text(row[1]) not in _ENDED:
                    found.append(name)  # the budgets above it come first, its own is the last
    return found


def _grouped(replies: list[Any], agents: int) -> tuple[Any, ...]:
    for reply in replies:
        if isinstance(reply, Exception) and not is_wrong_type(reply):
            raise reply
    approvals, first, result, blocked, *rest = replies
    work: Any = rest[0] if agents else []
    if isinstance(work, Exception):
        work = [0] * agents
    return approvals, first, result, blocked, work, rest[1:]


def _number(reply: Any) -> int:
    try:
        return int(reply)
    except (TypeError, ValueError):
        return 0

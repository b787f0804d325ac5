"""A launch that somebody has taken from its stream and nobody has routed: its session would wait for ever."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import redis

from orchestrator.doctor.findings import Problem, Severity
from orchestrator.ids import shard_of
from orchestrator.ledger import Session, SessionState
from orchestrator.redisdb import keys
from orchestrator.streams import ROUTER_GROUP


def taken(client: redis.Redis, session: Session) -> Iterator[Problem]:
    """Whether the launch of a pending session is neither unread nor held by a router nor waiting.

    A router acknowledges a launch in the step that begins, refuses or delays its session. Whoever else reads in its
    group and acknowledges, or deletes the entry, leaves the session as it is.
    """
    if session.state is not SessionState.PENDING or session.run or session.parked or not session.entry:
        return
    kind, _, rest = session.entry.partition(":")
    priority, _, entry = rest.partition(":")
    stream = keys.messages(shard_of(session.id), kind, priority)
    if _may_come(client, stream, entry):
        return
    yield Problem(
        severity=Severity.BREAK,
        rule="launch-taken",
        session=session.id,
        subject=session.entry,
        message=f"{session.id} never starts: its {kind} (entry {entry}) is gone from group {ROUTER_GROUP!r} and no "
        f"router has routed it; find out who else reads as that group or deletes entries, then stop the session "
        f"(orchestra stop {session.id}), of which its parent hears, and submit or delegate the task again",
    )


def _may_come(client: redis.Redis, stream: str, entry: str) -> bool:
    """Whether a router has yet to handle an entry: it is unread, or in somebody's hands."""
    try:
        groups: Any = client.xinfo_groups(stream)
        group = next((g for g in groups if g["name"] == ROUTER_GROUP.encode()), None)
        if group is None:
            return True
        if client.xpending_range(stream, ROUTER_GROUP, entry, entry, 1):
            return True
        unread = _place(entry) > _place(group["last-delivered-id"].decode())
        return unread and bool(client.xrange(stream, entry, entry))
    except (redis.ResponseError, ValueError):
        return True  # there is no such stream, or it is damaged: others say so


def _place(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return int(ms), int(number)

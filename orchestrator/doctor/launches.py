"""A launch that somebody has taken from its stream and nobody has routed: its session would wait for ever."""

from __future__ import annotations

from collections.abc import Iterator

import redis

from orchestrator.doctor.entries import coming
from orchestrator.doctor.findings import Problem, Severity
from orchestrator.ids import shard_of
from orchestrator.ledger import Session, SessionState
from orchestrator.streams import ROUTER_GROUP, StreamId


def taken(client: redis.Redis, session: Session) -> Iterator[Problem]:
    """Whether the launch of a pending session is neither unread nor held by a router nor waiting.

    A router acknowledges a launch in the step that begins, refuses or delays its session. Whoever else reads in its
    group and acknowledges, or deletes the entry, leaves the session as it is.
    """
    if session.state is not SessionState.PENDING or session.run or session.parked or not session.entry:
        return
    kind, _, rest = session.entry.partition(":")
    priority, _, entry = rest.partition(":")
    place = (StreamId(shard_of(session.id), kind, priority), entry)
    if coming(client, [place]):
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

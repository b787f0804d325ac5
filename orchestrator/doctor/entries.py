"""Which entries of the streams a router has yet to handle, and launches that were taken from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import redis

from orchestrator.doctor.findings import Problem, Severity
from orchestrator.ids import shard_of
from orchestrator.ledger import CLOSED, Session, SessionState
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.redisdb import keys
from orchestrator.streams import ROUTER_GROUP, StreamId, stream_key

#: A stream, and the id of an entry in it.
Place = tuple[StreamId, str]
#: Answers for each place: what is pending of it, whether it is there, whether it waits.
_ANSWERS: Final = 3


def coming(client: redis.Redis, places: Collection[Place]) -> set[Place]:
    """Return those that are unread, in a router's hands, or among the messages that wait.

    An entry of which nobody can tell is one of them: of streams that are damaged or not there others speak.
    """
    # The groups first: an entry that moves on meanwhile at worst counts as not handled yet.
    read = {stream: _last_read(client, stream) for stream in {stream for stream, _ in places}}
    pipeline = client.pipeline(transaction=False)
    for stream, entry in places:
        pipeline.xpending_range(stream_key(stream), ROUTER_GROUP, entry, entry, 1)
        pipeline.xrange(stream_key(stream), entry, entry)
        pipeline.zscore(keys.parked(stream.shard), f"{stream.type}:{stream.priority}:{entry}")
    answers: list[Any] = pipeline.execute(raise_on_error=False) if places else []
    found = set()
    for number, (stream, entry) in enumerate(places):
        held, there, waits = answers[number * _ANSWERS : (number + 1) * _ANSWERS]
        last = read[stream]
        if (
            last is None
            or any(isinstance(answer, Exception) for answer in (held, there, waits))
            or held
            or waits is not None
            or (there and _order(entry) > last)
        ):
            found.add((stream, entry))
    return found


def taken_launch(client: redis.Redis, session: Session) -> Iterator[Problem]:
    """Yield a pending session whose launch is neither unread nor held by a router nor waiting: it never starts.

    A router acknowledges a launch in the step that begins, refuses or delays its session. A reader of its group that
    acknowledges the entry, or deletes it, leaves the session as it is.
    """
    if session.state is not SessionState.PENDING or session.run or not session.entry:
        return
    kind, _, rest = session.entry.partition(":")
    priority, _, entry = rest.partition(":")
    place = (StreamId(shard_of(session.id), kind, priority), entry)
    if coming(client, [place]):
        return
    yield Problem(
        Severity.BREAK,
        "launch-taken",
        session.entry,
        f"{session.id} never starts: its {kind} (entry {entry}) is gone from group {ROUTER_GROUP!r} and no "
        f"router has routed it; find out who else reads as that group or deletes entries, then stop the session "
        f"(orchestra stop {session.id}), which its parent is told, and submit or delegate the task again",
        session=session.id,
    )


def lost_stop(client: redis.Redis, snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a session that is marked to be ended, although neither its run is asked to stop nor a service notified."""
    session, run = snapshot.session, snapshot.run
    if not snapshot.stop_pending or session.state in CLOSED or (run is not None and run.stop):
        return
    key, start = keys.session_events(shard_of(session.id)), "-"
    while entries := _events(client, key, start):
        if any(
            fields.get(b"event") == b"stop" and fields.get(b"session") == session.id.encode()
            for _, fields in entries
        ):
            return
        start = f"({entries[-1][0].decode()}"
    yield Problem(
        Severity.BREAK,
        "stop-lost",
        "",
        f"{session.id} is marked to be ended, and nobody does it: nothing of it is resumed",
        session=session.id,
    )


def _events(client: redis.Redis, key: str, start: str) -> list[tuple[bytes, dict[bytes, bytes]]]:
    try:
        entries: Any = client.xrange(key, start, "+", count=1000)
    except redis.ResponseError:  # of another type: of that others speak
        return []
    return list(entries)


def _last_read(client: redis.Redis, stream: StreamId) -> tuple[int, int] | None:
    """Return the last entry that the routers' group was given; None if there is no such group."""
    try:
        groups: Any = client.xinfo_groups(stream_key(stream))
    except redis.ResponseError:
        return None
    group = next((g for g in groups if g["name"] == ROUTER_GROUP.encode()), None)
    return None if group is None else _order(group["last-delivered-id"].decode())


def _order(entry: str) -> tuple[int, int]:
    ms, _, number = entry.partition("-")
    return (int(ms), int(number)) if ms.isdecimal() and number.isdecimal() else (0, 0)

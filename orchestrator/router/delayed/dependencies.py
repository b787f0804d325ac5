"""Tasks that wait for other tasks: blocked until those complete, failed when one of them fails.

A task is named by its session id, or by the task-id that an external program gave it in the same conversation. It is
one of the same tree: a session of another tree is refused, so that nobody learns or delays what is not theirs.
The end of a session makes the router look at the tasks that it blocks at once. It also looks from time to time, for
what no message reports and for names that are not known yet.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import redis

from orchestrator.envelope.bodies import TaskDelegation
from orchestrator.envelope.message_types import MESSAGE_TYPES
from orchestrator.ids import is_session_id
from orchestrator.ledger import CLOSED, Ledger, Session, SessionState
from orchestrator.machine import Clock
from orchestrator.redisdb import keys
from orchestrator.router.delayed.parked import DelayedMessage, DelayedMessages, Tasks, parked_id
from orchestrator.router.received import ReceivedMessage, Rejection, since_of
from orchestrator.router.session_resolver import NEAREST
from orchestrator.router.validation.validator import reject

#: Milliseconds after which a task that was just blocked is looked at again, and between later looks at most.
FIRST_LOOK_MS: Final = 250
LAST_LOOK_MS: Final = 10_000
#: The same for a task that waits for a task without a session: no message reports that it has got one.
UNREPORTED_LOOK_MS: Final = 1000
_WAITERS_MS: Final = 7 * 86_400_000


class DependencyStatus(StrEnum):
    """Status of a task for which another task waits."""

    COMPLETED = "completed"
    FAILED = "failed"
    OUTSTANDING = "outstanding"
    HELD = "held"  #: it waits for tasks itself and has no session yet
    UNKNOWN = "unknown"
    OUTSIDE = "outside"  #: it is of another tree


@dataclass(frozen=True, kw_only=True)
class BlockedTask:
    """The message has to wait for other tasks."""

    tasks: Tasks
    since_ms: int
    #: When it expires, or has waited long enough for an unknown task; 0: never.
    until_ms: int
    reason: str


class Dependencies:
    """Decides on tasks by those for which they wait."""

    def __init__(
        self,
        client: redis.Redis,
        ledger: Ledger,
        parking: DelayedMessages,
        *,
        clock: Clock,
        keep_ms: int,
        ignore_failed: bool = False,
    ) -> None:
        self._redis = client
        self._ledger = ledger
        self._delayed = parking
        self._clock = clock
        self._keep_ms = keep_ms
        self._ignore_failed = ignore_failed

    def judge(self, received: ReceivedMessage, *, timeout_s: float) -> BlockedTask | Rejection | None:
        """Return a wait for other tasks, a rejection, or None if the message can be carried out now."""
        task_id, waited_for = received.task_id, self._waited_for(received)
        if not waited_for:
            return None
        shard, conversation = received.entry.stream.shard, received.conversation
        circle = self._circle(shard, conversation, task_id, waited_for)
        if circle:
            reason = f"tasks wait for each other in a circle: {' → '.join(circle)}; take one dependency out"
            return reject("dependency-cycle", reason, received.message)
        sessions = self._sessions(shard, conversation, waited_for)
        standings = self._standings(conversation, sessions)
        if refusal := self._refusal(standings, received):
            return refusal
        if any(standing in _UNMET for standing in standings.values()):
            # The waiter is recorded before the second look, so that one of the two sees an end.
            self._note_waiter(received, sessions, standings)
            standings = self._standings(conversation, sessions)
            if refusal := self._refusal(standings, received):
                return refusal
        unmet = [task for task, standing in standings.items() if standing in _UNMET]
        if not unmet:
            return None
        now_ms = self._clock.now_ms()
        since_ms = since_of(received.entry, now_ms)
        unknown = [task for task in unmet if standings[task] is DependencyStatus.UNKNOWN]
        if unknown and now_ms - since_ms >= timeout_s * 1000:
            reason = f"it depends on {', '.join(unknown)}, of which no message came within {timeout_s:g} s"
            return reject("timeout", reason, received.message)
        ends = [received.expires_ms] if received.expires_ms is not None else []
        if unknown:
            ends.append(since_ms + math.ceil(timeout_s * 1000))
        return BlockedTask(
            tasks=Tasks(task_id=task_id, waited_for=waited_for, standing=_text(standings)),
            since_ms=since_ms,
            until_ms=min(ends, default=0),
            reason=f"waits for {', '.join(unmet)}",
        )

    def _waited_for(self, received: ReceivedMessage) -> list[str]:
        """The tasks that a message waits for; the ledger has those of the stack's own encrypted messages."""
        body = received.body
        if isinstance(body, TaskDelegation):
            return list(dict.fromkeys(d.task_id for d in body.task.dependencies))
        if not (received.sealed and received.entry.session):
            return []
        return self._ledger.waits_for(received.entry.session)

    def _refusal(self, standings: dict[str, DependencyStatus], received: ReceivedMessage) -> Rejection | None:
        """A rejection if a task is of another tree or has failed."""
        outside = [task for task, standing in standings.items() if standing is DependencyStatus.OUTSIDE]
        if outside:
            reason = (
                f"it depends on {', '.join(outside)}, of another tree; "
                "a task waits only for tasks of its own tree or conversation"
            )
            return reject("dependency-outside", reason, received.message)
        failed = [task for task, standing in standings.items() if standing is DependencyStatus.FAILED]
        if failed and not self._ignore_failed:
            reason = f"it depends on {', '.join(failed)}, which failed"
            return reject("dependency-failed", reason, received.message)
        return None

    def changed(self, parked: Sequence[DelayedMessage]) -> list[bool]:
        """Return for each waiting task whether another look may decide differently now.

        So it is when a dependency changed, when it expires, and when it has waited long enough for an unknown task.
        """
        if not parked:
            return []
        now_ms = self._clock.now_ms()
        named = self._all_sessions([(one.stream.shard, one.conversation, one.tasks) for one in parked])
        known = self._find(session for sessions in named for session in sessions.values())
        found = []
        for one, sessions in zip(parked, named, strict=True):
            standing = _text(_standings(one.conversation, sessions, known))
            # What was parked in the future was parked by a wrong clock, and is checked again.
            overdue = 0 < one.until_ms <= now_ms or one.parked_ms > now_ms + LAST_LOOK_MS
            found.append(overdue or _may_decide(one.standing, standing))
        return found

    def look_again_ms(self, parked: DelayedMessage) -> int:
        """Milliseconds until a task that goes on waiting is looked at again."""
        now_ms = self._clock.now_ms()
        waited_ms = now_ms - parked.parked_ms
        unreported = any(
            name.value in parked.standing for name in (DependencyStatus.UNKNOWN, DependencyStatus.HELD)
        )
        most = UNREPORTED_LOOK_MS if unreported else LAST_LOOK_MS
        if parked.until_ms:
            most = min(most, parked.until_ms - now_ms)
        return max(FIRST_LOOK_MS, min(most, waited_ms))

    def hurry_waiters(self, messages: Sequence[ReceivedMessage]) -> bool:
        """Have the tasks looked at now that wait for sessions whose ends are reported here; return True if there are
        any.
        """
        ends = [received for received in messages if MESSAGE_TYPES[received.type].ends == "task"]
        pipeline = self._redis.pipeline(transaction=False)
        for received in ends:
            book = keys.conversation(received.entry.stream.shard, received.conversation)
            # The session's launch stands behind the messages that it has sent or received since.
            refs = received.message.header.conversation_chain[:NEAREST] or ("",)
            pipeline.hmget(book, [f"launch:{ref.lower()}" for ref in refs])
        answers = pipeline.execute() if ends else []
        sessions = list(dict.fromkeys(one.decode() for answer in answers for one in answer if one))
        pipeline = self._redis.pipeline(transaction=False)
        for session in sessions:
            pipeline.smembers(keys.waiters(session))
        waiters = [member.decode() for found in (pipeline.execute() if sessions else []) for member in found]
        for waiter in sorted(waiters):
            shard, _, name = waiter.partition(":")
            self._delayed.hurry(int(shard, 16), [name])
        return bool(waiters)

    def _note_waiter(
        self, received: ReceivedMessage, sessions: dict[str, str], standings: dict[str, DependencyStatus]
    ) -> None:
        pipeline = self._redis.pipeline(transaction=False)
        waiter = f"{received.entry.stream.shard:02x}:{parked_id(received.entry)}"
        for task, session in sessions.items():
            if session and standings[task] is DependencyStatus.OUTSTANDING:
                pipeline.sadd(keys.waiters(session), waiter)
                pipeline.pexpire(keys.waiters(session), _WAITERS_MS)
        pipeline.execute()

    def _sessions(self, shard: int, conversation: str, tasks: Sequence[str]) -> dict[str, str]:
        """The session of each task; `held` for a task that is blocked itself, empty for an unknown one."""
        return self._all_sessions([(shard, conversation, tasks)])[0]

    def _all_sessions(self, wanted: Sequence[tuple[int, str, Sequence[str]]]) -> list[dict[str, str]]:
        pipeline = self._redis.pipeline(transaction=False)
        for shard, conversation, tasks in wanted:
            book = keys.conversation(shard, conversation)
            # Tasks may take longer than a conversation's record is kept after its last message.
            pipeline.pexpire(book, self._keep_ms)
            for task in tasks:
                pipeline.hmget(book, f"task:{task}", f"held:{task}")
        answers: Iterator[Any] = iter(pipeline.execute())
        found = []
        for _, _, tasks in wanted:
            next(answers)
            found.append({task: _session(task, next(answers)) for task in tasks})
        return found

    def _standings(self, conversation: str, sessions: dict[str, str]) -> dict[str, DependencyStatus]:
        return _standings(conversation, sessions, self._find(sessions.values()))

    def _find(self, sessions: Iterable[str]) -> dict[str, Session]:
        named = dict.fromkeys(session for session in sessions if session and session != _HELD)
        return {session.id: session for session in self._ledger.find(list(named))}

    def _circle(self, shard: int, conversation: str, task: str, waited_for: Sequence[str]) -> list[str]:
        """Return the circle that the task would close; empty if there is none.

        A blocked task goes on when the tasks it waits for have ended, and a session ends after its children.
        """
        book = keys.conversation(shard, conversation)
        above = list(self._above(task)) if is_session_id(task) else []
        ends = [task, *above]
        if set(ends).isdisjoint(waited_for):
            wanted: Any = self._redis.hmget(book, [f"wanted:{end}" for end in ends])
            if not any(wanted):
                return []
        # Which task led to which, a level of them in one round trip.
        led_by = dict.fromkeys(waited_for, task)
        level = list(led_by)
        while level:
            for other in level:
                if other == task:
                    return self._way(led_by, task, other)
                if other in above:
                    way = self._way(led_by, task, other)
                    return [*way, *reversed(above[: above.index(other)]), task]
            answers: Any = self._redis.hmget(book, [f"held:{other}" for other in level])
            found: dict[str, str] = {}
            for other, answer in zip(level, answers, strict=True):
                found |= dict.fromkeys(json.loads(answer) if answer else (), other)
            level = [other for other in found if other not in led_by]
            led_by |= {other: found[other] for other in level}
        return []

    @staticmethod
    def _way(led_by: dict[str, str], task: str, last: str) -> list[str]:
        """The tasks from ``task`` to ``last``, each of which waits for the next."""
        way = [last]
        while (last := led_by[last]) != task:
            way.append(last)
        return [task, *reversed(way)]

    def _above(self, session: str) -> Iterator[str]:
        """The sessions that cannot end before this session, nearest first."""
        while session:
            found = self._ledger.find([session])
            if not found or not found[0].parent or not found[0].callback:
                return
            session = found[0].parent
            yield session


#: Stands for the session of a task that has none yet, as it is blocked itself.
_HELD: Final = "held"
_UNMET: Final = frozenset({DependencyStatus.OUTSTANDING, DependencyStatus.HELD, DependencyStatus.UNKNOWN})


def _session(task: str, facts: Sequence[bytes | None]) -> str:
    if is_session_id(task):
        return task
    return facts[0].decode() if facts[0] else _HELD if facts[1] else ""


def _standings(
    conversation: str, sessions: dict[str, str], known: dict[str, Session]
) -> dict[str, DependencyStatus]:
    """Return the status of each task for a message of that conversation, which all sessions of a tree share."""
    return {task: _standing(conversation, name, known.get(name)) for task, name in sessions.items()}


def _standing(conversation: str, name: str, session: Session | None) -> DependencyStatus:
    if session is None:
        return DependencyStatus.HELD if name == _HELD else DependencyStatus.UNKNOWN
    if session.correlation != conversation:
        return DependencyStatus.OUTSIDE
    if session.state is SessionState.FINISHED:
        return DependencyStatus.COMPLETED
    return DependencyStatus.FAILED if session.state in CLOSED else DependencyStatus.OUTSTANDING


def _may_decide(before: str, now: str) -> bool:
    """Return True if another look at a waiting task may decide differently now.

    A task of many dependencies is not looked at again for each that completes, but for the last, for a failure, and
    for a dependency that has got a session.
    """
    then, stand = before.split(","), now.split(",")
    if len(then) != len(stand) or _UNMET.isdisjoint(stand):
        return True
    return any(
        new != old and (old, new) != (DependencyStatus.OUTSTANDING, DependencyStatus.COMPLETED)
        for old, new in zip(then, stand, strict=True)
    )


def _text(standings: dict[str, DependencyStatus]) -> str:
    return ",".join(standing.value for standing in standings.values())

"""Tasks that wait for other tasks: held until those complete, failed when one of them fails.

A task is named by its session id, or by the task-id that a foreign program gave it in the same conversation.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from orchestrator.clock import Clock
from orchestrator.envelope.bodies import TaskDelegation
from orchestrator.ids import is_session_id
from orchestrator.ledger import CLOSED, Ledger, SessionState
from orchestrator.redisdb import keys
from orchestrator.router.intake import reject
from orchestrator.router.letter import Letter, Rejection
from orchestrator.router.parking import Parked, Tasks

#: Milliseconds between two looks at the tasks that one waits for.
LOOK_EVERY_MS: Final = 250


class Standing(StrEnum):
    """Where a task stands that another one waits for."""

    COMPLETED = "completed"
    FAILED = "failed"
    OUTSTANDING = "outstanding"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Held:
    """The letter has to wait for other tasks."""

    tasks: Tasks
    since_ms: int
    reason: str


class Dependencies:
    """Judges tasks by those that they wait for."""

    def __init__(self, ledger: Ledger, *, clock: Clock, ignore_failed: bool = False) -> None:
        self._ledger = ledger
        self._clock = clock
        self._ignore_failed = ignore_failed

    def judge(self, letter: Letter, *, timeout_s: float) -> Held | Rejection | None:
        """Whether the letter has to wait, cannot be carried out at all, or can now (None)."""
        body = letter.body
        if not isinstance(body, TaskDelegation) or not body.task.dependencies:
            return None
        waited_for = list(dict.fromkeys(d.task_id for d in body.task.dependencies))
        shard, conversation = letter.entry.stream.shard, letter.conversation
        circle = self._circle(shard, conversation, body.task.task_id, waited_for)
        if circle:
            reason = f"tasks wait for each other in a circle: {' → '.join(circle)}; take one dependency out"
            return reject("dependency-cycle", reason, letter.message)
        standings = self._standings(shard, conversation, waited_for)
        failed = [task for task, standing in standings.items() if standing is Standing.FAILED]
        if failed and not self._ignore_failed:
            reason = f"it depends on {', '.join(failed)}, which failed"
            return reject("dependency-failed", reason, letter.message)
        unmet = {
            task: standing
            for task, standing in standings.items()
            if standing in {Standing.OUTSTANDING, Standing.UNKNOWN}
        }
        if not unmet:
            return None
        now_ms = self._clock.now_ms()
        since = letter.entry.extra.get("since", "")
        since_ms = int(since) if since.isascii() and since.isdigit() and len(since) < 16 else now_ms
        unknown = [task for task, standing in unmet.items() if standing is Standing.UNKNOWN]
        if unknown and now_ms - since_ms >= timeout_s * 1000:
            reason = f"it depends on {', '.join(unknown)}, of which nothing was heard within {timeout_s:g} s"
            return reject("timeout", reason, letter.message)
        return Held(
            tasks=Tasks(task_id=body.task.task_id, waited_for=waited_for, standing=_text(standings)),
            since_ms=since_ms,
            reason=f"waits for {', '.join(unmet)}",
        )

    def stirred(self, parked: Sequence[Parked]) -> list[bool]:
        """For each task that waits, whether any of those it waits for stands differently now.

        One that waits for something unknown stirs from time to time, so that its timeout is noticed.
        """
        found = []
        now_ms = self._clock.now_ms()
        for one in parked:
            standing = _text(self._standings(one.stream.shard, one.conversation, one.tasks))
            unknown = Standing.UNKNOWN.value in standing
            found.append(standing != one.standing or (unknown and now_ms - one.parked_ms > 5000))
        return found

    def _standings(self, shard: int, conversation: str, tasks: Sequence[str]) -> dict[str, Standing]:
        book = keys.conversation(shard, conversation)
        pipeline = self._ledger.redis.pipeline(transaction=False)
        for task in tasks:
            pipeline.hmget(book, f"task:{task}", f"held:{task}")
        facts: list[Any] = pipeline.execute()
        sessions = [
            task if is_session_id(task) else (fact[0].decode() if fact[0] else "")
            for task, fact in zip(tasks, facts, strict=True)
        ]
        states = {s.id: s.state for s in self._ledger.find([session for session in sessions if session])}
        found: dict[str, Standing] = {}
        for task, session, fact in zip(tasks, sessions, facts, strict=True):
            state = states.get(session)
            if state is SessionState.FINISHED:
                found[task] = Standing.COMPLETED
            elif state in CLOSED:
                found[task] = Standing.FAILED
            else:
                known = state is not None or bool(fact[1])
                found[task] = Standing.OUTSTANDING if known else Standing.UNKNOWN
        return found

    def _circle(self, shard: int, conversation: str, task: str, waited_for: Sequence[str]) -> list[str]:
        """The circle that the task would close, by the tasks of its conversation that wait; empty: none."""
        book = keys.conversation(shard, conversation)
        paths = [[task, other] for other in waited_for]
        seen: set[str] = set()
        while paths:
            path = paths.pop()
            if path[-1] == task:
                return path
            if path[-1] in seen:
                continue
            seen.add(path[-1])
            answer: Any = self._ledger.redis.hget(book, f"held:{path[-1]}")
            if answer:
                paths += [[*path, other] for other in json.loads(answer)]
        return []


def _text(standings: dict[str, Standing]) -> str:
    return ",".join(standing.value for standing in standings.values())

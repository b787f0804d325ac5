"""Bad moments of a router: a server without memory, a clock that was set back, a step that another one is just taking."""

from __future__ import annotations

import contextlib

import redis as redis_py

from orchestrator.envelope.model import (
    StatusUpdate,
)
from orchestrator.redisdb.scripts import Scripts
from orchestrator.router.parking import Parking
from tests.integration.router.conftest import Stack

DAY_MS = 86_400_000


def now_ms(stack: Stack) -> int:
    """The server's time."""
    return int(stack.redis.time()[0]) * 1000


def waiting(stack: Stack) -> int:
    """How many messages wait outside of the streams."""
    return len(Parking(Scripts(stack.redis), shards=[0], mark_ms=60_000).all())


def test_a_server_without_memory_condemns_no_message(stack: Stack) -> None:
    """However often it is tried meanwhile, all is carried out when there is memory again."""
    session = stack.submit()
    for number in range(5):
        update = StatusUpdate(task_id=f"t{number}", status="in-progress")
        stack.publish(stack.envelope(update), "status-update")
    routers = [stack.router(str(number), reclaim_idle_ms=0) for number in range(8)]
    stack.redis.config_set("maxmemory", 1)
    try:
        for router in routers:
            with contextlib.suppress(redis_py.exceptions.OutOfMemoryError):
                router.run_once()
    finally:
        stack.redis.config_set("maxmemory", 0)
    assert stack.dead() == []
    done = sum(stack.router(f"later {n}", reclaim_idle_ms=0).run_once().done for n in range(2))
    assert (done, stack.dead(), stack.pending(), waiting(stack)) == (6, [], 0, 0)
    assert stack.parts.ledger.session(session).busy

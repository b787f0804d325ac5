"""The ready runs of a stack, as a slot of a worker that serves everything would find them."""

from __future__ import annotations

from orchestrator.bootstrap import Container
from orchestrator.ledger import RunRef, RunState
from orchestrator.redisdb import ledger_keys


def ready_runs(parts: Container) -> list[tuple[RunRef, str]]:
    """Those that can be taken, each with the queue of its agent, in the order in which they were made."""
    found = []
    for record in parts.agents.all():
        shards = range(parts.settings.shards)
        ready = [run for s in shards for run in parts.redis.zrange(ledger_keys.ready(s, record.name), 0, -1)]
        for run_id in ready:
            run = parts.ledger.run(run_id.decode())
            if run is not None and run.state is RunState.QUEUED:
                dispatch = RunRef(run=run.id, session=run.session, agent=record.name, cause=run.cause)
                found.append((run.created_ms, dispatch, record.queue))
    return [(dispatch, queue) for _, dispatch, queue in sorted(found, key=lambda one: one[0])]

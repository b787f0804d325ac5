"""Counts of random plays of the ledger, with callers that are late, dead or say things twice: they are what the ledger has."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import redis as redis_py

from orchestrator.audit.transitions import Step
from orchestrator.ledger import Ledger, RunState
from orchestrator.ledger.gauges import standings
from orchestrator.redisdb import keys
from orchestrator.telemetry.fold import Fold
from orchestrator.testing.simulation.link import Link, SimulatedPool
from tests.simulation.ledger import LedgerMachine

PLAYS, AT_ONCE = 80, 40


@pytest.mark.parametrize("first", range(0, PLAYS, AT_ONCE))
def test_the_counts_of_a_play_are_those_of_the_ledger(first: int) -> None:
    machine = LedgerMachine()
    seen: Counter[str] = Counter()
    for seed in range(first, first + AT_ONCE):
        assert machine.play(seed) is None
        client = redis_py.Redis(connection_pool=SimulatedPool(Link(machine.server)))
        rows: Any = client.xrange(keys.transitions(0))
        steps = [
            Step(row[0].decode(), *next((n.decode(), v.decode()) for n, v in row[1].items())) for row in rows
        ]
        fold, spans = Fold(), Counter[str]()
        fold.spans = []

        def agents_of(sessions: Any, client: redis_py.Redis = client) -> dict[str, tuple[str, str]]:
            return {name: (s.agent, s.root) for name, s in standings(client, list(sessions)).items()}

        # A part at a time, and through its file, as an exporter that is killed reads it.
        for start in range(0, len(steps), 20):
            fold.apply("00/ledger/transitions", steps[start : start + 20], agents_of)
            spans.update(span.id for span in fold.spans or ())
            fold = Fold.from_json(fold.to_json())
            fold.spans = []
        ledger = Ledger(client)
        sessions = [name for name, _ in ledger.all_sessions()]
        runs = {run.id: run for name in sessions for run in ledger.runs(name)}
        found = standings(client, sessions)
        for name, standing in found.items():
            assert fold.pending_of(name) == standing.pending, (seed, name)
        if not {"removed"} & {line.split(" ")[3] for step in steps for line in step.changes.split("\n")}:
            for state in ("launched", "delivered", "dead"):
                kept = sum(getattr(session, state) for session in ledger.find(sessions))
                assert fold.totals.of("orchestra_callbacks_total", state) == kept, (seed, state)
        assert fold.gap == 0, seed
        at_work = {run.id for run in runs.values() if run.state is RunState.RUNNING}
        queued = {run.id for run in runs.values() if run.state is RunState.QUEUED}
        assert {name for name, run in fold.runs.items() if run.claimed_ms} == at_work, seed
        assert {name for name, run in fold.runs.items() if not run.claimed_ms} == queued, seed
        # Each attempt that has ended is one span.
        attempts = sum(run.attempt for run in runs.values()) - len(at_work)
        assert set(spans.values()) <= {1}, seed
        assert sum(spans.values()) >= attempts, seed
        seen.update(
            {
                state: 1
                for state in ("launched", "delivered", "dead")
                if fold.totals.of("orchestra_callbacks_total", state)
            }
        )
        seen["spans"] += len(spans)
    assert seen["launched"] > seen["delivered"] > 0
    assert seen["dead"]
    assert seen["spans"] > AT_ONCE

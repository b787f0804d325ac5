"""The times by which the parts of a stack act, and what keeps the runs of an agent from being taken."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.bootstrap import Container
from orchestrator.ids import shard_of
from orchestrator.ledger import HeldBack, RunState
from orchestrator.ledger.snapshot import Snapshot
from orchestrator.machine import Clock
from orchestrator.runtime.service import is_served, living_agents

#: Seconds for which it is remembered which agents are served.
_LIVING_S: Final = 1.0


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms for the sessions of an agent. Times are in seconds."""

    lease_s: float
    sweep_s: float
    run_limit_s: float
    #: Why nobody takes the runs of the agent, in words; empty: a living worker serves it.
    nobody: str = ""
    #: What keeps the ready runs of the agent, or of the tree, from being taken; None: nothing.
    held_back: HeldBack | None = None


class TermsReader:
    """Reads the terms of agents from one stack."""

    def __init__(self, parts: Container, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock
        self._living: frozenset[tuple[str, str]] = frozenset()
        self._look_again_at = -math.inf
        settings = parts.settings
        self._terms = Terms(
            lease_s=settings.lease_s,
            sweep_s=settings.sweep_interval_s,
            run_limit_s=settings.run_time_limit_s,
        )

    def of(self, agent: str) -> Terms:
        """Return the terms of an agent."""
        record = self._parts.agents.get(agent)
        if record is None:
            return replace(self._terms, nobody=f"no agent {agent!r} is registered")
        now = self._clock.monotonic()
        if now >= self._look_again_at:
            self._living, self._look_again_at = living_agents(self._parts.redis), now + _LIVING_S
        nobody = "" if is_served(record, self._living) else f"no living worker serves {agent!r}"
        return replace(self._terms, run_limit_s=record.time_limit_s or self._terms.run_limit_s, nobody=nobody)

    def within(self, snapshot: Snapshot) -> Terms:
        """Return the terms of a session: those of its agent, and what keeps its queued run from being taken."""
        session, run = snapshot.session, snapshot.run
        terms = self.of(session.agent)
        if run is None or run.state != RunState.QUEUED or terms.nobody:
            return terms
        shard = shard_of(session.id)
        held_back = self._parts.concurrency.held_back(session.agent, shard=shard, root=session.root)
        return replace(terms, held_back=held_back)

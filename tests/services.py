"""The services of a stack as a test works them: callback service and reaper, what they send, and clocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import redis as redis_py

from orchestrator.bootstrap import Container
from orchestrator.errors import ServerUnavailable
from orchestrator.ids import new_claim_id
from orchestrator.ledger import ClaimedRun, Ledger, RunRef
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.reconciler.delivery import Delivery
from orchestrator.reconciler.reaper import Reaper
from tests.clock import ManualClock
from tests.ready import ready_runs


class Services:
    """One callback service and one reaper whose dispatches are collected instead of sent."""

    def __init__(self, redis: redis_py.Redis, ledger: Ledger) -> None:
        self.redis, self.ledger = redis, ledger
        self.sent: list[RunRef] = []
        self.settled: list[str] = []
        self.broken = False
        self.clock = ManualClock()
        self.delivery = Delivery(self.ledger, self._send)
        self.service = self.callback_service("one")
        self.reaper = self.make_reaper()

    def callback_service(self, name: str) -> CallbackService:
        return CallbackService(self.redis, self.delivery, consumer=name, clock=self.clock, take_over_ms=100)

    def make_reaper(self) -> Reaper:
        return Reaper(self.ledger, self.delivery, settle=self._settle, clock=self.clock, lease_s=15)

    def _settle(self, root: str) -> None:
        self.settled.append(root)
        self.ledger.sweep.mark_result_published(root)

    def _send(self, ready: Sequence[RunRef]) -> None:
        if self.broken:
            raise ConnectionError("broker is away")
        self.sent += ready

    def drain(self) -> None:
        """Let the callback service do what there is to do."""
        while self.service.run_once():
            pass

    def resumed(self) -> ClaimedRun:
        """The run that was made ready last, once the callback service has nothing left to do; claimed."""
        self.drain()
        run = self.sent[-1]
        held = self.ledger.claim(run.run, new_claim_id(), session_id=run.session, worker="w1")
        assert held is not None
        return held


@dataclass
class Sent:
    """A dispatcher that remembers whom it rang; `down` makes it behave as when the broker is away."""

    parts: Container
    wakeups: list[tuple[str, str]] = field(default_factory=list)
    down: bool = False
    _cleared: set[str] = field(default_factory=set)

    def wake(self, agents: Iterable[tuple[str, str]]) -> None:
        pairs = list(agents)
        if self.down and pairs:
            raise ServerUnavailable("the Celery broker", "away")
        self.wakeups += pairs

    @property
    def runs(self) -> list[tuple[RunRef, str]]:
        """The ready runs, each with the queue of its agent, in the order in which they were made."""
        return [(run, queue) for run, queue in ready_runs(self.parts) if run.run not in self._cleared]

    def clear(self) -> None:
        """Forget what is ready now."""
        self._cleared |= {dispatch.run for dispatch, _ in self.runs}

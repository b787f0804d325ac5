"""The ledger as everyone uses it: readings and transitions in one object."""

from __future__ import annotations

import redis

from orchestrator.ledger.approvals import Approvals
from orchestrator.ledger.journal import Journal
from orchestrator.ledger.provider_calls import ProviderCalls
from orchestrator.ledger.spending import Spending
from orchestrator.ledger.statements import Vouch
from orchestrator.ledger.sweep import SweepTransitions
from orchestrator.ledger.transitions import Report, TreeLimits
from orchestrator.redisdb.scripts import Scripts


class Ledger(SweepTransitions):
    """Sessions, runs, delegations and callbacks on one Redis. Safe to share between threads.

    The layers, each a module of its own: :class:`LedgerReader` reads, :class:`Launches` begins sessions, :class:`Runs`
    claims and commits, :class:`Mailbox` queues and flushes, :class:`Termination` ends from outside,
    :class:`SweepTransitions` repairs.
    ``report`` makes the envelopes for sessions that are ended from outside; without it nobody outside of the ledger
    hears of such an end. ``vouch`` proves who says what is put into it; without it nothing is proven. ``now_ms`` fixes the time for tests; by default every transition takes the server's.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        limits: TreeLimits | None = None,
        report: Report | None = None,
        vouch: Vouch | None = None,
        now_ms: int | None = None,
    ) -> None:
        super().__init__(client)
        self.scripts = Scripts(client)
        self.limits = limits or TreeLimits()
        #: The durable steps of runs.
        self.journal = Journal(client, self.limits.journal, replicate=self._replicate)
        #: Calls of providers' models, within their limits.
        self.provider_calls = ProviderCalls(client, now=lambda: self._now)
        #: What runs spend, and their budgets.
        self.spending = Spending(client, now=lambda: self._now)
        #: Questions that only a person answers.
        self.approvals = Approvals(self, now=lambda: self._now)
        self._report = report
        self._vouch = vouch
        self._now = "" if now_ms is None else str(now_ms)

    def set_time(self, now_ms: int) -> None:
        """Fix the time of the following transitions, for tests that step it."""
        self._now = str(now_ms)

"""The ledger as everyone uses it: readings and transitions in one object."""

from __future__ import annotations

import redis

from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.decode import Attest
from orchestrator.ledger.inbox import Approvals, Inbox
from orchestrator.ledger.journal import Journal
from orchestrator.ledger.large_text import EncryptionContext
from orchestrator.ledger.launches import Launches
from orchestrator.ledger.live_text import LiveText
from orchestrator.ledger.reader import PrintedTexts
from orchestrator.ledger.runs import Runs
from orchestrator.ledger.spending import ProviderCalls, Spending
from orchestrator.ledger.sweep import Sweep, Termination
from orchestrator.ledger.transitions import Report, TreeLimits


class Ledger(LedgerCore):
    """Sessions, runs, delegations and callbacks on one Redis. Safe to share between threads.

    It reads by itself. Its parts change it, each in a module of its own; their transitions are called by their names
    here. The arguments are those of :class:`LedgerCore`.
    """

    def __init__(
        self,
        client: redis.Redis,
        encryption: EncryptionContext | None = None,
        *,
        limits: TreeLimits | None = None,
        report: Report | None = None,
        attest: Attest | None = None,
        now_ms: int | None = None,
    ) -> None:
        super().__init__(client, encryption, limits=limits, report=report, attest=attest, now_ms=now_ms)
        #: The durable steps of runs.
        self.journal = Journal(self)
        #: Calls of providers' models, within their limits.
        self.provider_calls = ProviderCalls(self)
        #: What runs spend, and their budgets.
        self.spending = Spending(self)
        #: Questions that only a person answers.
        self.approvals = Approvals(self)
        #: What sessions write while they work.
        self.live = LiveText(client, self.seals)
        #: What runs print.
        self.printed = PrintedTexts(client)

        launches = Launches(self)
        self.submit = launches.submit
        self.delegate = launches.delegate
        self.delegate_all = launches.delegate_all
        self.start_call = launches.start_call
        self.started = launches.started

        held = Runs(self)
        self.claim = held.claim
        self.claim_next = held.claim_next
        self.renew = held.renew
        self.commit = held.commit
        self.commit_all = held.commit_all
        self.reject = held.reject
        self.memory = held.memory
        self.effect = held.effect
        self.status = held.status
        self.take_external = held.take_external

        inbox = Inbox(self)
        self.enqueue = inbox.enqueue
        self.send = inbox.send
        self.withdraw = inbox.withdraw
        self.claim_item = inbox.claim_item
        self.flush = inbox.flush
        self.flush_all = inbox.flush_all

        termination = Termination(self)
        self.refuse = termination.refuse
        self.stop = termination.stop
        self.release = termination.release
        self.abandon = termination.abandon
        self.inherit = termination.inherit
        self.finish_cleanup = termination.finish_cleanup

        #: What the reconciler looks for and repairs.
        self.sweep = Sweep(self)

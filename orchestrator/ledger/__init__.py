"""The ledger: sessions, runs, delegations and callbacks in Redis, changed only by atomic transitions.

Each name is imported when it is first used: who only looks at sessions loads no transition.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchestrator.ledger.concurrency import Concurrency, HeldBack
    from orchestrator.ledger.journal import Journal, StepHeader, StepRecord
    from orchestrator.ledger.ledger import Ledger
    from orchestrator.ledger.model import (
        BY_FORCE,
        CLOSED,
        OVERDUE,
        WORKER_LOST,
        Item,
        ItemState,
        Run,
        RunState,
        Session,
        SessionState,
        Try,
    )
    from orchestrator.ledger.reader import LedgerReader
    from orchestrator.ledger.transitions import (
        Claim,
        ClaimedRun,
        Committed,
        Delegated,
        EndedRun,
        Flushed,
        JournalLimits,
        Launch,
        Lease,
        Outcome,
        Outgoing,
        PollRequest,
        Renewal,
        RetryLater,
        RunRef,
        Settled,
        Slot,
        Start,
        StopVerdict,
        Submitted,
        TooLate,
        TreeLimits,
    )

__all__ = [
    "BY_FORCE",
    "CLOSED",
    "OVERDUE",
    "WORKER_LOST",
    "Claim",
    "ClaimedRun",
    "Committed",
    "Concurrency",
    "Delegated",
    "EndedRun",
    "Flushed",
    "HeldBack",
    "Item",
    "ItemState",
    "Journal",
    "JournalLimits",
    "Launch",
    "Lease",
    "Ledger",
    "LedgerReader",
    "Outcome",
    "Outgoing",
    "PollRequest",
    "Renewal",
    "RetryLater",
    "Run",
    "RunRef",
    "RunState",
    "Session",
    "SessionFilter",
    "SessionState",
    "Settled",
    "Slot",
    "Start",
    "StepHeader",
    "StepRecord",
    "StopVerdict",
    "Submitted",
    "Tally",
    "TooLate",
    "TreeLimits",
    "Try",
]

#: The modules that have these names; each imports those before it, if any.
_MODULES = ("model", "reader", "transitions", "concurrency", "journal", "ledger")


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
    value = next(getattr(module, name) for module in modules if hasattr(module, name))
    globals()[name] = value
    return value

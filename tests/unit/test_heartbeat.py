"""One thread renews the leases of all runs of a process."""

from __future__ import annotations

import threading
from typing import Any

from orchestrator.ledger import Claim
from orchestrator.worker.execution.heartbeat import ClaimStatus, Heartbeat, ticker
from tests.waiting import wait_until


class Leases:
    """Counts renewals; of nothing else is a ledger asked here."""

    def __init__(self) -> None:
        self.renewed: list[str] = []

    def renew(self, claim: Claim) -> Any:
        self.renewed.append(claim.run)
        return type("Renewal", (), {"held": True, "stop": ""})()


def heartbeat(leases: Leases, run: str, *, time_limit_s: float, end: Any) -> Heartbeat:
    return Heartbeat(
        leases,  # type: ignore[arg-type]
        ClaimStatus(Claim(run=run, claim="c", session="ses_0", parent="", root="ses_0")),
        interval_s=0.02,
        time_limit_s=time_limit_s,
        grace_s=0,
        end=end,
        beats=ticker,
    )


def test_an_end_by_force_that_waits_for_the_ledger_holds_up_no_other_lease() -> None:
    leases, begun, answered = Leases(), threading.Event(), threading.Event()

    def end(reason: str) -> None:
        begun.set()
        answered.wait(30)

    with (
        heartbeat(leases, "other", time_limit_s=600, end=end),
        heartbeat(leases, "blocked", time_limit_s=0.05, end=end),
    ):
        assert begun.wait(30)
        before = len(leases.renewed)
        wait_until(lambda: len(leases.renewed) > before + 3, "renewals go on")
        answered.set()

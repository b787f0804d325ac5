"""What a run leaves behind when it is not at work any more: the doctor names it, and takes it away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.doctor import Severity
from orchestrator.ledger.leftovers import RULES
from orchestrator.policy.budget import Budget
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from tests.examined import doctor_of
from tests.kit import Kit

LARGE = "x" * 200_000


def diagnose(kit: Kit, *, mend: bool = False) -> list[tuple[str, str]]:
    """Rule and subject of what is left; with ``mend``, after it was put right."""
    doctor = doctor_of(kit)
    found = doctor.examine(watch_leases=False)
    if mend:
        doctor.repair(found)
        found = doctor.examine(watch_leases=False)
    breaks = [f for f in found.findings if f.severity is Severity.BREAK or f.rule in RULES]
    assert {f.rule for f in breaks} <= RULES
    return sorted((f.rule, f.subject) for f in breaks)


def restore(kit: Kit, kept: dict[str, bytes]) -> None:
    for name, dumped in kept.items():
        kit.redis.restore(name, 0, dumped, replace=True)


def spent(
    kit: Kit, *, watch: Callable[[Context], object] = lambda ctx: None
) -> tuple[str, str, dict[str, Any]]:
    """A session that has ended, its run, and the keys that this run had while it was at work."""
    kept: dict[str, Any] = {}

    @kit.agent("lead", budget={"requests": 100})
    def lead(ctx: Context) -> str:
        ctx.step("small", lambda: 1)
        ctx.step("large", lambda: LARGE)
        with ctx.spending.reserve(input_tokens=10, output_tokens=5):
            watch(ctx)
            for name in kit.redis.scan_iter(f"ao:*:{ctx.run}:*"):
                kept[name.decode()] = kit.redis.dump(name)
        return "done"

    session = kit.begin("lead", ends="finished", budget=Budget(tokens=1000))
    (run,) = kit.ledger.runs(session)
    return session, run.id, kept


def test_while_runs_are_at_work_nothing_is_left(kit: Kit) -> None:
    seen: list[Any] = []
    spent(kit, watch=lambda ctx: seen.append(diagnose(kit)))
    assert seen == [[]]
    assert diagnose(kit) == []


def test_a_journal_of_a_run_that_has_ended_goes(kit: Kit) -> None:
    """With the large values beside it; what people are shown of the steps stays."""
    session, run, kept = spent(kit)
    journal = {name: dumped for name, dumped in kept.items() if ":steps" in name}
    assert len(journal) == 2  # the journal, and a large value
    before = kit.ledger.runs(session)
    restore(kit, journal)
    assert diagnose(kit) == [("journal-left", run)]
    assert diagnose(kit, mend=True) == []
    assert not list(kit.redis.scan_iter(f"ao:*:{run}:steps*"))
    assert kit.ledger.runs(session) == before


def test_a_journal_of_a_run_that_is_gone_goes(kit: Kit) -> None:
    """And the run is not there again because of it."""
    session, run, kept = spent(kit)
    kit.ledger.sweep.delete_session(session, session)
    restore(kit, {name: dumped for name, dumped in kept.items() if name.endswith((":steps", ":reserved"))})
    rules = [rule for rule, _ in diagnose(kit)]
    assert "journal-left" in rules
    assert "reservation-left" in rules
    assert diagnose(kit, mend=True) == []
    assert not list(kit.redis.scan_iter(f"ao:*{run}*"))


def test_a_reservation_of_a_run_that_is_not_at_work_comes_back(kit: Kit) -> None:
    """Whether its budgets still count it or not, they count what is reserved in the end."""
    session, run, kept = spent(kit)
    restore(kit, {name: dumped for name, dumped in kept.items() if name.endswith(":reserved")})
    budget = ledger_keys.budget(session)
    kit.redis.hset(budget, "reserved:tokens", 15)
    assert diagnose(kit) == [("reservation-left", run), ("reserved-wrong", budget)]
    assert diagnose(kit, mend=True) == []
    assert kit.redis.hget(budget, "reserved:tokens") == b"0"
    restore(kit, {name: dumped for name, dumped in kept.items() if name.endswith(":reserved")})
    assert diagnose(kit, mend=True) == []
    assert kit.redis.hget(budget, "reserved:tokens") == b"0"


@pytest.mark.parametrize("whose", ["session", "agent"])
def test_a_budget_that_counts_what_nobody_reserved_is_counted_again(kit: Kit, whose: str) -> None:
    """Also while another run holds a reservation, which stays."""
    seen: list[Any] = []

    def harm(ctx: Context) -> None:
        budget = ledger_keys.budget(ctx.session) if whose == "session" else ledger_keys.spending(0, "lead")
        right = int(kit.redis.hget(budget, "reserved:requests") or 0)
        kit.redis.hset(budget, "reserved:requests", right + 7)
        seen.append(diagnose(kit))
        seen.append(diagnose(kit, mend=True))
        seen.append(int(kit.redis.hget(budget, "reserved:requests") or 0) - right)
        seen.append(budget)

    spent(kit, watch=harm)
    found, left, more, budget = seen
    assert found == [("reserved-wrong", budget)]
    assert (left, more) == ([], 0)

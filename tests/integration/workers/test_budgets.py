"""What does not fit into a budget is refused before the call; what a lost worker had reserved counts as spent."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis as redis_py

from orchestrator.envelope.bodies import BudgetLimits, LaunchTerms
from orchestrator.errors import BudgetExceeded, ClaimLost, InputError
from orchestrator.policy.budget import Budget, BudgetState, Cost
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.worker.context.context import Context
from tests.kit import Kit

from .conftest import sent


def state_of(kit: Kit, session: str) -> BudgetState:
    found = kit.ledger.spending.budget(session)
    assert found is not None
    return found


def call(ctx: Context, *, most: int, cost: int) -> None:
    """A call that may need so many tokens, and needs some of them."""
    with ctx.spending.reserve(input_tokens=most) as reservation:
        reservation.settle(input_tokens=cost, usd=0.25)


def test_a_call_is_counted_with_what_it_cost(kit: Kit) -> None:
    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        call(ctx, most=100, cost=60)
        return "done"

    session = kit.begin("lead", ends="finished", budget=Budget(tokens=100, requests=5))
    state = state_of(kit, session)
    assert state.spent == {"requests": 1, "tokens": 60, "nano": 250_000_000}
    assert (state.left("tokens"), state.left("requests")) == (40, 4)
    assert state.users == {"lead": {"requests": 1, "tokens": 60, "nano": 250_000_000}}
    assert kit.ledger.session(session).used == Cost(requests=1, input_tokens=60, nano_usd=250_000_000)


@pytest.mark.parametrize(
    "cost",
    [
        {"input_tokens": 2**63},
        {"output_tokens": -1},
        {"usd": 1e30},
        {"usd": float("nan")},
        {"requests": 10**400},
    ],
    ids=str,
)
def test_a_cost_that_cannot_be_counted_is_refused_and_the_run_goes_on(kit: Kit, cost: dict[str, Any]) -> None:
    """A script that counted half of it would leave the budget wrong for good."""

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        with ctx.spending.reserve(input_tokens=50) as reservation:
            with pytest.raises(InputError, match="cannot be counted: give numbers from 0"):
                reservation.settle(**cost)
            reservation.settle(input_tokens=7)
        return "done"

    session = kit.begin("lead", ends="finished", budget=Budget(tokens=100))
    assert state_of(kit, session).spent["tokens"] == 7
    assert state_of(kit, session).reserved["tokens"] == 0


def test_what_is_spent_below_counts_above_and_is_refused_there(kit: Kit) -> None:
    """A child with a budget of its own: both count, and the error names the one that is used up."""
    said: list[str] = []

    @kit.agent("helper")
    def helper(ctx: Context) -> str:
        call(ctx, most=50, cost=50)
        for most in (40, 20):
            with pytest.raises(BudgetExceeded) as refused:
                ctx.spending.reserve(input_tokens=most)
            said.append(str(refused.value))
        return "done"

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            call(ctx, most=40, cost=35)
            ctx.delegate("helper", "x", budget={"tokens": 75}, group="sums", time_limit_s=60)
        return "waits"

    root = kit.begin("lead", ends="idle", budget=Budget(tokens=100))
    (child,) = kit.children(root)
    assert child.budgets == (root, child.id)
    assert kit.play(child.id) == "finished"
    assert state_of(kit, root).spent["tokens"] == 85
    assert state_of(kit, child.id).spent["tokens"] == 50
    assert state_of(kit, root).users["helper"]["tokens"] == 50
    assert sent(kit, "task-delegation", "high")[-1].body.launch == LaunchTerms(
        group="sums", time_limit_ms=60_000, budget=BudgetLimits(tokens=75)
    )
    assert said == [
        f"the budget of tree {root} does not allow this call: 15 tokens of 100 tokens are left, and this call may need "
        f"{most} tokens; used by helper 50 tokens, lead 35 tokens"
        for most in (40, 20)
    ]


def test_a_session_without_a_budget_is_counted_too(kit: Kit) -> None:
    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        call(ctx, most=10**9, cost=7)
        return "done"

    session = kit.begin("lead", ends="finished")
    assert kit.ledger.session(session).used.tokens == 7
    assert kit.ledger.spending.budget(session) is None


def test_the_budget_of_an_agent_is_for_a_time(kit: Kit) -> None:
    """All its sessions share it; when the time has passed it begins again."""
    kit.ledger.set_time(1_800_000_000_000)
    refused: list[str] = []

    @kit.agent("lead", budget={"tokens": 100, "per_s": 60})
    def lead(ctx: Context) -> str:
        try:
            call(ctx, most=60, cost=60)
        except BudgetExceeded as error:
            refused.append(str(error))
        return "done"

    for _ in range(2):
        session = kit.begin("lead", ends="finished")
    assert len(refused) == 1
    assert refused[0].startswith(
        "the budget of agent 'lead' does not allow this call: 40 tokens of 100 tokens are left"
    )
    assert "used by lead 60 tokens" in refused[0]
    shown = kit.orchestra("session", "budget", session).stdout
    assert "budget of agent lead\n  tokens: 60 of 100 spent, 0 reserved, 40 left\n" in shown
    kit.ledger.set_time(1_800_000_060_000)
    kit.begin("lead", ends="finished")
    assert len(refused) == 1


def test_what_a_lost_worker_had_reserved_counts_as_spent(kit: Kit) -> None:
    """Nobody knows what its call cost, so it cost the most; that is marked as an estimate, and said once."""
    stale: list[Context] = []

    @kit.agent("lead", budget={"requests": 10})
    def lead(ctx: Context) -> str:
        if ctx.attempt == 1:
            stale.append(ctx)
            reservation = ctx.spending.reserve(input_tokens=50, output_tokens=30, usd=0.5)
            assert state_of(kit, ctx.session).left("tokens") == 70
            kit.crash(ctx.session)
            assert state_of(kit, ctx.session).left("tokens") == 70
            reservation.settle(input_tokens=1)
        call(ctx, most=70, cost=20)
        with pytest.raises(ClaimLost):
            kit.ledger.spending.spend(stale[0]._effects.held.claim, "late", Cost(requests=1), agent="lead")
        return "done"

    session = kit.begin("lead", ends="lost", budget=Budget(tokens=150))
    assert kit.again(session) == "finished"
    state = state_of(kit, session)
    assert (state.spent["tokens"], state.reserved["tokens"]) == (100, 0)
    assert state.users["lead"]["tokens"] == 100
    assert kit.ledger.session(session).used == Cost(
        requests=2, input_tokens=70, output_tokens=30, nano_usd=750_000_000, estimated=80
    )


@pytest.mark.parametrize("end", ["completed", "failed", "again", "stopped", "by force"])
def test_what_a_run_left_reserved_is_spent(kit: Kit, redis: redis_py.Redis, end: str) -> None:
    @kit.agent("lead", attempts=2 if end == "again" else 1)
    def lead(ctx: Context) -> str:
        ctx.spending.reserve(input_tokens=80)
        if end in ("stopped", "by force"):
            kit.ledger.stop(ctx.session, "by a test", force=end == "by force")
        if end in ("failed", "again") and ctx.attempt == 1:
            raise ValueError("no")
        return "done"

    session = kit.begin("lead", budget=Budget(tokens=100))
    state = state_of(kit, session)
    assert (state.spent["tokens"], state.reserved["tokens"]) == (80, 0)
    assert not list(redis.scan_iter("*:reserved"))


def test_threads_together_never_spend_more_than_there_is(kit: Kit) -> None:
    refused: list[str] = []

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        def one(_: int) -> None:
            try:
                call(ctx, most=10, cost=10)
            except BudgetExceeded as error:
                refused.append(str(error))

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(60)))
        return "done"

    session = kit.begin("lead", ends="finished", budget=Budget(tokens=250))
    assert state_of(kit, session).spent["tokens"] == 250 == 10 * (60 - len(refused))


def test_a_refused_call_fails_its_run_with_the_reason(kit: Kit) -> None:
    """In a step as well; it is not recorded, so that a budget that grows lets another try go on."""
    called = []

    @kit.agent("lead")
    def lead(ctx: Context) -> None:
        def model() -> None:
            ctx.spending.reserve(input_tokens=101)
            called.append(1)

        ctx.step("model", model, retries=3)

    session = kit.begin("lead", ends="failed", budget=Budget(tokens=100))
    assert kit.answer(session).startswith(
        f"BudgetExceeded: the budget of tree {session} does not allow this call"
    )
    assert called == []


def test_a_spoilt_budget_lets_the_run_end(kit: Kit, redis: redis_py.Redis) -> None:
    """Somebody overwrites the key while a call is reserved: the commit is not held up by it."""

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        ctx.spending.reserve(input_tokens=10)
        redis.delete(ledger_keys.budget(ctx.session))
        redis.set(ledger_keys.budget(ctx.session), "of another type")
        return "done"

    kit.begin("lead", ends="finished", budget=Budget(tokens=100))


def test_the_setting_gives_every_tree_its_budget(kit: Kit) -> None:
    kit.parts.settings = kit.settings.model_copy(update={"tree_budget": "requests=2"})
    kit.agent("lead")(lambda _: "")
    assert state_of(kit, kit.submit("lead")).limits == {"requests": 2}
    assert state_of(kit, kit.submit("lead", budget=Budget(tokens=5))).limits == {"tokens": 5}


def test_the_audit_trail_is_told_what_a_run_did_and_spent(kit: Kit) -> None:
    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        ctx.step("plan", lambda: call(ctx, most=10, cost=10))
        return "done"

    kit.begin("lead", ends="finished")
    ((_, entry),) = kit.redis.xrange(keys.messages(0, "status-update", "normal"))
    assert entry[b"already_applied"] == b"1"
    assert b"1 step: plan#1 done after 0.0" in entry[b"envelope"]
    assert b"1 request, 10 + 0 tokens, 0.25 USD" in entry[b"envelope"]

"""Spending of runs on calls of models, and the budgets that bound it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import BudgetExceeded
from orchestrator.ids import shard_of
from orchestrator.ledger import decode
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.transitions import Claim
from orchestrator.policy.budget import RESOURCES, Budget, BudgetState, Cost, refusal
from orchestrator.redisdb import ledger_keys

#: Seconds that an agent's budget is for, unless it says otherwise.
DAY_S = 86_400


class Spending:
    """Reserves what calls may cost, and counts what they did cost. Safe to share between threads."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core
        self._client = core.redis

    def reserve(
        self,
        claim: Claim,
        reservation: str,
        cost: Cost,
        *,
        agent: str,
        budgets: Sequence[str],
        agent_budget: Budget | None = None,
    ) -> None:
        """Set aside the most that a call can cost, in all budgets or in none.

        Args:
            claim: of the run that makes the call.
            reservation: an id of its own; the same one is reserved once.
            cost: the most that the call can cost.
            agent: who makes it.
            budgets: the sessions whose budgets it counts against, the root first.
            agent_budget: what all sessions of the agent may spend together. With several shards each has its share.

        Raises:
            BudgetExceeded: it does not fit; nothing was reserved.
            ClaimLost: the run is not held under this claim any more.
        """
        limits = agent_budget.limits if agent_budget is not None else {}
        per_ms = round(((agent_budget.per_s if agent_budget is not None else None) or DAY_S) * 1000)
        need = {"requests": cost.requests, "tokens": cost.tokens, "nano": cost.nano_usd}
        reply = self._core.effect_of(
            claim,
            "reserve",
            reservation=reservation,
            need=_as_text({**need, "input": cost.input_tokens}),
            agent=agent,
            most=_as_text({name: limits[name] for name in RESOURCES if name in limits}),
            window_ms=per_ms,
            budgets=budgets,
        )
        if reply[0] == b"refused":
            number, resource = int(reply[1]), decode.text(reply[2])
            shard = shard_of(claim.run)
            name = ledger_keys.budget(budgets[number - 1]) if number else ledger_keys.spending(shard, agent)
            raw: Any = self._client.hgetall(name)
            state = budget_state(decode.mapping(raw))
            needed = need[resource]
            if not number:
                state = BudgetState(
                    limits=limits, spent=state.spent, reserved=state.reserved, users=state.users
                )
                whose = f"agent {agent!r}"
            else:
                session = budgets[number - 1]
                whose = f"tree {session}" if session == claim.root else f"session {session}"
            error = BudgetExceeded(whose, resource, refusal(state, resource, needed))
            error.left = int(reply[3])
            raise error

    def spend(self, claim: Claim, reservation: str, cost: Cost, *, agent: str) -> bool:
        """Count what a call did cost in place of what was reserved for it; False if that was done before.

        Raises:
            ClaimLost: the run is not held under this claim any more; what it had reserved has come back.
        """
        spent = {
            "requests": cost.requests,
            "input_tokens": cost.input_tokens,
            "output_tokens": cost.output_tokens,
            "nano_usd": cost.nano_usd,
            "estimated": cost.estimated,
        }
        reply = self._core.effect_of(
            claim, "spend", reservation=reservation, agent=agent, cost=_as_text(spent)
        )
        return bool(reply[0] == b"done")

    def budget(self, session: str) -> BudgetState | None:
        """Return the budget of a session as it stands; None if it has none."""
        raw: Any = self._client.hgetall(ledger_keys.budget(session))
        return budget_state(decode.mapping(raw)) if raw else None

    def of_agent(self, session: str, agent: str) -> BudgetState | None:
        """Return the budget of all sessions of an agent in the shard of ``session``, as of its last call; None if
        unlimited.
        """
        raw: Any = self._client.hgetall(ledger_keys.spending(shard_of(session), agent))
        state = budget_state(decode.mapping(raw))
        return state if state.limits else None

    def reserved(self, run: str) -> int:
        """Return the number of reservations that a run holds."""
        return int(self._client.hlen(ledger_keys.reserved(run)))


def budget_state(facts: Mapping[str, str]) -> BudgetState:
    """A budget from its hash."""
    groups: dict[str, dict[str, int]] = {"limit": {}, "spent": {}, "reserved": {}}
    users: dict[str, dict[str, int]] = {}
    for name, value in facts.items():
        kind, _, rest = name.partition(":")
        if kind in groups:
            groups[kind][rest] = int(value)
        elif kind == "by":
            agent, _, resource = rest.rpartition(":")
            users.setdefault(agent, {})[resource] = int(value)
    limits = {name: groups["limit"][name] for name in RESOURCES if name in groups["limit"]}
    return BudgetState(limits=limits, spent=groups["spent"], reserved=groups["reserved"], users=users)


def budget_facts(budget: Budget | None) -> str:
    """The limits of a new budget as the scripts take them, or nothing."""
    if budget is None:
        return ""
    return " ".join(f"{name} {limit}" for name, limit in budget.limits.items())


def _as_text(amounts: Mapping[str, int]) -> dict[str, str]:
    """Amounts as a script takes them, whose numbers are exact up to 2^53."""
    return {name: str(amount) for name, amount in amounts.items()}

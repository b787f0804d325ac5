"""Spending of one run on calls of models: reserved before a call, counted after it.

The most that a call can cost is reserved in the budgets of the session, of those above it and of the agent, in one
step. A call that does not fit is refused before it is made. Reservations of a lost worker count as spent: nobody
knows what its calls cost.
"""

from __future__ import annotations

import threading
from typing import Self

from orchestrator import machine
from orchestrator.errors import InputError
from orchestrator.policy.budget import MOST, NANO, Budget, Cost
from orchestrator.worker.context.effects import Effects


class Reservation:
    """Amount reserved for one call. As a ``with`` block it gives back what was not settled in it."""

    def __init__(self, spending: RunSpending, name: str) -> None:
        self._spending = spending
        self._name = name
        self._open = True

    def settle(
        self, *, requests: int = 1, input_tokens: int = 0, output_tokens: int = 0, usd: float = 0.0
    ) -> None:
        """Record the cost of the call. More than was reserved counts as well.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        self.settle_cost(_cost(requests, input_tokens, output_tokens, usd))

    def settle_cost(self, cost: Cost) -> None:
        """:meth:`settle` with one value."""
        if self._open:
            self._spending.spend(self._name, cost)
            self._open = False

    def release(self) -> None:
        """Give it back: the call was not made, or cost nothing."""
        self.settle_cost(Cost())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class RunSpending:
    """The costs of one run, in one try of it. Safe to share between threads."""

    def __init__(self, effects: Effects, *, agent_budget: Budget | None) -> None:
        self._effects = effects
        self._agent_budget = agent_budget
        self._adding = threading.Lock()
        self._limited: frozenset[str] | None = None
        #: What this try has spent.
        self.total = Cost()

    @property
    def limited(self) -> frozenset[str]:
        """Those of `requests`, `tokens` and `nano` (money) that a budget limits, so that a call must name its maximum
        of them.

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        if self._limited is None:
            own = self._agent_budget.limits if self._agent_budget is not None else ()
            self._limited = frozenset({*own, *self._effects.retrying("budgets", self._limits_of_sessions)})
        return self._limited

    def _limits_of_sessions(self) -> list[str]:
        spending = self._effects.ledger.spending
        states = [spending.budget(session) for session in self._effects.held.session.budgets]
        return [what for state in states if state is not None for what in state.limits]

    def reserve(
        self, *, requests: int = 1, input_tokens: int = 0, output_tokens: int = 0, usd: float = 0.0
    ) -> Reservation:
        """Set aside the most that a call can cost.

        Raises:
            BudgetExceeded: it does not fit into a budget; the error says into which one, what is left of it, and
                who used it.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        return self.reserve_cost(_cost(requests, input_tokens, output_tokens, usd))

    def reserve_cost(self, most: Cost) -> Reservation:
        """:meth:`reserve` with one value."""
        held, name = self._effects.held, machine.token_hex(8)
        self._effects.retrying(
            "reserve",
            lambda: self._effects.ledger.spending.reserve(
                held.claim,
                name,
                most,
                agent=held.session.agent,
                budgets=held.session.budgets,
                agent_budget=self._agent_budget,
            ),
        )
        return Reservation(self, name)

    def spend(self, reservation: str, cost: Cost) -> None:
        """Count the cost of a call."""
        held = self._effects.held
        self._effects.retrying(
            "spend",
            lambda: self._effects.ledger.spending.spend(
                held.claim, reservation, cost, agent=held.session.agent
            ),
        )
        with self._adding:
            self.total += cost


def _cost(requests: int, input_tokens: int, output_tokens: int, usd: float) -> Cost:
    if not all(
        0 <= number < MOST
        for number in (requests, input_tokens, output_tokens, input_tokens + output_tokens, usd * NANO)
    ):
        raise InputError(
            f"a cost of {requests} requests, {input_tokens} and {output_tokens} tokens, {usd} US dollars cannot be counted: "
            f"give numbers from 0 to {MOST:.0e}, and dollars to {MOST / NANO:.0e}"
        )
    return Cost(
        requests=requests, input_tokens=input_tokens, output_tokens=output_tokens, nano_usd=round(usd * NANO)
    )

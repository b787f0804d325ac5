"""Spending of one run on calls of models: priced, reserved before a call within the limits, counted after it.

The most that a call can cost is reserved in the budgets of the session, of those above it and of the agent, in one
step. A call that does not fit is refused before it is made. What a run that ends has neither settled nor released
counts as spent: nobody knows what those calls cost.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Final, Self

from orchestrator import machine
from orchestrator.agents.options.llm import ModelPrices
from orchestrator.config.settings import Settings
from orchestrator.display.text import word
from orchestrator.errors import InputError, ProviderAway, RunParked
from orchestrator.ledger.spending import Granted, Lane, Wait
from orchestrator.log import get_logger
from orchestrator.policy.budget import MOST, NANO, Budget, Cost, ProviderLimit, limit_of
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.step_call import present_step


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

    def reserve_cost(self, most: Cost, *, model: str = "") -> Reservation:
        """:meth:`reserve` with one value. The id of the reservation names the model, for the audit trail."""
        held = self._effects.held
        name = machine.token_hex(8) + (f":{word(model)}" if model else "")
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
            self._effects.spent += cost


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


def cost_of(
    model: str,
    *,
    provider: str | None = None,
    input_tokens: int = 0,
    output_tokens: int = 0,
    cache_read_tokens: int = 0,
    cache_write_tokens: int = 0,
    must_be_known: bool = False,
    prices: ModelPrices | None = None,
) -> Cost:
    """Return the cost of one request. ``input_tokens`` include those that a cache read or wrote; fewer are a mistake
    and corrected.

    A model that the list does not have costs nothing, unless its price ``must_be_known``: a budget in money holds only
    where it is. ``prices`` are used instead of the list.

    Raises:
        InputError: the price must be known, and is not.
    """
    input_tokens = max(input_tokens, cache_read_tokens + cache_write_tokens)
    nano_usd = 0
    if prices is not None:
        charged = (
            (input_tokens - cache_read_tokens - cache_write_tokens, prices.input),
            (cache_read_tokens, prices.input if prices.cache_read is None else prices.cache_read),
            (cache_write_tokens, prices.input if prices.cache_write is None else prices.cache_write),
            (output_tokens, prices.output),
        )
        # A millionth of a dollar is a thousand of these; rounded up, as below.
        nano_usd = math.ceil(sum(tokens * price for tokens, price in charged) * 1000)
        return Cost(requests=1, input_tokens=input_tokens, output_tokens=output_tokens, nano_usd=nano_usd)
    try:
        listed = import_module("genai_prices")
        usage = listed.Usage(
            input_tokens=input_tokens,
            output_tokens=output_tokens,
            cache_read_tokens=cache_read_tokens,
            cache_write_tokens=cache_write_tokens,
        )
        price = listed.calc_price(usage, model, provider_id=provider).total_price
        # Rounded up: what is reserved is never less than the price.
        nano_usd = math.ceil(price * 1_000_000_000)
    except (ImportError, LookupError) as error:
        if must_be_known:
            why = (
                "genai-prices is not installed (extra llm)" if isinstance(error, ImportError) else str(error)
            )
            raise InputError(
                f"the price of model {model!r} is not known ({why}), so that a budget in money cannot hold; give its price in "
                "the agent's `prices`, or a budget in tokens or requests"
            ) from error
    return Cost(requests=1, input_tokens=input_tokens, output_tokens=output_tokens, nano_usd=nano_usd)


#: Seconds of one wait in the slot at most, before the ledger is asked again.
_LOOK_S: Final = 0.5
#: Seconds for which a provider holds back everybody who uses its key at most.
MAX_HELD_BACK_S: Final = 86_400.0

_log = get_logger()


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call that waits for its provider's limits."""

    lane: Lane
    limit: ProviderLimit
    id: str
    waiter: str
    tokens: int
    time_limit_s: float
    until: float  #: when the run waits in its slot no longer, on the monotonic clock


class Permit:
    """Permission to make one call. As a ``with`` block it is released at the end."""

    def __init__(self, limits: ProviderLimits, lane: Lane, granted: Granted) -> None:
        self._limits = limits
        self._granted = granted
        self._began = machine.monotonic()
        self._open = True
        #: What is called.
        self.lane = lane

    def release(self, *, tokens: int | None = None) -> None:
        """Note the end of the call; ``tokens`` is what it took, by default what was counted."""
        if self._open:
            self._open = False
            took_ms = round((machine.monotonic() - self._began) * 1000)
            self._limits.end(self.lane, self._granted, tokens=tokens, took_ms=took_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class ProviderLimits:
    """The calls of one run, in one try of it. Safe to share between threads."""

    def __init__(self, effects: Effects, settings: Settings) -> None:
        self._effects = effects
        self._settings = settings
        self._lock = threading.Lock()
        #: Numbers of the calls that wait now.
        self._numbers: set[int] = set()

    def acquire(
        self, provider: str, model: str, *, key: str = "", tokens: int = 0, time_limit_s: float = 600
    ) -> Permit:
        """Wait until a call may be made.

        Args:
            provider: the provider's name, as `provider_limits` has it.
            model: the model.
            key: a name or digest of the API key. What one key may do, others are not held back by.
            tokens: the most that the call can take, in both directions.
            time_limit_s: the longest that the call can take.

        Raises:
            RunParked: it would wait for longer than `provider_wait_s`; let it pass through.
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        with self._waiting(provider, model, key, tokens, time_limit_s) as call:
            while not isinstance(found := self._ask(call), Granted):
                machine.sleep(self._pause_s(call, found))
        return Permit(self, call.lane, found)

    async def aacquire(
        self, provider: str, model: str, *, key: str = "", tokens: int = 0, time_limit_s: float = 600
    ) -> Permit:
        """:meth:`acquire` in a task."""
        with self._waiting(provider, model, key, tokens, time_limit_s) as call:
            while not isinstance(found := await asyncio.to_thread(self._ask, call), Granted):  # noqa: ASYNC110
                await asyncio.sleep(self._pause_s(call, found))  # the ledger tells nobody
        return Permit(self, call.lane, found)

    def hold_back(self, provider: str, model: str, *, after_s: float, key: str = "", why: str = "") -> None:
        """Hold back all calls of a provider under this key for ``after_s`` seconds.

        A day counts at most: some providers give a moment where seconds belong. ``why`` is what people read of runs that
        wait for it, if it is not for the provider's limits: "is away".

        Raises:
            ClaimLost, SessionStopped, ServerUnavailable: this run cannot go on.
        """
        lane = Lane(provider=provider, model=model, key=key)
        for_ms = round(min(max(0.0, after_s), MAX_HELD_BACK_S) * 1000)
        self._effects.retrying(
            "hold-back", lambda: self._effects.ledger.provider_calls.hold_back(lane, for_ms=for_ms, why=why)
        )

    def end(self, lane: Lane, granted: Granted, *, tokens: int | None, took_ms: int) -> None:
        """A call has ended; `Permit.release` is for agents."""
        self._effects.retrying(
            "release",
            lambda: self._effects.ledger.provider_calls.release(
                lane, granted, tokens=tokens, took_ms=took_ms
            ),
        )

    @contextmanager
    def _waiting(
        self, provider: str, model: str, key: str, tokens: int, time_limit_s: float
    ) -> Iterator[_Call]:
        """Yield a call that waits. The same waiter in a try that comes back for it keeps its place.

        Outside of a step it waits under the lowest number that no other call of this try waits under: a try that begins from
        the start asks for other calls than the one that was parked, and would wait behind that one's place.
        """
        claim = self._effects.held.claim
        step = present_step(claim.run)
        with self._lock:
            number = next(n for n in itertools.count(1) if n not in self._numbers)
            self._numbers.add(number)
        try:
            yield _Call(
                lane=Lane(provider=provider, model=model, key=key),
                limit=limit_of(self._settings.provider_limits, provider, model),
                # Who holds it: its place is free once that run is not at work under this claim.
                id=f"{claim.run}|{claim.claim}|{machine.token_hex(8)}",
                waiter=f"{claim.run}:{step.key if step else number}",
                tokens=tokens,
                time_limit_s=time_limit_s,
                until=machine.monotonic() + self._settings.provider_wait_s,
            )
        finally:
            self._numbers.discard(number)

    def _ask(self, call: _Call) -> Granted | Wait:
        return self._effects.retrying(
            "acquire",
            lambda: self._effects.ledger.provider_calls.acquire(
                call.lane,
                call.limit,
                call=call.id,
                waiter=call.waiter,
                tree=self._effects.held.session.root,
                tokens=call.tokens,
                time_limit_ms=round(call.time_limit_s * 1000),
            ),
        )

    def _pause_s(self, call: _Call, wait: Wait) -> float:
        """Return the seconds to sleep in the slot before the ledger is asked again."""
        wait_s = wait.wait_ms / 1000
        if wait_s <= call.until - machine.monotonic():
            return min(wait_s, _LOOK_S)
        _log.info("run-parked", lane=str(call.lane), wait_s=wait_s)
        parked = RunParked(str(call.lane), f"{wait_s:.6g}")
        if wait.why:
            parked = ProviderAway(str(call.lane), f"{wait_s:.6g}", wait.why)
        parked.provider = call.lane.provider
        raise parked

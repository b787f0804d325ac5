"""Limits of providers, kept by all workers together: a run asks before each call of a model.

A wait of a few seconds is spent in the slot. For a longer one the run frees its slot: `RunParked` ends the try, and the run
is tried again when its time has come, which uses up no attempt. Steps that it recorded are not executed again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from orchestrator import machine
from orchestrator.errors import ProviderAway, RunParked
from orchestrator.ledger.provider_calls import Granted, Lane, Wait
from orchestrator.log import get_logger
from orchestrator.policy.provider_limits import ProviderLimit, limit_of
from orchestrator.worker.context.effects import Effects
from orchestrator.worker.context.step_scope import present_step

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

    def __init__(
        self, effects: Effects, *, limits: Mapping[str, Mapping[Any, int]], longest_wait_s: float
    ) -> None:
        self._effects = effects
        self._limits = limits
        self._longest_wait_s = longest_wait_s
        self._asked = itertools.count(1)

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
        call = self._call(provider, model, key, tokens, time_limit_s)
        while not isinstance(found := self._ask(call), Granted):
            machine.sleep(self._pause_s(call, found))
        return Permit(self, call.lane, found)

    async def aacquire(
        self, provider: str, model: str, *, key: str = "", tokens: int = 0, time_limit_s: float = 600
    ) -> Permit:
        """:meth:`acquire` in a task."""
        call = self._call(provider, model, key, tokens, time_limit_s)
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

    def _waiter(self) -> str:
        """Return the name of the waiter for one call: the same in a try that comes back for it, so that it keeps its
        place.
        """
        run = self._effects.held.claim.run
        step = present_step(run)
        return f"{run}:{step.key}" if step is not None else f"{run}:{next(self._asked)}"

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
        if wait.why:
            raise ProviderAway(str(call.lane), f"{wait_s:.6g}", wait.why)
        raise RunParked(str(call.lane), f"{wait_s:.6g}")

    def _call(self, provider: str, model: str, key: str, tokens: int, time_limit_s: float) -> _Call:
        claim = self._effects.held.claim
        return _Call(
            lane=Lane(provider=provider, model=model, key=key),
            limit=limit_of(self._limits, provider, model),
            # Who holds it: its place is free once that run is not at work under this claim.
            id=f"{claim.run}|{claim.claim}|{machine.token_hex(8)}",
            waiter=self._waiter(),
            tokens=tokens,
            time_limit_s=time_limit_s,
            until=machine.monotonic() + self._longest_wait_s,
        )

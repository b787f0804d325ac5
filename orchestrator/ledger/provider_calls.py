"""Calls of providers' models, counted for all workers together."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from orchestrator.ledger import decode
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.model import RunState
from orchestrator.policy.provider_limits import ProviderLimit
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.scripts import request

#: Milliseconds that a place in the queue is kept after its time: a slot has to be free, and the sweep has to look.
KEPT_MS = 30_000


@dataclass(frozen=True, kw_only=True)
class Lane:
    """A model under one API key, which is what a provider limits."""

    provider: str
    model: str
    key: str = ""  #: a name or digest of the API key; never the key itself

    @property
    def account(self) -> str:
        """The provider and the key, as the names of keys in Redis have it."""
        digest = hashlib.sha256(self.key.encode(errors="surrogatepass")).hexdigest()[:16]
        return f"{self.provider}:{digest}"

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


@dataclass(frozen=True, kw_only=True)
class Granted:
    """A call that may be made now."""

    call: str
    second: int  #: in which it was counted
    tokens: int  #: that were counted


@dataclass(frozen=True, kw_only=True)
class Wait:
    """A call that has to wait."""

    wait_ms: int
    why: str = ""  #: in words, if it is not for the limits of the provider


class ProviderCalls:
    """Admits calls within the limits of providers. Safe to share between threads."""

    def __init__(self, core: LedgerCore) -> None:
        self._core = core

    def acquire(
        self,
        lane: Lane,
        limit: ProviderLimit,
        *,
        call: str,
        waiter: str,
        tree: str,
        tokens: int,
        time_limit_ms: int,
    ) -> Granted | Wait:
        """Ask whether a call may be made now.

        Args:
            lane: what is called.
            limit: how much of it there is.
            call: an id of its own.
            waiter: keeps the place in the queue from one question to the next.
            tree: the root of the caller; trees take turns.
            tokens: the most that the call can take.
            time_limit_ms: the longest that the call can take.
        """
        asked = request(
            now=self._core.now,
            model=lane.model,
            call=call,
            waiter=waiter,
            tree=tree,
            tokens=tokens,
            requests_a_minute=limit.requests_per_minute,
            tokens_a_minute=limit.tokens_per_minute,
            calls=limit.calls,
            time_ms=time_limit_ms,
            kept_ms=KEPT_MS,
        )
        held = [ledger_keys.provider_held(lane.account)]
        reply = self._core.scripts.run("acquire_call", held, [asked])
        if reply[0] != b"granted" and limit.calls and self._free_lost(lane):
            reply = self._core.scripts.run("acquire_call", held, [asked])
        number = int(reply[1])
        if reply[0] == b"granted":
            return Granted(call=call, second=number, tokens=tokens)
        return Wait(wait_ms=number, why=decode.text(reply[2]))

    def _free_lost(self, lane: Lane) -> bool:
        """Free the places of calls whose run is not at work under the claim that took them; whether there were any."""
        key = ledger_keys.provider_calls(lane.account, lane.model)
        kept: Any = self._core.redis.zrange(key, 0, -1)
        calls = [call for call in kept if b"|" in call]  # of a run and its claim
        holders = [decode.text(call).split("|")[:2] for call in calls]
        pipe = self._core.redis.pipeline(transaction=False)
        for run, *_ in holders:
            pipe.hmget(ledger_keys.run(run), "state", "claim")
        lost = [
            call
            for call, (_, *claim), now in zip(
                calls, holders, pipe.execute(raise_on_error=False) if holders else (), strict=True
            )
            if claim and isinstance(now, list) and [*map(decode.text, now)] != [RunState.RUNNING, *claim]
        ]
        return bool(lost and self._core.redis.zrem(key, *lost))

    def release(self, lane: Lane, granted: Granted, *, tokens: int | None, took_ms: int) -> None:
        """Note the end of a call; ``tokens`` is what it took, None: what was counted."""
        asked = request(
            model=lane.model,
            call=granted.call,
            second=granted.second,
            counted=granted.tokens,
            tokens="" if tokens is None else str(tokens),
            took_ms=took_ms,
        )
        self._core.scripts.run("release_call", [ledger_keys.provider_held(lane.account)], [asked])

    def hold_back(self, lane: Lane, *, for_ms: int, why: str = "") -> int:
        """Hold back all calls of the provider under this key for ``for_ms``; return until when, in ms since the
        epoch.
        """
        held = [ledger_keys.provider_held(lane.account)]
        return int(self._core.scripts.run("hold_back", held, [self._core.now, for_ms, why])[0])

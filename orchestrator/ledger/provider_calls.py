"""Calls of providers' models, counted for all workers together."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import redis

from orchestrator.ledger import decode
from orchestrator.policy.provider_limits import ProviderLimit
from orchestrator.redisdb import keys
from orchestrator.redisdb.scripts import Arg, Scripts

#: Milliseconds that a place in the queue is kept after its time: a slot has to be free, and the sweep has to look.
KEPT_MS = 30_000


@dataclass(frozen=True, kw_only=True)
class Lane:
    """What a provider limits: one of its models under one key."""

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


class ProviderCalls:
    """Admits calls within the limits of providers. Safe to share between threads.

    ``now`` gives the time of the transitions as the scripts take it: '' for the server's, or a test's.
    """

    def __init__(self, client: redis.Redis, *, now: Callable[[], str]) -> None:
        self._scripts = Scripts(client)
        self._now = now

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
            time_limit_ms: the longest that the call can take; a worker that dies holds its place so long.
        """
        args: list[Arg] = [
            self._now(),
            call,
            waiter,
            tree,
            tokens,
            limit.requests_per_minute or "",
            limit.tokens_per_minute or "",
            limit.calls or "",
            time_limit_ms,
            KEPT_MS,
        ]
        reply = self._scripts.run(
            "acquire_call",
            [
                keys.provider_held(lane.account),
                keys.provider_counts(lane.account, lane.model),
                keys.provider_calls(lane.account, lane.model),
                keys.provider_waiting(lane.account, lane.model),
            ],
            args,
        )
        number = int(reply[1])
        if reply[0] == b"granted":
            return Granted(call=call, second=number, tokens=tokens)
        return Wait(wait_ms=number)

    def release(self, lane: Lane, granted: Granted, *, tokens: int | None, took_ms: int) -> None:
        """A call has ended; ``tokens`` is what it took, None: what was counted."""
        self._scripts.run(
            "release_call",
            [keys.provider_counts(lane.account, lane.model), keys.provider_calls(lane.account, lane.model)],
            [
                self._now(),
                granted.call,
                granted.second,
                granted.tokens,
                "" if tokens is None else tokens,
                took_ms,
            ],
        )

    def hold_back(self, lane: Lane, *, for_ms: int) -> int:
        """Let nobody call the provider under this key for so long; until when, in ms since the epoch."""
        reply = self._scripts.run("hold_back", [keys.provider_held(lane.account)], [self._now(), for_ms])
        return int(decode.text(reply[0]))

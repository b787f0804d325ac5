"""Spending of runs on calls of models, the budgets that bound it, and the calls that providers allow at once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.errors import BudgetExceeded
from orchestrator.ids import shard_of
from orchestrator.ledger import decode
from orchestrator.ledger.core import LedgerCore
from orchestrator.ledger.model import RunState
from orchestrator.ledger.transitions import Claim
from orchestrator.policy.budget import RESOURCES, Budget, BudgetState, Cost, ProviderLimit, refusal
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.scripts import request

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
                state = replace(state, limits=limits)
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
        reply = self._core.effect_of(
            claim, "spend", reservation=reservation, agent=agent, cost=_as_text(vars(cost))
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

"""Limits of a provider are kept by everybody together, and trees take turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import redis as redis_py

from orchestrator.ledger import Ledger
from orchestrator.ledger.spending import Granted, Lane, ProviderCalls, Wait
from orchestrator.policy.budget import ProviderLimit, limit_of
from orchestrator.redisdb import ledger_keys

LANE = Lane(provider="stub", model="m", key="k")


@dataclass
class Provider:
    """Asks for calls at times that the test says."""

    ledger: Ledger
    now: int = 1_800_000_000_000
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def calls(self) -> ProviderCalls:
        self.ledger.set_time(self.now)
        return self.ledger.provider_calls

    def ask(
        self, limit: ProviderLimit, *, waiter: str = "", tree: str = "t", tokens: int = 0, lane: Lane = LANE
    ) -> Granted | Wait:
        name = str(next(self.numbers))
        return self.calls.acquire(
            lane, limit, call=name, waiter=waiter or name, tree=tree, tokens=tokens, time_limit_ms=60_000
        )

    def release(self, granted: Granted, *, tokens: int | None = None) -> None:
        self.calls.release(LANE, granted, tokens=tokens, took_ms=1000)


@pytest.fixture
def provider(ledger: Ledger) -> Provider:
    return Provider(ledger)


def granted(found: Granted | Wait) -> bool:
    return isinstance(found, Granted)


def test_no_minute_has_more_requests_than_it_may(provider: Provider) -> None:
    """Whenever it begins: asked ten times a second for three minutes."""
    limit = ProviderLimit(requests_per_minute=7)
    at = []
    for _ in range(1800):
        if granted(provider.ask(limit, waiter="w")):
            at.append(provider.now)
        provider.now += 100
    assert all(later - first > 60_000 for first, later in zip(at, at[7:], strict=False))
    assert len(at) >= 3 * 7


def test_the_wait_that_is_named_is_long_enough_and_not_much_longer(provider: Provider) -> None:
    limit = ProviderLimit(requests_per_minute=2)
    assert granted(provider.ask(limit))
    provider.now += 20_000
    assert granted(provider.ask(limit))
    found = provider.ask(limit, waiter="w")
    assert isinstance(found, Wait)
    assert 40_000 <= found.wait_ms <= 41_000
    provider.now += found.wait_ms - 1100
    assert not granted(provider.ask(limit, waiter="w"))
    provider.now += 1100
    assert granted(provider.ask(limit, waiter="w"))


def test_tokens_are_counted_with_what_they_were(provider: Provider) -> None:
    """A call that took less leaves room; one that is larger than the whole minute goes when nothing else does."""
    limit = ProviderLimit(tokens_per_minute=100)
    first = provider.ask(limit, tokens=80)
    assert isinstance(first, Granted)
    assert not granted(provider.ask(limit, waiter="w", tokens=40))
    provider.release(first, tokens=30)
    assert granted(provider.ask(limit, waiter="w", tokens=40))
    assert not granted(provider.ask(limit, waiter="large", tokens=500))
    provider.now += 61_000
    assert granted(provider.ask(limit, waiter="large", tokens=500))


def test_as_many_calls_at_once_as_may_be_and_a_dead_workers_call_ends(provider: Provider) -> None:
    limit = ProviderLimit(calls=2)
    first, second = provider.ask(limit), provider.ask(limit)
    assert isinstance(first, Granted)
    assert granted(second)
    assert not granted(provider.ask(limit, waiter="w"))
    provider.release(first)
    provider.release(first)
    assert granted(provider.ask(limit, waiter="w"))
    assert not granted(provider.ask(limit, waiter="y"))
    provider.now += 60_001  # nobody released the other two
    assert granted(provider.ask(limit, waiter="y"))


def test_what_is_sent_twice_is_one_call(provider: Provider) -> None:
    limit = ProviderLimit(requests_per_minute=2)
    for _ in range(3):
        assert granted(
            provider.calls.acquire(LANE, limit, call="c", waiter="w", tree="t", tokens=0, time_limit_ms=1000)
        )
    assert granted(provider.ask(limit))
    assert not granted(provider.ask(limit))


def test_everybody_with_the_key_is_held_back_and_nobody_else(provider: Provider) -> None:
    """Other models of that key as well; the longest time counts."""
    other_model = Lane(provider="stub", model="n", key="k")
    other_key = Lane(provider="stub", model="m", key="other")
    provider.calls.hold_back(LANE, for_ms=20_000)
    provider.calls.hold_back(other_model, for_ms=5_000)
    for lane in (LANE, other_model):
        found = provider.ask(ProviderLimit(), lane=lane, waiter=f"w{lane.model}")
        assert found == Wait(wait_ms=20_000)
    assert granted(provider.ask(ProviderLimit(), lane=other_key))
    provider.now += 19_999
    assert not granted(provider.ask(ProviderLimit(), waiter="wm"))
    provider.now += 1
    assert granted(provider.ask(ProviderLimit(), waiter="wm"))


def test_trees_take_turns(provider: Provider) -> None:
    """One with fifty waiting runs and one that comes late with two: those two are served third and fifth at the latest."""
    limit = ProviderLimit(requests_per_minute=1)
    assert granted(provider.ask(limit))
    waiting = [(f"big{n}", "big") for n in range(50)]
    for waiter, tree in waiting:
        assert not granted(provider.ask(limit, waiter=waiter, tree=tree))
    late = [("small0", "small"), ("small1", "small")]
    for waiter, tree in late:
        assert not granted(provider.ask(limit, waiter=waiter, tree=tree))
    waiting += late
    served = []
    for _ in range(6):
        provider.now += 61_000
        for waiter, tree in list(waiting):  # each looks again in the order in which it came
            if granted(provider.ask(limit, waiter=waiter, tree=tree)):
                served.append(waiter)
                waiting.remove((waiter, tree))
    assert len(served) == 6
    assert {"small0", "small1"} <= set(served[:5])


@pytest.mark.parametrize(("late_ms", "next_one"), [(1_500, "late"), (31_500, "new")])
def test_a_run_that_is_late_holds_up_nobody_and_keeps_its_place_for_half_a_minute(
    provider: Provider, late_ms: int, next_one: str
) -> None:
    """Those behind it may have the slots that it needs."""
    limit = ProviderLimit(calls=1)
    first, late = provider.ask(limit), provider.ask(limit, waiter="late")
    assert isinstance(first, Granted)
    assert isinstance(late, Wait)
    provider.release(first)
    provider.now += late.wait_ms
    assert not granted(provider.ask(limit, waiter="here"))
    provider.now += late_ms
    second = provider.ask(limit, waiter="here")
    assert isinstance(second, Granted)
    assert not any(granted(provider.ask(limit, waiter=waiter)) for waiter in ("new", "late"))
    provider.release(second)
    assert [w for w in ("new", "late") if granted(provider.ask(limit, waiter=w))] == [next_one]


def test_whose_turn_has_come_waits_no_more(provider: Provider) -> None:
    """Its place is free again: who comes when it is done waits for nobody."""
    limit = ProviderLimit(calls=1)
    first = provider.ask(limit)
    assert not granted(provider.ask(limit, waiter="w"))
    provider.release(first)
    second = provider.ask(limit, waiter="w")
    provider.release(second)
    assert granted(provider.ask(limit, waiter="new"))


def test_no_key_of_it_stays_for_good(provider: Provider, redis: redis_py.Redis) -> None:
    limit = ProviderLimit(requests_per_minute=1)
    provider.ask(limit)
    provider.ask(limit, waiter="w")
    provider.calls.hold_back(LANE, for_ms=1000)
    names = (ledger_keys.provider_counts, ledger_keys.provider_calls, ledger_keys.provider_waiting)
    found = [name(LANE.account, LANE.model) for name in names] + [ledger_keys.provider_held(LANE.account)]
    assert all(0 < redis.pttl(name) <= 700_000 for name in found)
    assert not any(part == b"k" for name in redis.keys("*calls*") for part in name.split(b":"))


def test_the_first_pattern_that_fits_counts() -> None:
    limits = {"stub/large-*": {"calls": 1}, "stub/*": {"calls": 5}}
    assert limit_of(limits, "stub", "large-2").calls == 1
    assert limit_of(limits, "stub", "small").calls == 5
    assert limit_of(limits, "other", "small") == ProviderLimit()

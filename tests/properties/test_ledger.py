"""Every transition of the ledger on a real server, repeated and late ones among them."""

from __future__ import annotations

import pytest
import redis as redis_py

from .ledger_plays import play


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_the_indexes_agree_with_the_records(redis: redis_py.Redis, seed: int) -> None:
    """`make fuzz` plays it for longer."""
    play(redis, seed, steps=50)

"""Every transition of the ledger on a real server, repeated and late ones among them."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.bootstrap import build_container
from orchestrator.config.settings import load_settings
from orchestrator.doctor import Doctor, Severity
from tests.properties.ledger_plays import play


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_the_indexes_agree_with_the_records(
    redis: redis_py.Redis, redis_url: str, tmp_path: Path, seed: int
) -> None:
    """So the doctor finds, too, once everything has come to its end.

    `tests/simulation/test_ledger.py` plays more on the simulated server, and `make fuzz` on a real one for longer.
    """
    parts = build_container(redis, load_settings(redis_url=redis_url, data=tmp_path))

    def examine() -> None:
        found = Doctor(parts, audit=None, sleep=lambda _: None).examine(watch_leases=False, full=True)
        broken = [f for f in found.findings if f.severity is Severity.BREAK and f.rule != "not-genuine"]
        assert broken == []  # a play rejects items without any reason of its own

    play(redis, seed, steps=50, at_rest=examine)

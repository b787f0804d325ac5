"""Waiting for what other threads and processes do: by looking, with a deadline that also a busy machine keeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis as redis_py

from orchestrator.redisdb.client import is_outage

Found = TypeVar("Found")

#: Seconds that anything may take: the machine is shared with the other tests.
PATIENCE_S = 180.0


def wait_until(
    condition: Callable[[], Found],
    what: object = "it",
    timeout_s: float = PATIENCE_S,
    *,
    explain: Callable[[], object] = str,
) -> Found:
    """Look until ``condition`` returns something true, and return that.

    Raises:
        AssertionError: it did not within ``timeout_s``; says ``what`` was waited for and what ``explain`` returns.
    """
    began_at = time.monotonic()
    while True:
        looked_at = time.monotonic()
        if found := condition():
            return found
        if looked_at > began_at + timeout_s:
            raise AssertionError(f"waited {timeout_s:g} s for {what}: {explain()}")
        # A look may be a command of its own, and what is waited for needs the machine: at most half of a core looks, and
        # after a while ten times a second.
        now = time.monotonic()
        time.sleep(max(0.01, now - looked_at, min(0.1, (now - began_at) / 20)))


def act_until(condition: Callable[[], object], act: Callable[[], object]) -> None:
    """Act again and again until a condition holds."""

    def holds() -> bool:
        if condition():
            return True
        act()
        return False

    wait_until(holds)


def until(condition: Callable[[], bool], *, seconds: float = PATIENCE_S) -> None:
    """Wait for a condition; an outage of the server counts as not yet."""

    def holds() -> bool:
        try:
            return condition()
        except redis_py.RedisError as error:
            if not is_outage(error):
                raise
            return False

    wait_until(holds, timeout_s=seconds)

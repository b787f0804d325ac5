"""Which durable step the present thread or task executes. Tasks and `asyncio.to_thread` inherit it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from orchestrator.policy.steps import effect_key


class StepScope:
    """Scope of one call of a step's function."""

    def __init__(self, run: str, key: str) -> None:
        self.run = run
        self.key = key
        self._made: Counter[str] = Counter()
        self._counting = threading.Lock()

    def effect_key(self, kind: str, given: str | None) -> str:
        """Return the key of an effect in this step: by its kind and how often the step had one, or the key that was
        given.

        Not by its arguments: a call that is repeated after a crash may make other ones, and is the same step.
        """
        if given:
            return effect_key(kind, f"key:{given}", self.key)
        with self._counting:
            self._made[kind] += 1
            return effect_key(kind, str(self._made[kind]), self.key)


_present: Final[ContextVar[StepScope | None]] = ContextVar("orchestra_step", default=None)


def present_step(run: str) -> StepScope | None:
    """Return the step of that run that is executed here, if one is."""
    scope = _present.get()
    return scope if scope is not None and scope.run == run else None


@contextmanager
def executing(scope: StepScope) -> Iterator[None]:
    """Execute a step's function in this block."""
    token = _present.set(scope)
    try:
        yield
    finally:
        _present.reset(token)

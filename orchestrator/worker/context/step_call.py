"""A call of a step's function: its time limit, and the wait before the next call after an error."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from orchestrator import machine
from orchestrator.errors import InputError
from orchestrator.policy.retry import run_backoff_ms
from orchestrator.policy.steps import effect_key, is_step_name

#: The longest wait between two calls of a step's function, in milliseconds.
MAX_BACKOFF_MS: Final = 60_000
#: Seconds between two looks whether a run that waits may go on.
LOOK_S: Final = 0.25


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request for a step, as the agent makes it."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    retries: Any
    timeout_s: Any
    backoff_s: Any
    type: Any

    def check(self) -> None:
        """See that the request makes sense.

        Raises:
            InputError: it does not.
        """
        if not is_step_name(self.name):
            raise InputError(
                f"step {self.name!r}: a name has 1 to 200 characters, no '#', '|' or line breaks, and no space around it"
            )
        if not callable(self.function):
            raise InputError(f"step {self.name!r}: {self.function!r} is no function")
        if not isinstance(self.retries, int) or self.retries < 0:
            raise InputError(f"step {self.name!r}: retries = {self.retries!r} is no whole number from 0")
        for what, value in (("timeout_s", self.timeout_s), ("backoff_s", self.backoff_s)):
            if value is not None and (not isinstance(value, int | float) or not 0 <= value < 1e9):
                raise InputError(f"step {self.name!r}: {what} = {value!r} is no number of seconds")

    def check_plain(self, value: object) -> None:
        """Check that neither the function nor its result is to be awaited.

        Raises:
            InputError: it is.
        """
        if inspect.iscoroutinefunction(self.function) or inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise InputError(f"step {self.name!r}: its function is async; write `await ctx.astep(…)`")

    def run(self, check: Callable[[], None]) -> Any:
        """Call the function; with a time limit in a thread, which is left alone when the time has passed.

        ``check`` raises if the run may not go on.
        """
        if self.timeout_s is None:
            return self.function(*self.args, **self.kwargs)
        future: Future[Any] = Future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                future.set_result(context.run(self.function, *self.args, **self.kwargs))
            except BaseException as error:  # noqa: BLE001  (it is raised where it is waited for)
                future.set_exception(error)

        machine.start_thread(work, f"step-{self.name}")
        until = machine.monotonic() + self.timeout_s
        while not future.done():
            left_s = until - machine.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"it took longer than {self.timeout_s:g} s")
            try:
                return future.result(timeout=min(LOOK_S, left_s))
            except TimeoutError:
                check()
        return future.result()

    async def arun(self) -> Any:
        """Call the function in this task, or in a thread if it is not async."""
        async with asyncio.timeout(self.timeout_s):
            if inspect.iscoroutinefunction(self.function):
                return await self.function(*self.args, **self.kwargs)
            value = await asyncio.to_thread(self.function, *self.args, **self.kwargs)
            return await value if inspect.isawaitable(value) else value

    def wait_s(self, tries: int) -> float:
        """Return the seconds to wait after ``tries`` failed calls."""
        jitter = machine.random()
        base_ms = round(self.backoff_s * 1000)
        return (
            run_backoff_ms(tries, "exponential", base_ms=base_ms, cap_ms=MAX_BACKOFF_MS, jitter=jitter) / 1000
        )


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

"""A call of a step's function: its time limit, the wait before the next call, and the form in which its value is kept."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import json
import sys
import threading
import typing
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from orchestrator import machine
from orchestrator.errors import DamagedRecord, InputError
from orchestrator.policy.retry import run_backoff_ms
from orchestrator.policy.steps import effect_key, is_step_name

#: The longest wait between two calls of a step's function, in milliseconds.
MAX_BACKOFF_MS: Final = 60_000
#: Seconds between two looks whether a run that waits may go on.
LOOK_S: Final = 0.25

JSON: Final = "json"
BYTES: Final = "bytes"
TYPED: Final = "typed"
_MODEL: Final = "model:"


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

    def encode(self, key: str, value: Any) -> tuple[str, bytes]:
        """Return the tag and the bytes of what the step of this key gave. The tag says how it is read again.

        Nothing is imported by a name that stands in the ledger.

        Raises:
            InputError: the value has no form that can be read again.
        """
        if self.type is not None:
            return TYPED, _dump(key, value, self.type)
        if isinstance(value, bytes | bytearray | memoryview):
            return BYTES, bytes(value)
        if isinstance(value, BaseModel):
            name = f"{value.__class__.__module__}:{value.__class__.__qualname__}"
            if _loaded(name) is not value.__class__:
                raise InputError(
                    f"step {key!r} gave a {value.__class__.__qualname__}, which no module holds under that name; "
                    f"give the step type={value.__class__.__name__}"
                )
            return _MODEL + name, value.model_dump_json().encode()
        try:
            return JSON, json.dumps(value).encode()
        except (TypeError, ValueError) as error:
            annotation = return_type(self.function)
            if annotation is None:
                raise InputError(
                    f"step {key!r} gave a {value.__class__.__name__}, which is no JSON value ({error}); give the step "
                    "type=…, or annotate what its function returns"
                ) from error
            return TYPED, _dump(key, value, annotation)

    def decode(self, key: str, tag: str, octets: bytes) -> Any:
        """Return the value that :meth:`encode` was given.

        Raises:
            DamagedRecord: it cannot be read as what it is to be.
        """
        try:
            if tag == BYTES:
                return octets
            if tag == JSON and self.type is None:
                return json.loads(octets)
            known = return_type(self.function) if self.type is None and tag == TYPED else self.type
            if known is None and tag.startswith(_MODEL):
                known = _loaded(tag.removeprefix(_MODEL))
            if known is None:
                raise DamagedRecord(
                    f"step {key!r}", f"{tag!r} is no type that this worker knows; give the step type=…"
                )
            return TypeAdapter(known).validate_json(octets)
        except (ValueError, ValidationError) as error:
            raise DamagedRecord(
                f"step {key!r}", f"its value is not what the agent expects: {error}"
            ) from None


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


def return_type(function: Callable[..., Any]) -> Any:
    """Return the annotated return type of a function; None if it has none, or it cannot be resolved."""
    try:
        return typing.get_type_hints(function).get("return")
    except (NameError, TypeError, AttributeError):
        return None


def _dump(step: str, value: Any, type: Any) -> bytes:
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(type)
        return adapter.dump_json(adapter.validate_python(value))
    except (ValueError, PydanticSchemaGenerationError) as error:
        raise InputError(f"step {step!r} gave a value that is not of its type {type!r}: {error}") from error


def _loaded(name: str) -> type[BaseModel] | None:
    """Return a model that a loaded module holds; modules are never imported for it."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None

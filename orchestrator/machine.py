"""Services of the machine on which a process runs: time, chance, threads, and a mark of its own.

Whoever needs these asks here, so that the simulator can let many processes live on machines of its own, in one thread
and in an order that one seed decides.
"""

from __future__ import annotations

import functools
import os
import threading
import time as _time
import uuid as _uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Protocol


class Machine(Protocol):
    """A machine; the functions of this module ask the one that is in use."""

    def time_ns(self) -> int:
        """Wall time in nanoseconds since the epoch; for storage, never for waiting."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward; for waiting and leases, never for storage."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...

    def random_bytes(self, size: int) -> bytes:
        """Return ``size`` bytes that nobody can guess."""
        ...

    def mark(self, pid: int) -> str:
        """Return a mark that no other process has, on this machine or another; ``pid`` is this process or a fork of
        it.
        """
        ...

    def start_thread(self, work: Callable[[], object], name: str) -> threading.Thread:
        """Start a thread of this process, which ends with the process at the latest."""
        ...

    def event(self) -> threading.Event:
        """Make something that threads of this process can wait for."""
        ...


class System:
    """The machine that Python runs on."""

    def __init__(self) -> None:
        self.renew_family()

    def time_ns(self) -> int:
        return _time.time_ns()

    def monotonic(self) -> float:
        return _time.monotonic()

    def sleep(self, seconds: float) -> None:
        _time.sleep(seconds)

    def random_bytes(self, size: int) -> bytes:
        return os.urandom(size)

    def renew_family(self) -> None:
        """Give this process, and the forks that it makes from now on, marks that its parent and siblings cannot have."""
        self._family = _uuid.uuid4().hex[:12]

    def mark(self, pid: int) -> str:
        return f"{self._family}.{pid}"

    def start_thread(self, work: Callable[[], object], name: str) -> threading.Thread:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def event(self) -> threading.Event:
        return threading.Event()


_system = System()
_machine: Machine = _system
#: See :meth:`System.renew_family`.
renew_family = _system.renew_family


@contextmanager
def run_on(machine: Machine) -> Iterator[None]:
    """Let this Python process live on another machine within the block."""
    global _machine  # noqa: PLW0603
    before, _machine = _machine, machine
    try:
        yield
    finally:
        _machine = before


def time_ns() -> int:
    """Wall time in nanoseconds since the epoch; for storage, never for waiting."""
    return _machine.time_ns()


def time() -> float:
    """Wall time in seconds since the epoch; for storage, never for waiting."""
    return _machine.time_ns() / 1e9


def monotonic() -> float:
    """Seconds that only go forward; for waiting and leases, never for storage."""
    return _machine.monotonic()


def sleep(seconds: float) -> None:
    """Wait."""
    _machine.sleep(seconds)


def random_bytes(size: int) -> bytes:
    """Return ``size`` bytes that nobody can guess."""
    return _machine.random_bytes(size)


def token_hex(size: int) -> str:
    """Return ``size`` bytes that nobody can guess, as hexadecimal digits."""
    return _machine.random_bytes(size).hex()


def uuid4() -> _uuid.UUID:
    """A random UUID."""
    return _uuid.UUID(bytes=_machine.random_bytes(16), version=4)


def random() -> float:
    """A number from 0 up to, and without, 1."""
    return (int.from_bytes(_machine.random_bytes(7)) >> 3) / (1 << 53)


def mark_of(pid: int) -> str:
    """Return a mark that no other process has, on this machine or another; ``pid`` is this process or a fork of it."""
    return _machine.mark(pid)


def own_mark() -> str:
    """The mark of this process."""
    return _machine.mark(os.getpid())


def start_thread(work: Callable[[], object], name: str) -> threading.Thread:
    """Start a thread of this process, which ends with the process at the latest.

    Raises:
        RuntimeError: the system gives no thread.
    """
    return _machine.start_thread(work, name)


def event() -> threading.Event:
    """Make something that threads of this process can wait for."""
    return _machine.event()


class Clock(Protocol):
    """A clock. Injected wherever time matters, so that tests can step it."""

    def now_ms(self) -> int:
        """Wall time in milliseconds since the epoch; for storage, never for waiting."""
        ...

    def monotonic(self) -> float:
        """Seconds that only go forward; for waiting and leases, never for storage."""
        ...


class SystemClock:
    """The clocks of the machine."""

    def now_ms(self) -> int:
        return time_ns() // 1_000_000

    def monotonic(self) -> float:
        return monotonic()


def isoformat(ms: int) -> str:
    """Milliseconds since the epoch as ISO 8601 in UTC, to the millisecond."""
    return f"{_second(ms // 1000)}.{ms % 1000:03}Z"


@functools.lru_cache(maxsize=16)
def _second(s: int) -> str:
    # What happens in one second is mostly written down in it, too.
    return datetime.fromtimestamp(s, UTC).isoformat(timespec="seconds").removesuffix("+00:00")

"""Work on many things in two threads, for what leaves the interpreter to others while it computes, as signing does."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

#: So few are done sooner than a second thread would wake up.
FEW: Final = 3

T = TypeVar("T")
R = TypeVar("R")

_second = ThreadPoolExecutor(max_workers=1, thread_name_prefix="second-half")


def _forget_the_parents_thread() -> None:
    """A fork has none of its parent's threads."""
    global _second  # noqa: PLW0603
    _second = ThreadPoolExecutor(max_workers=1, thread_name_prefix="second-half")


os.register_at_fork(after_in_child=_forget_the_parents_thread)


def in_halves(act: Callable[[T], R], things: Sequence[T]) -> list[R]:
    """What ``act`` makes of each thing, in their order; the second half beside the first one.

    Raises:
        Exception: whatever ``act`` raised, for the first thing for which it did.
    """
    half = len(things) if len(things) <= FEW else (len(things) + 1) // 2
    try:
        rest = _second.submit(lambda: [act(thing) for thing in things[half:]]) if things[half:] else None
    except RuntimeError:  # the interpreter is about to end, and takes no more work of this kind
        half, rest = len(things), None
    first = [act(thing) for thing in things[:half]]
    return first + rest.result() if rest is not None else first

"""A process that no agent may look into, and functions that count their calls."""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest


class Calls:
    """Counts the calls of functions by name, over all tries."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()

    def of(self, name: str, value: Any = None) -> Callable[..., Any]:
        def function() -> Any:
            self.made[name] += 1
            return value

        return function


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def stranger() -> Iterator[str]:
    """What stands in the environment of a process of the same user that has nothing to do with an agent."""
    secret = uuid4().hex
    with subprocess.Popen(
        ["sleep", "600"], env={"HIDDEN": secret}, executable=shutil.which("sleep")
    ) as other:
        try:
            yield secret
        finally:
            other.kill()

"""Functions that count their calls, messages that were sent, and a process that no agent may look into."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from orchestrator.envelope.codec import decode
from orchestrator.ledger import RunRef
from orchestrator.redisdb import keys, ledger_keys
from tests.kit import Kit


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


def sent(kit: Kit, kind: str, priority: str) -> list[Any]:
    """The messages of a type in the streams, read as everybody reads them: with their signatures."""
    entries = kit.redis.xrange(keys.messages(0, kind, priority))
    return [decode(fields[b"envelope"]) for _, fields in entries]


def made_ready(kit: Kit, run: RunRef) -> bool:
    """Whether the reaper makes a run ready now that is taken out of what is ready."""
    ready = ledger_keys.ready(0, run.agent)
    kit.redis.zrem(ready, run.run)
    kit.services.reaper.run_once()
    return kit.redis.zscore(ready, run.run) is not None


@pytest.fixture
def playing() -> Iterator[Callable[[Callable[[], object]], threading.Thread]]:
    """Let something go on beside the test, which waits for its end."""
    threads: list[threading.Thread] = []

    def play(work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work)
        thread.start()
        threads.append(thread)
        return thread

    yield play
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


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

"""Plays of the ledger alone, by random callers, on the simulated server."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

from orchestrator import machine
from orchestrator.redisdb import scripts
from orchestrator.testing.simulation.link import Link, SimulatedPool, SimulatedRedis
from orchestrator.testing.simulation.server import Command, Server, ServerSession
from orchestrator.testing.simulation.shrinking import Failure, shrink
from orchestrator.testing.simulation.world import BEGIN_US
from tests.properties.ledger_facts import Facts
from tests.properties.ledger_plays import Broken, play


class _Dice(machine.System):
    """A machine whose chance is a seed's and whose time stands still, so that a seed is the same play each time."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._chance = random.Random(f"ids of {seed}")

    def random_bytes(self, size: int) -> bytes:
        return self._chance.randbytes(size)

    def time_ns(self) -> int:
        return BEGIN_US * 1000

    def mark(self, pid: int) -> str:
        return "caller"


class _Traced(Link):
    """Keeps a digest of what is sent."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.trace = hashlib.blake2b(digest_size=8)

    def exchange(self, session: ServerSession, commands: Sequence[Command]) -> list[Any]:
        for command in commands:
            self.trace.update(b"\0".join(command))
        return super().exchange(session, commands)


class LedgerMachine:
    """What all plays of one process have in common: the server, and a client of it."""

    def __init__(self) -> None:
        self.server = Server()
        self.server.set_time(BEGIN_US)
        client = SimulatedRedis(connection_pool=SimulatedPool(Link(self.server)))
        for script in scripts.names():
            client.script_load(scripts.source(script))
        self._begin, self._scripts = self.server.copy(), self.server.scripts
        #: A digest of what was sent to the server in the last play, in its order.
        self.trace = ""

    def play(self, seed: int, steps: Sequence[int] | None = None) -> Failure[tuple[int, ...]] | None:
        """Play one seed, or these of its steps; None: nothing was wrong.

        Much of what happens comes between what a caller reads and what it does.
        """
        if steps is None:
            steps = range(random.Random(seed).choice([10, 20, 40]))
        self.server.restart(self._begin, scripts=self._scripts)
        self.server.set_time(BEGIN_US)
        link = _Traced(self.server)
        client = SimulatedRedis(connection_pool=SimulatedPool(link))
        facts = Facts()

        def read() -> Facts:
            nonlocal facts
            facts = facts.after(*self.server.changed())
            return facts

        try:
            with machine.run_on(_Dice(seed)):
                play(client, seed, steps=steps, share=0.02, look_every=10, read=read)
        except Broken as error:
            return Failure(tuple(steps), {}, str(error))
        finally:
            self.trace = link.trace.hexdigest()
        return None

    def as_test(self, seed: int, failure: Failure[tuple[int, ...]]) -> str:
        """Write the shortest play of that seed that fails as a test that can be pasted."""
        shortest = shrink(failure, lambda steps, _: self.play(seed, steps), _fewer)
        story = "\n".join(f"    # {line}" for line in shortest.wrong.splitlines())
        steps = ", ".join(map(str, shortest.task))
        return f"def test_seed_{seed}() -> None:\n{story}\n    assert LedgerMachine().play({seed}, [{steps}]) is None\n"


def _fewer(steps: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield these steps without some of them: all, half of them, a quarter, each one."""
    if steps:
        yield ()
    size = len(steps)
    while size > 1:
        size = (size + 1) // 2
        for at in range(0, len(steps), size):
            yield steps[:at] + steps[at + size :]

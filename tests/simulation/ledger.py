"""Plays of the ledger alone, by random callers, on the simulated server."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from typing import Any

from orchestrator import machine
from orchestrator.redisdb import scripts
from orchestrator.testing.simulation.link import Link, SimulatedPool, SimulatedRedis
from orchestrator.testing.simulation.server import Command, Server, ServerSession
from orchestrator.testing.simulation.shrinking import Failure
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
        self._server = Server()
        self._server.set_time(BEGIN_US)
        client = SimulatedRedis(connection_pool=SimulatedPool(Link(self._server)))
        for script in scripts.names():
            client.script_load(scripts.source(script))
        self._begin, self._scripts = self._server.copy(), self._server.scripts
        #: A digest of what was sent to the server in the last play, in its order.
        self.trace = ""

    def play(self, seed: int) -> Failure[None] | None:
        """Play one seed; None: nothing was wrong. Half of what happens comes between what a caller reads and what it does."""
        chance = random.Random(seed)
        self._server.restart(self._begin, scripts=self._scripts)
        self._server.set_time(BEGIN_US)
        link = _Traced(self._server)
        client = SimulatedRedis(connection_pool=SimulatedPool(link))
        facts = Facts()

        def read() -> Facts:
            nonlocal facts
            facts = facts.after(*self._server.changed())
            return facts

        try:
            with machine.run_on(_Dice(seed)):
                play(client, seed, steps=chance.choice([10, 20, 40]), share=0.02, look_every=10, read=read)
        except Broken as error:
            return Failure(None, {}, str(error))
        finally:
            self.trace = link.trace.hexdigest()
        return None

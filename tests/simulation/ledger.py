"""Plays of the ledger alone, by random callers, on the simulated server."""

from __future__ import annotations

import random

import redis

from orchestrator.testing.simulation.link import Link, SimulatedPool
from orchestrator.testing.simulation.server import Server
from orchestrator.testing.simulation.shrinking import Failure
from orchestrator.testing.simulation.world import BEGIN_US
from tests.properties.ledger_plays import Broken, play


class LedgerMachine:
    """What all plays of one process have in common: the server, and a client of it."""

    def __init__(self) -> None:
        server = Server()
        server.set_time(BEGIN_US)
        pool = SimulatedPool(Link(server))
        self._client = redis.Redis(connection_pool=pool)

    def play(self, seed: int) -> Failure[None] | None:
        """Play one seed; None: nothing was wrong. Half of what happens comes between what a caller reads and what it does."""
        chance = random.Random(seed)
        try:
            play(self._client, seed, steps=chance.choice([10, 20, 40]), share=0.02, look_every=10)
        except Broken as error:
            return Failure(None, {}, str(error))
        return None

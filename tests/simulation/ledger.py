"""Plays of the ledger alone, by random callers, on the simulated server."""

from __future__ import annotations

import random

import redis

from orchestrator.testing.simulation.link import Link, SimulatedConnection
from orchestrator.testing.simulation.server import Server
from orchestrator.testing.simulation.world import BEGIN_US
from tests.properties.ledger_plays import Broken, play


class LedgerMachine:
    """What all plays of one process have in common: the server, and a client of it."""

    def __init__(self) -> None:
        server = Server()
        server.set_time(BEGIN_US)
        pool = redis.ConnectionPool(connection_class=SimulatedConnection, link=Link(server), protocol=2)
        self._client = redis.Redis(connection_pool=pool)

    def play(self, seed: int) -> str:
        """Play one seed; what was wrong, or nothing. Half of what happens comes between what a caller reads and what it does."""
        chance = random.Random(seed)
        try:
            play(self._client, seed, steps=chance.choice([10, 20, 40]), share=0.02, look_every=10)
        except Broken as error:
            return str(error)
        return ""

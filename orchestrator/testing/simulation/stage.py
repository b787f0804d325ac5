"""Common parts of many plays of the same agents, made once: a server, keys, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from orchestrator.agents.definition import AgentDefinition
from orchestrator.config.settings import Settings
from orchestrator.notifier.targets import Target
from orchestrator.testing.simulation.link import Link, SimulatedPool, SimulatedRedis
from orchestrator.testing.simulation.schedule import Scheduler
from orchestrator.testing.simulation.server import Server
from orchestrator.testing.simulation.services import Stack
from orchestrator.testing.simulation.world import BEGIN_US, Play, World, machine_of_the_set_up

#: For how long the server has been up when a play begins, in microseconds.
_UP_US: Final = 60_000_000
_URL: Final = "redis://simulated.invalid"
#: Leases are short, as time that passes idly costs looks; what is lost is lost to the simulation, and to no fault.
_SETTINGS: Final = {"lease_s": 4, "heartbeat_s": 1, "max_lost_workers": 9, "max_process_deaths": 9}


class Stage:
    """A stack before anything was submitted; each play begins there, whatever was played before it."""

    def __init__(
        self,
        catalogue: Mapping[str, AgentDefinition],
        data: Path,
        *,
        programs: Sequence[str] = (),
        target: Target | None = None,
        **settings: Any,
    ) -> None:
        self.server = Server()
        self.settings = Settings(**{"redis_url": _URL, "data": data, **_SETTINGS, **settings})
        self.stack = Stack(self.settings, catalogue, programs=programs)
        self.server.set_time(BEGIN_US)
        pool = SimulatedPool(Link(self.server))
        with machine_of_the_set_up():
            self.stack.set_up(SimulatedRedis(connection_pool=pool), target)
        self._begin, self._scripts = self.server.copy(), self.server.scripts

    def world(self, play: Play, scheduler: Scheduler, *, seed: int) -> World:
        """A world in which this is played."""
        self.server.restart(self._begin, scripts=self._scripts)
        # A server that has just started has lost all connections: for a while nobody is missed on it.
        self.server.set_time(BEGIN_US - _UP_US)
        self.server.connect("before")
        self.server.set_time(BEGIN_US)
        return World(self.server, play, scheduler, seed=seed)

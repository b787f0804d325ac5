"""What the processes of a stack do in a simulation: the product's own services and slots, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, cast

from celery import Celery

from orchestrator.agents.definition import AgentDefinition
from orchestrator.audit.build import build_writer
from orchestrator.bootstrap import Container
from orchestrator.config.settings import Settings
from orchestrator.deployment.services import build_callbacks, build_reaper
from orchestrator.dispatch import Dispatcher, RootResults
from orchestrator.keyring.registry import KeyRegistry
from orchestrator.keyring.ring import Keyring
from orchestrator.keyring.store import KeyStore
from orchestrator.router import build_router
from orchestrator.testing.simulation.process import Life, Process, Stop
from orchestrator.worker.container import Runtime
from orchestrator.worker.execution.slot import SlotLoop
from orchestrator.worker.execution.task_events import TaskEvents

#: Seconds between two looks of a slot for a ring; they cost nothing.
_NO_RING_S = 3600.0


class _Rings(Dispatcher):
    """Celery, as far as a stack needs it: messages that ring workers, and that may be lost, doubled and late."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def ring(self, agents: Iterable[tuple[str, str]]) -> None:
        for lane, _ in dict.fromkeys(agents):
            self._process.world.ring(lane)


class Stack:
    """What the processes of one stack have in common: settings, keys, a Celery app for its results."""

    def __init__(self, settings: Settings, app: Celery, catalogue: Mapping[str, AgentDefinition]) -> None:
        self.settings, self.app, self.catalogue = settings, app, catalogue
        self.keys = KeyStore(settings.keys_dir, settings.signature_algorithm)

    def parts(self, process: Process) -> Container:
        """What a process works with."""
        return _Parts(self, process)

    def lives(
        self, *, routers: int = 1, callbacks: int = 1, workers: int = 2, reaper: bool = True
    ) -> dict[str, Life]:
        """The services and workers of a stack."""
        kinds: list[tuple[str, Life, int]] = [
            ("router", self.router, routers),
            ("callbacks", self.callbacks, callbacks),
            ("reaper", self.reaper, int(reaper)),
            ("worker", self.worker, workers),
        ]
        return {f"{name}-{n}": life for name, life, copies in kinds for n in range(1, copies + 1)}

    def audit(self, process: Process) -> None:
        """The audit writer, which is a life of its own: plays cost twice as much with it."""
        build_writer(self.parts(process), consumer=f"audit@{process.mark}").run(Stop(process))

    def router(self, process: Process) -> None:
        parts = self.parts(process)
        build_router(
            process.client,
            self.settings,
            consumer=f"router@{process.mark}",
            dispatcher=parts.dispatcher,
        ).run(Stop(process))

    def callbacks(self, process: Process) -> None:
        build_callbacks(
            process.client, self.settings, parts=self.parts(process), consumer=f"callbacks@{process.mark}"
        ).run(Stop(process))

    def reaper(self, process: Process) -> None:
        build_reaper(process.client, self.settings, parts=self.parts(process)).run(Stop(process))

    def worker(self, process: Process) -> None:
        """One slot, which a ring wakes."""
        parts = self.parts(process)
        runtime = Runtime(
            parts=parts,
            results=parts.results,
            catalogue=self.catalogue,
            ring=process.world.ring,
            events=cast("TaskEvents", _Nobody()),
            beats=process,
        )
        while True:
            process.wait(_NO_RING_S, lambda: process.world.has_rung)
            if process.world.take_ring() is not None:
                SlotLoop(runtime, worker=process.name, name=f"{process.name}/1").run()


class _Parts(Container):
    """The parts of a process; those that reach beyond the server are the simulation's, and keys are read once."""

    def __init__(self, stack: Stack, process: Process) -> None:
        super().__init__(process.client, stack.settings)
        self._stack, self._process = stack, process

    @cached_property
    def dispatcher(self) -> Dispatcher:
        return _Rings(self._process)

    @cached_property
    def results(self) -> RootResults:
        return RootResults(self._stack.app, self.redis)

    @cached_property
    def keyring(self) -> Keyring:
        return Keyring(self._stack.keys, KeyRegistry(self.redis, self._stack.keys))


class _Nobody:
    """Stands in for those who look at events."""

    def __getattr__(self, _: str) -> Callable[..., Any]:
        return lambda *_, **__: None

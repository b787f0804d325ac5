"""What the tasks of one worker process work with; built when the process runs its first task."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass

from celery import Celery

from orchestrator.agents import AgentDefinition
from orchestrator.agents_file import load_agents
from orchestrator.bootstrap import Parts, assemble
from orchestrator.dispatch import RootResults
from orchestrator.redisdb.client import connect
from orchestrator.settings import Settings
from orchestrator.stack import resolve_redis_url

BUNDLED = "workers.agents"


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The parts of one process, and the agents that it serves."""

    parts: Parts
    results: RootResults
    catalogue: Mapping[str, AgentDefinition]


class RuntimeOfProcess:
    """Builds the runtime once in each process: connections must not be shared with a fork."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        self._catalogue: dict[str, AgentDefinition] | None = None
        self._runtime: tuple[int, Runtime] | None = None
        self._lock = threading.Lock()

    @property
    def settings(self) -> Settings:
        """The settings of the worker."""
        return self._settings

    def load_catalogue(self) -> Mapping[str, AgentDefinition]:
        """The agents that this worker serves: the user's, and the bundled ones whose names are free.

        Raises:
            AgentsFileError: the user's agents cannot be loaded.
        """
        if self._catalogue is None:
            self._catalogue = {**load_agents([BUNDLED]), **load_agents(self._settings.agents)}
        return self._catalogue

    def get(self) -> Runtime:
        """The runtime of this process."""
        with self._lock:
            if self._runtime is None or self._runtime[0] != os.getpid():
                client = connect(resolve_redis_url(self._settings), check=False, name="orchestra-worker")
                runtime = Runtime(
                    parts=assemble(client, self._settings),
                    results=RootResults(self._app, client),
                    catalogue=self.load_catalogue(),
                )
                self._runtime = (os.getpid(), runtime)
            return self._runtime[1]

"""What the tasks of one worker process work with; built when the process runs its first task."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from celery import Celery

from orchestrator.agents import AgentDefinition
from orchestrator.agents_file import load_agents
from orchestrator.bootstrap import Parts, assemble
from orchestrator.dispatch import Dispatcher, RootResults
from orchestrator.errors import KeyringError
from orchestrator.keyring.store import KeyStore
from orchestrator.redisdb.client import connect
from orchestrator.settings import Settings
from orchestrator.stack import resolve_redis_url
from workers.lending import Lending

BUNDLED = "workers.agents"


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The parts of one process, and the agents that it serves."""

    parts: Parts
    results: RootResults
    catalogue: Mapping[str, AgentDefinition]
    #: Lends the slots of runs that wait; None: a run that waits keeps its slot to itself.
    lending: Lending | None = None


class RuntimeOfProcess:
    """Builds the runtime once in each process: connections must not be shared with a fork."""

    def __init__(self, app: Celery, settings: Settings, *, lending: Lending | None = None) -> None:
        self._app = app
        self._settings = settings
        self._lending = lending
        self._catalogue: dict[str, AgentDefinition] | None = None
        self._runtime: tuple[int, Runtime] | None = None
        self._lock = threading.Lock()

    @property
    def settings(self) -> Settings:
        """The settings of the worker."""
        return self._settings

    def load_catalogue(self) -> Mapping[str, AgentDefinition]:
        """The agents that this worker serves: the user's, and, if they may review anything, the bundled ones.

        Of the bundled ones those whose names are free. They are left to other hosts where their keys are not at hand.

        Raises:
            AgentsFileError: the user's agents cannot be loaded.
            KeyringError: the key of one of them is on another host.
        """
        if self._catalogue is None:
            keys = KeyStore(self._settings.keys_dir)
            mine = load_agents(self._settings.agents)
            foreign = {name for name, definition in mine.items() if definition.record.foreign}
            missing = sorted(name for name in mine.keys() - foreign if not keys.can_sign(name))
            if missing:
                names = " ".join(missing)
                raise KeyringError(
                    f"the keys of {', '.join(missing)} are not in {keys.folder}: on the host that has operator.pem, "
                    f"`orchestra keys generate {names}` and `orchestra keys export {names}`; here, "
                    "`orchestra keys import`"
                )
            bundled = load_agents([BUNDLED] if self._settings.review_roots else [])
            if not all(keys.can_sign(name) for name in bundled):
                bundled = {}
            self._catalogue = {**bundled, **mine}
        return self._catalogue

    @cached_property
    def dispatcher(self) -> Dispatcher:
        """Sends runs to workers over the worker's own connections to the broker."""
        return Dispatcher(self._app)

    def _queues(self) -> frozenset[str]:
        """What the worker of this process reads."""
        return frozenset(self._app.amqp.queues.consume_from)

    def get(self) -> Runtime:
        """The runtime of this process."""
        with self._lock:
            if self._runtime is None or self._runtime[0] != os.getpid():
                client = connect(
                    resolve_redis_url(self._settings),
                    check=False,
                    name="orchestra-worker",
                    timeout_s=self._settings.command_timeout_s,
                )
                runtime = Runtime(
                    parts=assemble(client, self._settings),
                    results=RootResults(self._app, client),
                    catalogue=self.load_catalogue(),
                    lending=self._lending or Lending(self._settings, queues=self._queues()),
                )
                self._runtime = (os.getpid(), runtime)
            return self._runtime[1]

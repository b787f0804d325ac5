"""Dependencies of the tasks of one worker process, built when the process runs its first task."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from celery import Celery

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.loader import choose_served, load_agents
from orchestrator.agents.registry import OPERATOR
from orchestrator.bootstrap import Container, build_container
from orchestrator.config.settings import Settings
from orchestrator.config.stack import resolve_redis_url
from orchestrator.dispatch import DEFAULT_QUEUE, Dispatcher, RootResults
from orchestrator.errors import ServerUnavailable
from orchestrator.keyring.store import KeyStore
from orchestrator.log import get_logger
from orchestrator.redisdb.client import connect
from orchestrator.worker.context.waits import Blocking
from orchestrator.worker.execution import heartbeat
from orchestrator.worker.execution.heartbeat import Beats, ticker
from orchestrator.worker.execution.shutdown import is_shutting_down
from orchestrator.worker.execution.slot_sharing import SlotSharing, serves
from orchestrator.worker.execution.task_events import TaskEvents
from orchestrator.worker.executors import executor_of

#: The module of the bundled agents, which a worker serves where it is given folders to review.
BUNDLED = "orchestrator.demo"

_log = get_logger()


@dataclass(frozen=True, kw_only=True)
class Runtime:
    """The parts of one process, and the agents that it serves."""

    parts: Container
    results: RootResults
    catalogue: Mapping[str, AgentDefinition]
    #: Lends the slots of runs that wait; None: a run that waits keeps its slot to itself.
    slot_sharing: SlotSharing | None = None
    #: Tells workers of agents that have more ready runs; raises ServerUnavailable.
    wake: Callable[[str], None] = lambda _: None
    #: Shows runs to Flower.
    events: TaskEvents = field(default_factory=TaskEvents)
    #: Makes what a run waits with; another one answers from a script, for tests of agents.
    blocking: Callable[..., Blocking] = Blocking
    #: How many seconds a wait between two calls of a step takes in fact; None: what it is.
    pause: Callable[[float], float] | None = None
    #: Renews the leases of runs.
    beats: Beats = ticker
    #: Whether the worker was asked to end, so that no run begins.
    stopping: Callable[[], bool] = lambda: False

    @property
    def served(self) -> tuple[str, ...]:
        """Return the names of the agents whose runs this process takes."""
        queues = self.slot_sharing.queues if self.slot_sharing is not None else frozenset[str]()
        judge = serves(self.catalogue, queues)
        return tuple(sorted(filter(judge, self.catalogue)))

    def version_of(self, agent: str) -> str:
        """Return the version and the deploy policy of an agent as the ledger takes them with a claim."""
        definition = self.catalogue.get(agent)
        return f"{definition.record.version} {definition.record.on_deploy}" if definition is not None else ""

    def wake_each(self, agents: Iterable[str]) -> None:
        """Tell the workers of these agents that more runs are ready; without a broker the sweep does so later."""
        for agent in agents:
            try:
                self.wake(agent)
            except ServerUnavailable as error:
                _log.warning("notify-failed", agent=agent, error=str(error))


class RuntimeOfProcess:
    """Builds the runtime once in each process: connections must not be shared with a fork."""

    def __init__(self, app: Celery, settings: Settings) -> None:
        self._app = app
        #: The settings of the worker.
        self.settings = settings
        self._catalogue: dict[str, AgentDefinition] | None = None
        #: The agents whose messages are signed here.
        self._signing: set[str] = set()
        self._forget_runtime()
        os.register_at_fork(after_in_child=self._forget_runtime)

    def _forget_runtime(self) -> None:
        """A fork builds its own; another thread may have held the lock when it was made."""
        self._runtime: Runtime | None = None
        self._lock = threading.Lock()

    def load_catalogue(self) -> Mapping[str, AgentDefinition]:
        """The agents that this worker serves: the user's, and, if they may review anything, the bundled ones.

        Of the bundled ones those whose names are free. They are left to other hosts where their keys are not at hand.
        The setting `serve` leaves only some of all these.

        Raises:
            AgentsFileError: the user's agents cannot be loaded.
            ConfigurationError: `serve` names an agent that does not exist.
            KeyringError: the key of one of them is on another host.
        """
        if self._catalogue is None:
            keys = KeyStore(self.settings.keys_dir)
            mine = load_agents(self.settings.agents)
            bundled = load_agents([BUNDLED] if self.settings.review_roots else [])
            served = choose_served({**bundled, **mine}, self.settings.serve)
            external = {name for name, definition in mine.items() if definition.record.external}
            self._signing = (mine.keys() & served.keys()) - external
            self.check_keys()
            at_hand = all(keys.can_sign(name) for name in bundled)
            self._catalogue = {
                name: definition for name, definition in served.items() if at_hand or name in mine
            }
            for definition in self._catalogue.values():
                if not definition.record.external:
                    executor_of(
                        definition
                    )  # imported before processes are forked, and not while a lease runs
        return self._catalogue

    def check_keys(self) -> None:
        """Return if the keys of the user's agents are here, or may be made here.

        Raises:
            KeyringError: the key of one of them is on another host.
        """
        otherwise = ", or leave these agents to other workers (setting `serve`)"
        KeyStore(self.settings.keys_dir).require(*self._signing, otherwise=otherwise)

    def can_submit(self) -> bool:
        """Return True if this host can sign as the operator, for whoever submits work by a plain message."""
        return KeyStore(self.settings.keys_dir).can_sign(OPERATOR)

    def with_ready_runs(self) -> list[str]:
        """The agents that this worker serves and that have ready runs which may be taken."""
        process = self.get()
        ledger, held_back = process.parts.ledger, process.parts.concurrency.held_back
        ready = {
            agent
            for shard in range(self.settings.shards)
            for agent in ledger.sweep.ready(shard, process.served)
            if held_back(agent, shard=shard) is None
        }
        return sorted(ready)

    def get(self) -> Runtime:
        """The runtime of this process."""
        with self._lock:
            if self._runtime is None:
                url = resolve_redis_url(self.settings)
                heartbeat.show(url, self.settings.lease_s)
                client = connect(
                    url,
                    check=False,
                    name="orchestra-worker",
                    timeout_s=self.settings.command_timeout_s,
                )
                parts, dispatcher = build_container(client, self.settings), Dispatcher(self._app)
                self._runtime = Runtime(
                    parts=parts,
                    results=RootResults(self._app, client),
                    catalogue=self.load_catalogue(),
                    # What the worker of this process reads.
                    slot_sharing=SlotSharing(queues=frozenset(self._app.amqp.queues.consume_from)),
                    wake=lambda agent: dispatcher.wake([(agent, parts.queue_of(agent) or DEFAULT_QUEUE)]),
                    events=TaskEvents(self._app),
                    stopping=is_shutting_down,
                )
            return self._runtime

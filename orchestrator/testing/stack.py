"""A whole stack in the process of a test: an embedded Valkey, the services and worker slots in threads.

with InProcessStack(["my_agents.py"]) as stack:
answer = stack.run("lead", "Review this.")
assert answer.tree.agents == {"lead": 1, "reviewer": 2}
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from orchestrator.agents.definition import FUNCTION_ATTRIBUTE, AgentDefinition
from orchestrator.agents.loader import load_agents
from orchestrator.bootstrap import Container
from orchestrator.client.client import Client
from orchestrator.config.settings import Settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.dispatch import RootResults, build_celery
from orchestrator.errors import OrchestraError, ServerUnavailable
from orchestrator.ledger import Session
from orchestrator.reconciler.callbacks import CallbackService
from orchestrator.reconciler.reaper import Reaper
from orchestrator.redisdb.client import connect
from orchestrator.router.build import build_router
from orchestrator.streams import consumer_name
from orchestrator.worker.announce import announce
from orchestrator.worker.container import Runtime
from orchestrator.worker.execution.slot import SlotLoop

#: Settings with which a test waits for nothing.
QUICK = {
    "lease_s": 5,
    "heartbeat_s": 1,
    "sweep_interval_s": 0.2,
    "registration_patience_s": 1,
}
#: Seconds that agents may take to end when the stack is left.
LEAVE_S = 10.0
#: Seconds between two looks of a slot that found nothing.
_LOOK_S = 0.01

#: What names agents: their definition, a function that `@agent` decorated, a module or a file.
AgentSource = AgentDefinition | Callable[..., Any] | str | Path


@dataclass(frozen=True)
class Tree:
    """A tree of sessions as it stands."""

    sessions: tuple[Session, ...]

    @property
    def agents(self) -> dict[str, int]:
        """The number of sessions of each agent in the tree."""
        return dict(Counter(session.agent for session in self.sessions))

    @property
    def states(self) -> dict[str, int]:
        """The number of sessions in each state."""
        return dict(Counter(session.state.value for session in self.sessions))

    def children(self, session: str) -> tuple[Session, ...]:
        """Return the children of a session, in the order in which they were launched."""
        return tuple(child for child in self.sessions if child.parent == session)

    def assert_settled(self) -> None:
        """See that every session has ended and that every callback was delivered, or is dead with a reason.

        Raises:
            AssertionError: names what has not.
        """
        open_ = [f"{s.agent} {s.id}: {s.state.value}" for s in self.sessions if s.busy or not s.ended_ms]
        assert not open_, f"not finished: {', '.join(open_)}"
        outstanding = [f"{s.agent} {s.id}: {s.pending} of {s.launched}" for s in self.sessions if s.pending]
        assert not outstanding, f"callbacks not delivered: {', '.join(outstanding)}"


@dataclass(frozen=True)
class Answer:
    """Answer of a tree."""

    session: str
    text: str
    tree: Tree


class InProcessStack:
    """Runs agents as a stack does, in threads of this process; use it as a ``with`` block."""

    def __init__(self, agents: Iterable[AgentSource] = (), *, slots: int = 4, **settings: Any) -> None:
        self._sources = list(agents)
        self._slots = slots
        self._given = settings
        self._leaving = ExitStack()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        #: What ended one of the threads; None while all is well.
        self.failure: BaseException | None = None

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._stop.set()
            self._leaving.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for each in self._redis.client_list():  # services that wait for messages
            self._redis.client_unblock(int(each["id"]))
        deadline = time.monotonic() + LEAVE_S
        for thread in self._threads:  # those that a hanging agent holds end with the process
            thread.join(max(0.0, deadline - time.monotonic()))
        self._leaving.close()
        if self.failure is not None and kind is None:
            raise self.failure

    def _open(self) -> None:
        folder = Path(self._leaving.enter_context(tempfile.TemporaryDirectory(prefix="orchestra-test-")))
        socket_dir = make_socket_dir()
        self._leaving.callback(remove_socket_dir, socket_dir)
        server = ValkeyProcess(folder / "valkey", socket_dir, durable=False)
        server.start()
        self._leaving.callback(server.stop)
        self.settings = Settings(**{**QUICK, **self._given, "redis_url": server.url, "data": folder / "data"})
        self.catalogue = catalogue_of(self._sources)
        client = self._redis = connect(server.url, check=False)
        self._leaving.callback(client.close)
        parts = Container(client, self.settings)
        announce(parts, self.catalogue)
        app = build_celery(self.settings)
        runtime = Runtime(
            parts=parts,
            results=RootResults(app, client),
            catalogue=self.catalogue,
            stopping=self._stop.is_set,
        )
        router = build_router(client, self.settings, consumer=consumer_name("router"))
        callbacks = CallbackService(client, parts.delivery, consumer=consumer_name("callbacks"))
        reaper = Reaper(
            parts.ledger,
            parts.delivery,
            settle=parts.settle,
            lease_s=self.settings.lease_s,
            interval_s=self.settings.sweep_interval_s,
        )
        for name, run in (("router", router.run), ("callbacks", callbacks.run), ("reaper", reaper.run)):
            self._start(name, lambda run=run: run(self._stop))  # type: ignore[misc]
        for number in range(self._slots):
            self._start(f"slot-{number}", lambda number=number: self._slot(runtime, number))  # type: ignore[misc]
        self.client = self._leaving.enter_context(Client(self.settings))

    def _start(self, name: str, work: Callable[[], object]) -> None:
        def guarded() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (it is raised when the stack is left)
                self.failure = self.failure or error

        thread = threading.Thread(target=guarded, name=f"stack-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _slot(self, runtime: Runtime, number: int) -> None:
        while not self._stop.wait(_LOOK_S):
            try:
                SlotLoop(runtime, worker=f"test-{number}").run()
            except ServerUnavailable:
                if not self._stop.is_set():
                    raise

    def run(self, agent: str, prompt: str, *, timeout_s: float = 60, **given: Any) -> Answer:
        """Submit work and wait for the answer.

        Raises:
            SessionFailed, SessionStopped, SessionDeleted: the session ended without an answer.
            TimeoutError: it has not ended after ``timeout_s`` seconds.
        """
        session = self.client.submit(agent, prompt, **given).id
        try:
            text = self.client.result(session, timeout_s=timeout_s)
        except (OrchestraError, TimeoutError):
            if self.failure is not None:
                raise self.failure from None
            raise
        return Answer(session=session, text=text, tree=self.tree(session))

    def tree(self, session: str) -> Tree:
        """Return the tree of a session."""
        return Tree(tuple(self.client.tree(session)))


def catalogue_of(sources: Iterable[AgentSource]) -> dict[str, AgentDefinition]:
    """Return the agents that these define, by name.

    Raises:
        TypeError: something defines no agent.
        AgentsFileError: a file or module cannot be loaded.
    """
    found: dict[str, AgentDefinition] = {}
    for source in sources:
        if isinstance(source, str | Path):
            found.update(load_agents([str(source)]))
            continue
        definition = getattr(source, FUNCTION_ATTRIBUTE, source)
        if not isinstance(definition, AgentDefinition):
            raise TypeError(
                f"{source!r} defines no agent: give a definition, an @agent function, a module or a file"
            )
        found[definition.name] = definition
    return found

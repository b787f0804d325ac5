"""Processes of a stack in a simulation: the product's own services and slots, unchanged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import cached_property
from typing import Any

import redis

from orchestrator.agents.definition import AgentDefinition
from orchestrator.agents.registry import SYSTEM_AGENTS, AgentRecord
from orchestrator.audit.writer import build_writer
from orchestrator.bootstrap import Container
from orchestrator.config.settings import Settings
from orchestrator.deployment.local_stack import build_callbacks, build_reaper
from orchestrator.dispatch import Dispatcher, RootResults, build_celery
from orchestrator.envelope.codec import decode
from orchestrator.keyring.certificates import KeyCertificate, Revocations, Use
from orchestrator.keyring.folder import Certificates
from orchestrator.keyring.operator import Operator
from orchestrator.keyring.registry import KeyRegistry, Keyring
from orchestrator.keyring.store import KeyStore
from orchestrator.messages.factory import Thread
from orchestrator.notifier.service import Notifier
from orchestrator.notifier.targets import Target
from orchestrator.redisdb import keys, scripts
from orchestrator.router.build import build_router
from orchestrator.testing.simulation.process import Life, Process, Stop, Threads
from orchestrator.worker.container import Runtime
from orchestrator.worker.execution.slot import SlotLoop

#: Milliseconds after which an external program looks for what it still has.
_LOOK_AGAIN_MS = 10_000
#: Seconds between two looks of a slot for a wake-up; they cost nothing.
_NO_WAKE_S = 3600.0


class _Wakeups(Dispatcher):
    """Celery, as far as a stack needs it: messages that wake workers, and that may be lost, doubled and late."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def wake(self, agents: Iterable[tuple[str, str]]) -> None:
        for lane, _ in dict.fromkeys(agents):
            self._process.world.wake(lane)


class Stack:
    """Common parts of the processes of one stack: settings, keys, a Celery app for its results."""

    def __init__(
        self, settings: Settings, catalogue: Mapping[str, AgentDefinition], *, programs: Sequence[str]
    ) -> None:
        self.settings, self.catalogue, self.programs = settings, catalogue, programs
        self.app = build_celery(settings, redis_url=settings.redis_url)
        self.keys = _Keys(settings)

    def set_up(self, client: redis.Redis, target: Target | None = None) -> None:
        """Make what is there before the first process: scripts, agents, groups, and all keys, as those of a play stay."""
        for script in scripts.names():
            client.script_load(scripts.source(script))
        records = [d.record for d in self.catalogue.values()]
        records += [AgentRecord(name=name, executor="foreign") for name in self.programs]
        Container(client, self.settings).agents.announce(records)
        build_router(client, self.settings, consumer="set-up").run_once()
        if target is not None:
            self._notifier(Container(client, self.settings), target, "set-up", Executor())
        for name in sorted({*SYSTEM_AGENTS, *self.catalogue, *self.programs}):
            self.keys.signer(name)

    def parts(self, process: Process) -> Container:
        """Return the parts with which a process works."""
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

    def notifier(self, process: Process, target: Target) -> None:
        """Tell a target what people are told of, which is kept from :meth:`set_up` on if that was given the same one."""
        name, threads = f"notifier@{process.mark}", Threads(process)
        self._notifier(self.parts(process), target, name, threads).run(Stop(process))

    def _notifier(self, parts: Container, target: Target, consumer: str, threads: Executor) -> Notifier:
        return Notifier(
            parts.redis, parts.ledger, [target], self.settings, consumer=consumer, pool=lambda *_: threads
        )

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

    def program(self, process: Process, answer: Callable[[str], str], name: str = "partner") -> None:
        """Be an external program: read tasks in its inbox, and append answers to its outbox; `failed` is sent as an error.

        It acknowledges a task once it has answered it, and so answers again what it had when it died; and what it still has
        after a while in which nothing came, as the server may have lost its answer.
        """
        parts, client = self.parts(process), process.client
        inbox, outbox = keys.inbox(0, name), keys.outbox(0, name)
        seen = "0"
        while True:
            found: Any = client.xreadgroup(name, "one", {inbox: seen}, count=1, block=_LOOK_AGAIN_MS)
            entries = [entry for _, entries in found for entry in entries]
            if not entries:
                seen = ">" if seen == "0" else "0"
            for entry, fields in entries:
                message: Any = decode(fields[b"envelope"])
                if message.body.type == "task-delegation":
                    process.wait(process.random_bytes(1)[0] / 256)
                    data = self._answer(parts, name, message, answer(message.body.task.description))
                    client.xadd(outbox, {"envelope": data})
                client.xack(inbox, name, entry)

    def _answer(self, parts: Container, name: str, task: Any, answer: str) -> bytes:
        """Write what a program says at the end of a task."""
        header, write = task.header, parts.message_factory
        thread = Thread(
            correlation=header.correlation_id, chain=(header.message_id, *header.conversation_chain)
        )
        whom: Any = {"sender": name, "recipient": header.sender.agent_name, "thread": thread}
        whom |= {"sender_session": header.recipient_session, "recipient_session": header.sender_session}
        if answer == "failed":
            return write.error(**whom, error="as it was told").data
        return write.completion(**whom, task_id=task.body.task.task_id, result=answer).data

    def operator(self, process: Process, agent: str = "node") -> None:
        """Bounds what runs at once, and pauses an agent for a while."""
        concurrency = self.parts(process).concurrency
        concurrency.limit_agent(agent, 1)
        concurrency.limit_trees(2)
        process.wait(0.02)
        concurrency.pause("agent", agent)
        process.wait(0.5)
        concurrency.unpause("agent", agent, agents=[agent])
        process.wait(1.0)
        concurrency.limit_agent(agent, "none")
        concurrency.limit_trees("none")
        process.wait(1.5)
        while concurrency.agents([agent])[0].paused:  # a server that restarted has lost its end
            concurrency.unpause("agent", agent, agents=[agent])
            process.wait(1.5)

    def worker(self, process: Process, catalogue: Mapping[str, AgentDefinition] | None = None) -> None:
        """A slot, which a message wakes; of other definitions than the others, if it is given some."""
        parts = self.parts(process)
        nobody: Any = _Nobody()
        runtime = Runtime(
            parts=parts,
            results=parts.results,
            catalogue=self.catalogue if catalogue is None else catalogue,
            wake=process.world.wake,
            events=nobody,
            beats=process,
        )
        while True:
            process.wait(_NO_WAKE_S, lambda: process.world.has_woken)
            if process.world.take_wake() is not None:
                SlotLoop(runtime, worker=process.name, name=f"{process.name}/1").run()


class _Keys(KeyStore):
    """The keys of a stack, of which each file is read once: nobody else writes there.

    A play asks for files of keys some 250 times.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings.keys_dir, settings.signature_algorithm)
        self.operator = _KeptOperator(settings.keys_dir, self._clock)
        #: What was read, and was there, by what was asked for.
        self._kept: dict[tuple[Any, ...], Any] = {}

    def _keep(self, what: tuple[Any, ...], read: Callable[[], Any]) -> Any:
        found = self._kept.get(what)
        if found is None:
            found = read()
            if found is not None:
                self._kept[what] = found
        return found

    def certificate(self, key_id: str) -> KeyCertificate | None:
        certificate: KeyCertificate | None = self._keep(
            (key_id,), lambda: super(_Keys, self).certificate(key_id)
        )
        return certificate

    def current(self, agent: str, use: Use = "sign") -> KeyCertificate | None:
        current: KeyCertificate | None = self._keep(
            (agent, use), lambda: super(_Keys, self).current(agent, use)
        )
        return current

    def list(self) -> Certificates:
        return [*self._keep(("all",), super().list)]

    def revocations(self) -> Revocations:
        revocations: Revocations = self._keep(("revoked",), super().revocations)
        return revocations

    def agent_record(self, agent: str) -> bytes | None:
        record: bytes | None = self._keep(("record", agent), lambda: super(_Keys, self).agent_record(agent))
        return record

    def _stamps(self, agent: str) -> Any:
        return self._keep(("stamps", agent), lambda: super(_Keys, self)._stamps(agent))

    def point(self, certificate: KeyCertificate) -> None:
        super().point(certificate)
        self._kept.clear()

    def keep_revocations(self, revocations: Revocations) -> Revocations:
        self._kept.clear()
        return super().keep_revocations(revocations)

    def keep_agent_record(self, agent: str, signed: bytes) -> None:
        super().keep_agent_record(agent, signed)
        self._kept.clear()


class _KeptOperator(Operator):
    """The operator of a stack, whose certificate stays once it is there."""

    _pem: str | None = None

    @property
    def pem(self) -> str | None:
        if self._pem is None:
            self._pem = super().pem
        return self._pem


class _Parts(Container):
    """The parts of a process; those that reach beyond the server are the simulation's, and keys are read once."""

    def __init__(self, stack: Stack, process: Process) -> None:
        super().__init__(process.client, stack.settings)
        self._stack, self._process = stack, process

    @cached_property
    def dispatcher(self) -> Dispatcher:
        return _Wakeups(self._process)

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

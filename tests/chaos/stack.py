"""A real stack of many processes that a test starts, kills and examines."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import redis as redis_py

from orchestrator.audit import AuditReader, AuditStore
from orchestrator.bootstrap import build_container
from orchestrator.client.client import Client, SessionHandle
from orchestrator.config.settings import Settings
from orchestrator.crashpoints import VARIABLE
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.deployment.forks import Forked, ForkServer
from orchestrator.deployment.local_stack import SERVICES
from orchestrator.dispatch import START_TASK, build_celery
from orchestrator.doctor import Doctor
from orchestrator.doctor.findings import Severity
from orchestrator.ledger import ItemState, Lease, Ledger, RunState, Session, SessionState
from orchestrator.ledger.decode import text
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import hung_services
from orchestrator.streams import ROUTER_GROUP, RedisStreams, all_streams
from tests.transitions import disagreements
from tests.waiting import PATIENCE_S, wait_until

HERE = Path(__file__).parent
#: Files of agents: functions, and beside them models.
CREW = (str(HERE / "crew.py"),)
MODELS = (*CREW, str(HERE / "model_crew.py"))
#: What runs a stack, by the name of the process.
COMMANDS = {
    **{name: ("orchestrator", "service", name) for name in SERVICES},
    "submit": ("orchestrator", "submit"),
}

#: Indexes of the ledger that are empty when nothing is left to do.
UNSETTLED = ("queued", "running", "waiting", "closing", "results")


def long(*values: object) -> Any:
    """Make a case of a test that only `make chaos` runs."""
    return pytest.param(*values, marks=pytest.mark.long)


@dataclass
class Running:
    """One process of a stack."""

    name: str
    process: Forked
    log: Path
    #: The file that is there once it has died where it was told to.
    mark: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def takes_tasks(self) -> bool:
        """Whether a worker has said that it does."""
        return self.log.exists() and " ready." in self.log.read_text(errors="replace")

    def kill(self) -> None:
        """End it and everything it started, at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


@contextmanager
def again_and_again(act: Callable[[], object], every_s: float) -> Iterator[list[int]]:
    """Do something all the time, from a thread of its own; yields how often it was done, as a list of one."""
    over, done = threading.Event(), [0]

    def work() -> None:
        while not over.wait(every_s):
            with suppress(redis_py.RedisError):
                act()
                done[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def children_of(process: Running) -> list[int]:
    """The processes that it started itself."""
    with suppress(OSError):
        return [int(n) for n in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    return []


@dataclass
class Stack:
    """The processes on one server and one data folder. Ends all of them when it is left."""

    forks: ForkServer
    server: ValkeyProcess
    folder: Path
    overrides: dict[str, str] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    agents: tuple[str, ...] = CREW
    #: One of the agents: workers announce all of them together.
    agent: str = "branch"
    _started: int = 0

    def __post_init__(self) -> None:
        self.data = self.folder / "data"
        self.marks = self.folder / "marks"
        self.marks.mkdir(parents=True)
        knobs = {
            "lease_s": "1.5",
            "heartbeat_s": "0.3",
            "sweep_interval_s": "0.3",
            "registration_patience_s": "0.5",
            "stop_grace_s": "1",
            "concurrency": "2",
            **self.overrides,
        }
        self.settings = Settings(
            redis_url=self.server.url,
            data=self.data,
            agents=self.agents,
            **knobs,  # type: ignore[arg-type]
        )
        self.redis = connect(self.server.url, check=False)
        self.ledger = Ledger(self.redis)
        self.shards = range(self.settings.shards)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("ORCHESTRA_", "COV"))},
            **self.settings.to_env(),
            "CHAOS_MARKS": str(self.marks),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.running:
            process.kill()
        wait_until(lambda: not any(p.alive for p in self.running), "the end of all processes")
        self.app.close()
        self.redis.close()

    # --- processes ---------------------------------------------------------------------------

    def start(self, name: str, *arguments: str, crash_at: str = "", **env: str) -> Running:
        """Start one process; ``crash_at`` names where it is to die, once."""
        argv = (
            (*COMMANDS[name], *arguments)
            if name in COMMANDS
            else (
                *("orchestrator.worker", "worker", "--hostname", f"w{self._started}@chaos"),
                *("--concurrency", str(self.settings.concurrency), "--loglevel", "INFO"),
                *("--without-gossip", "--without-mingle", *arguments),
            )
        )
        self._started += 1
        mark = self.folder / f"died-{self._started}"
        if crash_at:
            env[VARIABLE] = f"{crash_at}:{mark}"
        log = self.folder / f"{name}-{self._started}.log"
        with log.open("ab") as out:
            forked = self.forks.fork(
                argv, env={**self.env, **env}, log=out.fileno(), orphan_signal=signal.SIGKILL
            )
        assert forked is not None
        process = Running(name, forked, log, mark)
        self.running.append(process)
        return process

    def replace_the_dead(self) -> list[str]:
        """Start again what ended by itself, as the supervisor of a stack does; what each said last."""
        last_words = []
        for process in [p for p in self.running if not p.alive]:
            self.running.remove(process)
            self.start(process.name)
            last_words.append(f"{process.name}: {process.log.read_text(errors='replace')[-1500:]}")
        return last_words

    def replace(self, name: str, *, crash_at: str = "") -> Running:
        """Kill every process of that name and start one in their place."""
        for process in [p for p in self.running if p.name == name]:
            process.kill()
            self.running.remove(process)
        return self.start(name, crash_at=crash_at)

    def start_all(self, *options: str, **env: str) -> Running:
        """All services, and a worker with these options that takes tasks; the worker."""
        worker = self.start("worker", *options, **env)
        self.start_services()
        self.wait_ready()
        return worker

    def start_services(self, *, but: str = "") -> None:
        """All services but one; nothing is waited for."""
        for name in SERVICES:
            if name != but:
                self.start(name)

    def wait_ready(self) -> None:
        """Return once every worker takes tasks and has announced its agents."""
        for worker in [p for p in self.running if p.name == "worker"]:
            self.wait(worker.takes_tasks, "a worker")
        self.wait(lambda: self.redis.exists(keys.agent(self.agent)), "its agents")

    def wait(self, condition: Callable[[], object], what: str, timeout_s: float = PATIENCE_S) -> None:
        """Wait until a condition holds; where it does not, the logs may say why."""
        wait_until(condition, what, timeout_s, explain=self.logs)

    def client(self) -> Client:
        return Client(self.settings)

    @cached_property
    def app(self) -> Any:
        """Celery, as a program of somebody else has it."""
        return build_celery(self.settings)

    def send(self, agent: str, prompt: str, **options: Any) -> Any:
        """Submit with plain Celery; the task."""
        given = {"agent": agent, "prompt": prompt}
        return self.app.send_task(START_TASK, kwargs=given, queue="chaos", **options)

    @property
    def leases(self) -> list[Lease]:
        """The runs of the first shard that workers hold."""
        return self.ledger.sweep.leases(0)

    def answer(self, session: SessionHandle, *, timeout_s: float = 120) -> str:
        """The final answer; where it does not come in time, everything that may say why."""
        try:
            return session.result(timeout_s=timeout_s)
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.unrest()}{self.logs()}") from None

    def logs(self) -> str:
        """The end of every log, and where every process stands, for a test that fails."""
        for process in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGUSR2)
        time.sleep(0.3)  # to be written down
        return "".join(
            f"\n--- {process.log.name}\n{process.log.read_text(errors='replace')[-3000:]}"
            for process in self.running
            if process.log.exists()
        )

    # --- evidence ----------------------------------------------------------------------------

    def assert_settled(self, *, timeout_s: float = 120) -> None:
        """Everything has come to rest, the promise holds in every tree, and the audit trail is whole."""
        wait_until(
            lambda: not self.unrest(),
            "rest",
            timeout_s=timeout_s,
            explain=lambda: [*self.unrest(), self.logs()],
        )
        for root in self.roots():
            for session in self.ledger.tree(root):
                self._assert_promise(session)
        wait_until(
            lambda: not self.unaudited(), "the audit trail", timeout_s=timeout_s, explain=self.unaudited
        )
        store = AuditStore(self.settings.audit_database, read_only=True)
        assert disagreements(self.ledger, store, self.roots()) == []
        parts = build_container(self.redis, self.settings)
        diagnosis = Doctor(parts, audit=AuditReader(store)).examine(watch_leases=False)
        breaks = [f for f in diagnosis.findings if f.severity in (Severity.BREAK, Severity.STUCK)]
        assert not breaks, breaks

    def roots(self) -> list[str]:
        """Every tree that is kept."""
        return [root for shard in self.shards for root in self.ledger.all_roots(shard)]

    def unrest(self) -> list[str]:
        """What is still to be done by somebody."""
        found = []
        for shard in self.shards:
            of_ledger = (getattr(ledger_keys, name) for name in UNSETTLED)
            for index in (*(make(shard) for make in of_ledger), keys.parked(shard)):
                members = self.redis.zrange(index, 0, -1)
                if members:
                    found.append(f"{index}: {members[:3]} of {len(members)}")
            if self.redis.xlen(keys.session_events(shard)):
                found.append(f"{self.redis.xlen(keys.session_events(shard))} events")
        found += [
            f"{backlog.stream}: {backlog.pending} pending with routers"
            for backlog in RedisStreams(self.redis).backlog(ROUTER_GROUP, all_streams(len(self.shards)))
            if backlog.pending
        ]
        for root in self.roots():
            found += [
                f"{s.id} ({s.agent}) is {s.state}, run {s.run!r}, owed {s.owed}, pending {s.pending}"
                for s in self.ledger.tree(root)
                if s.state in {"pending", "running", "idle"} or s.busy
            ][:5]
        # One that was frozen has not yet said that it goes on.
        return found + [f"{record.service} gives no sign of life" for record, _ in hung_services(self.redis)]

    def unaudited(self) -> dict[str, tuple[int, int]]:
        """Streams of which more was published than is in the audit trail, or less."""
        published = {
            f"{shard:02x}/{text(name).removeprefix('published:').replace(':', '/')}": int(count)
            for shard in self.shards
            for name, count in self.redis.hgetall(keys.totals(shard)).items()
            if name.startswith(b"published:")
        }
        if not self.settings.audit_file.exists():
            return {name: (count, 0) for name, count in published.items()}
        store = AuditStore(self.settings.audit_database, read_only=True)
        written = store.counts()
        store.close()
        return {
            name: (published.get(name, 0), written.get(name, 0))
            for name in published.keys() | written.keys()
            if published.get(name, 0) != written.get(name, 0)
        }

    def _assert_promise(self, session: Session) -> None:
        """From the items, the lists of the committed runs and the children of the tree, and not the counters."""
        items = [i for i in self.ledger.items(session.id) if i.kind == "completion" and i.callback]
        states = Counter(i.state for i in items)
        where = f"{session.agent} {session.id}"
        assert len(items) == states[ItemState.DELIVERED] + states[ItemState.DEAD], f"{where}: {states}"
        if session.state == SessionState.DELETED:  # a tombstone: the counts, and what died
            assert session.pending == 0, where
            assert session.dead == states[ItemState.DEAD] == len(items), where
            return
        assert session.launched == len(items), where
        assert (session.delivered, session.dead) == (states[ItemState.DELIVERED], states[ItemState.DEAD]), (
            where
        )
        assert all(i.reason for i in items if i.state == ItemState.DEAD), where
        carried = Counter(
            i for r in self.ledger.runs(session.id) if r.state == RunState.COMPLETED for i in r.items
        )
        delivered = {i.id for i in items if i.state == ItemState.DELIVERED}
        assert {i: n for i, n in carried.items() if i in delivered} == dict.fromkeys(delivered, 1), where
        children = {s.id for s in self.ledger.tree(session.root) if s.parent == session.id}
        assert children == {i.child for i in items}, where


MakeStack = Callable[..., Stack]

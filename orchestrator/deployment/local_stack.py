"""A whole stack on this machine: server, services with everything they need, and a worker."""

from __future__ import annotations

import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import redis

from orchestrator.config.settings import ENV_PREFIX, Settings, is_agents_file
from orchestrator.config.stack import Announcement, Stack, prepare_data_folder, running_stacks
from orchestrator.deployment.embedded.membership import MembershipClient, join
from orchestrator.deployment.forks import ForkServer
from orchestrator.deployment.reload import AgentsWatch
from orchestrator.deployment.supervisor import ChildSpec, HangWatch, Notice, Supervisor
from orchestrator.deployment.trial_import import see_that_agents_load
from orchestrator.errors import ConfigurationError
from orchestrator.redisdb.client import connect
from orchestrator.runtime.process import set_soon
from orchestrator.runtime.service import hangs_after_s

if TYPE_CHECKING:
    from orchestrator.bootstrap import Container
    from orchestrator.reconciler.callbacks import CallbackService
    from orchestrator.reconciler.reaper import Reaper

_TICK_S = 0.05
#: Seconds between two looks at processes of which each is ready.
_IDLE_TICK_S = 0.2
_TRIM_EVERY_S = 10.0

#: The services of every stack; `orchestra service NAME` runs one.
SERVICES = ("router", "callbacks", "reaper", "audit")


def service_specs(settings: Settings) -> list[ChildSpec]:
    """Return a process for each service that these settings ask for."""
    asked = {"notifier": settings.notifies, "console": settings.console and has_console()}
    return [
        ChildSpec(name=name, module=("orchestrator", "service", name), stage=2)
        for name in (*SERVICES, *(name for name, wanted in asked.items() if wanted))
    ]


def has_console() -> bool:
    """Return True if the libraries of the extra `console` are installed."""
    return all(map(find_spec, ("starlette", "jinja2", "sse_starlette", "uvicorn", "itsdangerous")))


def worker_spec(settings: Settings) -> ChildSpec:
    """Return the process of a Celery worker: it is stopped first, and is given time to finish what runs."""
    return ChildSpec(
        name="worker",
        module=(
            *("orchestrator.worker", "worker"),
            *("--hostname", f"orchestra-{uuid.uuid4().hex[:8]}@%h"),
            *("--concurrency", str(settings.concurrency)),
            *("--loglevel", settings.log_level.upper()),
            # Workers of a stack need not know each other; this spares a second at the start.
            *("--without-gossip", "--without-mingle"),
        ),
        # Warm first: running agents may finish; then cold: the runs' leases bring them back elsewhere.
        stop_with=((signal.SIGTERM, settings.stop_grace_s), (signal.SIGQUIT, 3.0)),
        # Celery's cold shutdown can hang once its broker is gone, and the pool ends with its master.
        orphan_signal=signal.SIGKILL,
        stage=1,
    )


class LocalStack:
    """The processes of one stack. Use :meth:`run` in the foreground, or a ``with`` block for the background.

    Without a Redis URL in the settings it joins the embedded server of the data folder. With ``reload`` a changed agents
    file gets the worker replaced by one that has it.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        specs: Sequence[ChildSpec] | None = None,
        reload: bool = False,
        notify: Callable[[Notice], None] = lambda _: None,
    ) -> None:
        self._given = settings
        self._specs = specs
        self._reload = reload
        self._watch: AgentsWatch | None = None
        self._notify = notify
        self._membership: MembershipClient | None = None
        self._supervisor: Supervisor | None = None
        self._forks: ForkServer | None = None
        #: What is to be closed when the stack leaves its server, the last first.
        self._leaving = ExitStack()
        self._stop = threading.Event()
        self._kill = threading.Event()
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: Exception | None = None
        #: The stacks of the same data folder and server that ran when it was opened.
        self.joined: list[Stack] = []
        #: What is odd about its agents; complete once it is open.
        self.warning = ""
        #: The settings that the stack's processes run with; complete once it is open.
        self.settings = settings

    @property
    def url(self) -> str:
        """The URL of the ledger's Redis; known once the stack is open."""
        assert self.settings.redis_url is not None
        return self.settings.redis_url

    @property
    def embedded(self) -> bool:
        """True if it runs on the embedded server."""
        return self._membership is not None

    @property
    def ready(self) -> bool:
        """True if every process has been ready at least once."""
        return self._ready.is_set()

    @property
    def logs(self) -> dict[str, Path]:
        """The log file of each process."""
        return self._supervisor.logs if self._supervisor else {}

    @property
    def pids(self) -> dict[str, int]:
        """The process id of each process that runs."""
        return self._supervisor.pids if self._supervisor else {}

    def open(self) -> None:
        """Find or start the server and announce the stack; the processes are started by :meth:`run`.

        Raises:
            ConfigurationError, UnsupportedServer, ServerUnavailable: the agents cannot be loaded, there is no server
                to run on, or no broker.
        """
        given = self._given
        prepare_data_folder(given.data)
        agents = tuple(
            str(Path(name).expanduser().absolute()) if is_agents_file(name) else name for name in given.agents
        )
        env = {k: v for k, v in os.environ.items() if not k.startswith(ENV_PREFIX) or k.endswith("_CONFIG")}
        if self._specs is None:
            # While all that follows goes on, it imports what the processes need.
            self._start_forks(env)
        if agents and self._specs is None:
            # Before anything is started: a broken file costs a message and nothing else.
            self.warning = see_that_agents_load(
                agents, env=env | given.model_copy(update={"agents": agents}).to_env(), forks=self._forks
            )
        if given.redis_url is None:
            self._membership = join(given.data)
            self._leaving.callback(self._membership.leave)
            url = self._membership.url
        else:
            url = given.redis_url
        connect(url, settings=given, begins=True).close()
        if given.broker_url is not None:
            from orchestrator.dispatch.dispatcher import check_broker

            check_broker(given.broker_url)
        self.settings = given.model_copy(update={"redis_url": url, "agents": agents})
        env |= self.settings.to_env()
        if self._reload:
            # Before a worker loads the files: what changes afterwards is seen.
            self._watch = AgentsWatch(
                agents, env=env, forks=self._forks, accept=self._replace_worker, refuse=self._keep_worker
            )
            self._leaving.callback(self._watch.close)
        others = running_stacks(given.data)
        self.joined = [stack for stack in others if stack.redis_url == url]
        taken = {stack.number for stack in others}
        number = next(number for number in count(1) if number not in taken)
        announcement = Announcement(
            given.data,
            Stack(
                redis_url=url,
                broker_url=given.broker_url,
                agents=agents,
                pid=os.getpid(),
                started_ms=time.time_ns() // 1_000_000,
                number=number,
            ),
        )
        self._leaving.callback(announcement.close)
        watch = HangWatch(str(self.settings.data), after_s=hangs_after_s(self.settings))
        self._leaving.callback(watch.close)
        self._supervisor = Supervisor(
            self._specs
            if self._specs is not None
            else [*service_specs(self.settings), worker_spec(self.settings)],
            env=env,
            logs=given.logs_dir,
            log_suffix=f".{number}" if number > 1 else "",
            notify=self._notify,
            forks=self._forks,
            hangs=watch.hangs,
        )
        self._leaving.callback(self._supervisor.stop, at_once=self._kill.is_set)

    def _start_forks(self, env: Mapping[str, str]) -> None:
        def died(how: str) -> None:
            self._notify(Notice(kind="restarting", name="fork server", detail=how))

        if self._forks is None:
            self._forks = ForkServer(env=env, on_death=died)
            self._forks.start()

    def run(self, on_tick: Callable[[], None] = lambda: None) -> None:
        """Run the processes until :meth:`stop` is called, then stop them in order.

        ``on_tick`` is called a few times a second meanwhile.

        Raises:
            ConfigurationError: a process does not start, or the server cannot go on.
        """
        try:
            if self._supervisor is None:
                self.open()
            trim_at = time.monotonic() + _TRIM_EVERY_S
            while not self._stop.is_set():
                self._listen_to_server_manager()
                assert self._supervisor is not None
                self._supervisor.tick()
                if self._watch is not None:
                    self._watch.tick()
                if self._supervisor.ready:
                    self._ready.set()
                if time.monotonic() > trim_at:
                    self._supervisor.trim_logs()
                    trim_at = time.monotonic() + _TRIM_EVERY_S
                on_tick()
                self._stop.wait(_IDLE_TICK_S if self._supervisor.settled else _TICK_S)
            self._notify(Notice(kind="stopping", name="stack"))
        finally:
            self.close()

    def _replace_worker(self, why: str) -> None:
        self._notify(Notice(kind="replacing", name="worker", detail=why))
        assert self._supervisor is not None
        self._supervisor.replace(worker_spec(self.settings))

    def _keep_worker(self, reason: str) -> None:
        self._notify(Notice(kind="kept", name="worker", detail=reason))

    def _listen_to_server_manager(self) -> None:
        for event in self._membership.events() if self._membership else ():
            match event["event"]:
                case "died":
                    self._notify(Notice(kind="died", name="server", detail=event["reason"]))
                case "restarted":
                    self._notify(Notice(kind="recovered", name="server"))
                case "failed":
                    raise ConfigurationError(event["reason"])
                case "lost":
                    self._move_to_new_server()
                    return

    def _move_to_new_server(self) -> None:
        """The server manager was killed and took the server along: go on with another one on the same data."""
        self._notify(Notice(kind="died", name="server", detail="its keeper was killed"))
        assert self._supervisor is not None
        self._supervisor.stop(at_once=lambda: True)
        self._leaving.close()
        self.open()
        self._notify(Notice(kind="recovered", name="server"))

    def stop(self, *, at_once: bool = False) -> None:
        """Ask the stack to stop; safe from a signal handler. ``at_once`` kills what does not stop by itself."""
        set_soon(*([self._kill] if at_once else []), self._stop)

    def close(self) -> None:
        """Stop what runs and leave the server; idempotent. Nothing is left of the stack after it."""
        self._leaving.close()
        self._supervisor = None
        forks, self._forks = self._forks, None
        if forks is not None:
            forks.close()

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until every process is ready.

        Raises:
            OrchestraError: it failed to start, for this reason.
            ConfigurationError: it took longer than ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        while not self._ready.wait(0.02):
            if self.failure is not None:
                raise self.failure
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"the stack is not ready after {timeout_s:g} s; see {self._given.logs_dir}"
                )

    def __enter__(self) -> Self:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        self._thread = threading.Thread(target=self._run_in_background, name="stack")
        self._thread.start()
        return self

    def _run_in_background(self) -> None:
        try:
            self.run()
        except Exception as error:  # noqa: BLE001  (handed to whoever waits in wait_ready)
            self.failure = error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._thread is not None:
            self._thread.join()


def describe(notice: Notice) -> str:
    """Return a notice as one line for the user."""
    words: dict[str, Any] = {
        "ready": "ready",
        "restarting": "ended; starting it again",
        "died": "ended",
        "recovered": "is back",
        "stopping": "stopping",
        "killed": "did not stop in time and was killed",
        "hung": "gave no sign of life and is ended",
        "replacing": "is being replaced",
        "replaced": "is replaced; the old one finishes what runs",
        "retired": "that was replaced has finished",
        "kept": "stays as it is",
    }
    # `callbacks did not stop` would be about callbacks.
    what = (
        notice.name
        if notice.name.startswith("worker") or notice.name in ("stack", "server", "fork server")
        else f"service {notice.name}"
    )
    return f"{what} {words[notice.kind]}{f' ({notice.detail})' if notice.detail else ''}"


#: Sweeps between two looks for audit writers that are gone.
_TIDY_EVERY = 1000
#: Sweeps between two looks for what can be trimmed, unless the last one found something.
_LOOK_AT_STREAMS_EVERY = 8


# What these need is imported in the services alone: `up` starts its processes sooner without it, and stays small.
def build_callbacks(
    client: redis.Redis, settings: Settings, *, parts: Container | None = None, consumer: str = ""
) -> CallbackService:
    """Return a callback service; ``consumer`` is its name in its group."""
    from orchestrator.agents.registry import REAPER
    from orchestrator.bootstrap import Container
    from orchestrator.reconciler.callbacks import CallbackService
    from orchestrator.streams import consumer_name

    parts = parts or Container(client, settings)
    parts.keyring.require(REAPER)
    return CallbackService(
        client,
        parts.delivery,
        consumer=consumer or consumer_name("callbacks"),
        shards=settings.shards,
        # Handling a batch takes far less than what a lease allows an agent.
        take_over_ms=round(settings.lease_s * 1000 / 3),
    )


def build_reaper(client: redis.Redis, settings: Settings, *, parts: Container | None = None) -> Reaper:
    """Return a reaper that also trims the streams of messages, of the ledger and of external programs."""
    from orchestrator import streams
    from orchestrator.agents.registry import REAPER
    from orchestrator.bootstrap import Container
    from orchestrator.reconciler.reaper import Reaper
    from orchestrator.redisdb.holders import connected_holders
    from orchestrator.router.deadletters.store import DeadLetters
    from orchestrator.streams.consumer import GONE_MS

    parts = parts or Container(client, settings)
    parts.keyring.require(REAPER)
    messages, known = streams.RedisStreams(client), streams.all_streams(settings.shards)
    of_ledger = streams.ledger_streams(streams.TRANSITIONS, settings.shards)
    dead, limits = DeadLetters(client, shards=settings.shards), streams.DeadLimits.of(settings)
    sweeps, flowed = count(), True

    def trim() -> int:
        nonlocal flowed
        sweep = next(sweeps)
        if not flowed and sweep % _LOOK_AT_STREAMS_EVERY:
            return 0
        if sweep % _TIDY_EVERY == 0:
            # An audit writer may not: to remove a consumer is to lose what it holds, in whichever group.
            messages.forget(streams.AUDIT_GROUP, [*known, *of_ledger], idle_ms=GONE_MS)
        programs = [record.name for record in parts.agents.all() if record.external]
        # What a program's own group has not read yet stays, in the streams of messages as in its inbox.
        dropped = messages.trim(streams.GROUPS, known, also=programs)
        dropped += messages.trim([streams.AUDIT_GROUP], of_ledger)
        for program in programs:
            dropped += messages.trim([program], streams.boxes(streams.INBOX, [program], settings.shards))
        flowed = dropped > 0
        return dropped + dead.expire(limits)

    return Reaper(
        parts.ledger,
        parts.delivery,
        settle=parts.settle,
        trim=trim,
        wake=parts.wake,
        agents=lambda: [record.name for record in parts.agents.all() if not record.external],
        concurrency=parts.concurrency,
        connected=lambda: connected_holders(client),
        shards=settings.shards,
        lease_s=settings.lease_s,
        interval_s=settings.sweep_interval_s,
    )

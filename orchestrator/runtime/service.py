"""Runs a service: signals, readiness, heartbeats, and outages of Redis.

A service is an object with ``run(stop)`` that works until ``stop`` is set. When it raises because Redis is away,
:func:`serve` waits for the server and builds the service again, so a restart of Redis never ends a service. Any other
exception is a bug or a wrong configuration and ends the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import signal
import socket
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import redis
from pydantic import TypeAdapter

from orchestrator import machine
from orchestrator.config.settings import Settings
from orchestrator.config.stack import resolve, resolve_redis_url
from orchestrator.errors import ServerUnavailable
from orchestrator.log import RateLimitedLog, configure_logging, get_logger
from orchestrator.redisdb import keys
from orchestrator.redisdb.all_keys import SharedKeys
from orchestrator.redisdb.client import CONNECT_TIMEOUT_S, RETRIES, check_server, connect, is_outage
from orchestrator.redisdb.holders import connected_holders, connection_name
from orchestrator.redisdb.raw_pipeline import server_ms
from orchestrator.runtime.probe import Probe
from orchestrator.runtime.process import die_with_parent, set_soon

if TYPE_CHECKING:
    from orchestrator.agents.registry import AgentRecord

#: The environment variable with the file descriptor on which a child of `orchestra up` reports that it is ready.
READY_VARIABLE = "ORCHESTRA_READY_FD"
#: Heartbeats that a service may miss before it counts as gone.
MISSED_HEARTBEATS = 4
#: Heartbeats between two looks for what others did: keys they have overwritten, services that are gone.
_LOOKS_AROUND_EVERY = 30
_BACKOFF_CAP_S = 2.0
#: Failures that are counted. The pause reaches its cap before, and 2 to the power of an unbounded count overflows.
_MOST_FAILURES = 10
#: Seconds between two looks of a loop that are noted.
_LOOK_EVERY_S = 0.2
#: Leases after which a loop that gave no sign of life hangs.
_HANGS_AFTER_LEASES = 4
#: Niceness of a background service, which leaves it about a tenth of a busy core.
_NICE = 10


class Service(Protocol):
    """A service."""

    def run(self, stop: threading.Event) -> None:
        """Work until ``stop`` is set, then return within two seconds."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServiceRecord:
    """Record of a running service or worker in Redis."""

    service: str
    instance: str
    host: str
    pid: int
    #: When the service started, and until when it counts as alive, in milliseconds since the epoch by the server's clock.
    started_ms: int
    alive_until_ms: int
    #: What its connections to Redis bear, so that one that hangs is told from one that was killed.
    mark: str = ""
    #: Of a worker: each agent that it serves → the queue that it reads for the agent.
    serves: Mapping[str, str] = field(default_factory=dict)
    #: Of a worker: each agent that it serves → the version of its definition.
    versions: Mapping[str, str] = field(default_factory=dict)
    #: Of a worker: how many runs it executes at once.
    slots: int = 0


def serve(
    name: str,
    make: Callable[[redis.Redis, Settings], Service],
    settings: Settings,
    *,
    background: bool = False,
    stop: threading.Event | None = None,
) -> None:
    """Run one copy of a service until SIGTERM or SIGINT; returns after a clean stop.

    Args:
        name: the kind of service, as it registers itself.
        make: builds the service; called again after each outage. Its settings name the Redis that was found.
        settings: the settings of the stack.
        background: run with a lower priority, because nobody waits for this service.
        stop: set by the caller to stop the service; then no signal handler is installed.

    Raises:
        ConfigurationError, ServerUnavailable: no usable server answers at the start. Under `orchestra up`, which
            has reached the server before, the service waits for it instead.
    """
    alone = stop is None
    if stop is None:
        stop = threading.Event()
        _stop_on_signals(stop)
        if background:
            os.nice(_NICE)
        if READY_VARIABLE in os.environ:
            die_with_parent()
        configure_logging(settings, service=name)
    log = get_logger()
    url = resolve_redis_url(settings)
    settings = resolve(settings)
    supervised = READY_VARIABLE in os.environ
    client = connect(
        url,
        name=connection_name(name, machine.own_mark()),
        check=not supervised,
        timeout_s=settings.command_timeout_s,
    )
    life = SignsOfLife(name, client, settings)
    failures = 0
    try:
        while not stop.is_set():
            try:
                check_server(client, url, settings=settings, begins=True)
                service = make(client, settings)
                life.begin()
                notify_ready()
                failures = 0
                if alone:
                    spare_the_collector()
                with life.of_loop(ends=alone):
                    service.run(_Watched(stop, life))
            except (redis.RedisError, OSError, ServerUnavailable) as error:
                away = is_outage(error)
                if not away and not life.hinders(error):
                    raise
                failures = min(failures + 1, _MOST_FAILURES)
                delay = min(_BACKOFF_CAP_S, 0.05 * 2**failures) * (0.5 + machine.random() / 2)
                log.warning("redis-away" if away else "held-up", error=str(error), retry_in_s=round(delay, 2))
                stop.wait(delay)
    finally:
        life.end()
        client.close()


class _Watched(threading.Event):
    """Stop request as the loop of a service sees it: each look at it is a sign of life."""

    def __init__(self, stop: threading.Event, life: SignsOfLife) -> None:
        super().__init__()
        self._poll, self._life = stop, life

    def set(self) -> None:
        self._poll.set()

    def is_set(self) -> bool:
        self._life.beat()
        return self._poll.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        self._life.beat()
        return self._poll.wait(timeout)


#: The signs of life of the service whose loop a thread runs.
_of_loop = threading.local()


def still_at_work() -> None:
    """Give a sign of life from within a round that may take long; harmless outside of a service."""
    life: SignsOfLife | None = getattr(_of_loop, "life", None)
    if life is not None:
        life.beat()


def hangs_after_s(settings: Settings) -> float:
    """Return the seconds after which a service whose loop does not look up hangs.

    One command to a Redis that has gone silent takes less, with all its repetitions: an outage ends no service.
    """
    silent_s = (CONNECT_TIMEOUT_S + settings.command_timeout_s) * (RETRIES + 2)
    return max(settings.lease_s * _HANGS_AFTER_LEASES, silent_s)


def spare_the_collector() -> None:
    """Exclude all objects that exist now from garbage collection.

    Most of them live as long as the process. A router then spends a quarter less time on a message.
    """
    gc.collect()
    gc.freeze()


def notify_ready() -> None:
    """Report to the `orchestra up` that started this process, if any, that it is ready. Only the first call counts."""
    number = os.environ.pop(READY_VARIABLE, None)
    if number is not None:
        faulthandler.enable(file=2)  # it says where it stood when its supervisor ends it
        with contextlib.suppress(OSError):
            os.write(int(number), b"ready\n")
            os.close(int(number))


def live_services(client: redis.Redis) -> list[ServiceRecord]:
    """Return every service and worker whose heartbeat is recent, sorted by service and start."""
    now_ms = server_ms(client)
    records = map(_record, client.hgetall(keys.services()).values())
    return sorted(
        (record for record in records if record is not None and record.alive_until_ms >= now_ms),
        key=lambda record: (record.service, record.started_ms),
    )


@cache
def record_adapter() -> TypeAdapter[ServiceRecord]:
    """Return what reads registered records; it takes a while to be made."""
    return TypeAdapter(ServiceRecord)


def hung_services(client: redis.Redis) -> list[tuple[ServiceRecord, float]]:
    """Services and workers that are connected and give no sign of life, and for how many seconds; those that are stopped, too."""
    now_ms, connected = server_ms(client), connected_holders(client).holders
    found = [
        (record, (now_ms - record.alive_until_ms) / 1000)
        for record in map(_record, client.hgetall(keys.services()).values())
        if record is not None and record.alive_until_ms < now_ms and record.mark in connected
    ]
    return sorted(found, key=lambda pair: (pair[0].service, pair[0].started_ms))


def _record(raw: bytes | str) -> ServiceRecord | None:
    """Return a registered record; None if it is not valid, because something else wrote it."""
    try:
        return record_adapter().validate_json(raw)
    except ValueError:
        return None


def living_agents(client: redis.Redis) -> frozenset[tuple[str, str]]:
    """Name and queue of every agent that a living worker serves.

    A worker that stops cleanly leaves at once. A worker that is killed leaves after a few missed heartbeats.
    """
    return frozenset(pair for record in live_services(client) for pair in record.serves.items())


def is_served(record: AgentRecord, living: Collection[tuple[str, str]]) -> bool:
    """Return True if a worker takes the runs of an agent. External programs and parts of the system count as served."""
    return record.external or record.system or (record.name, record.queue) in living


def living_versions(client: redis.Redis) -> dict[str, dict[str, int]]:
    """Each agent that living workers serve → its versions → how many workers have that version."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for record in live_services(client):
        for agent, version in record.versions.items():
            found[agent][version] += 1
    return {agent: dict(sorted(versions.items())) for agent, versions in found.items()}


def shared_keys_of(client: redis.Redis, settings: Settings) -> SharedKeys:
    """Return the keys that the sessions of a stack share, those of its agents and programs among them."""
    from orchestrator.streams import all_streams, stream_key

    def names() -> set[str]:
        found: set[str] = set()
        with contextlib.suppress(redis.ResponseError):  # the lists of agents are among the keys
            announced: Any = client.zrange(keys.agents(), 0, -1)
            found |= {name.decode(errors="replace") for name in announced}
        with contextlib.suppress(redis.ResponseError):
            found |= {name for name, _ in living_agents(client)}
        return found

    streams = map(stream_key, all_streams(settings.shards))
    return SharedKeys(client, settings.shards, names=names, streams=streams)


class SignsOfLife:
    """Registers a process of a service in Redis, renews the registration from a thread, and answers who probes it.

    While the loop of a service is under way, its looks are the signs of life: if they stay out, the registration is renewed
    no more, who probes hears of it, and in the end the process ends itself, having written where each thread stood.
    """

    def __init__(
        self,
        service: str,
        client: redis.Redis,
        settings: Settings,
        *,
        serves: Mapping[str, str] = MappingProxyType({}),
        versions: Mapping[str, str] = MappingProxyType({}),
        slots: int = 0,
    ) -> None:
        self._service = service
        self._serves = dict(serves)
        self._versions = dict(versions)
        self._slots = slots
        self._instance = machine.uuid4().hex[:12]
        self._client = client
        self._interval_s = settings.heartbeat_s
        self._shared = shared_keys_of(client, settings)
        self._seldom = RateLimitedLog()
        self._started_ms = 0
        self._probe = Probe(
            service, self._instance, data=str(settings.data), late_s=self._interval_s * MISSED_HEARTBEATS
        )
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._hangs_after_s = hangs_after_s(settings)
        #: When the loop looked up last, on the monotonic clock; None: no loop is under way.
        self._looked_at: float | None = None
        #: Whether a loop that hangs ends this process, and until when there is no need to put its end off.
        self._ends = False
        self._armed_until = 0.0

    def begin(self) -> None:
        """Register now, and start the heartbeat. May be called again."""
        self._register()
        with contextlib.suppress(redis.ResponseError):  # the key was overwritten, which was named
            self._forget_the_gone()
        try:
            self._probe.open()
        except OSError as error:
            get_logger().warning("no-probe", reason=str(error))
        if self._thread is None:
            self._thread = machine.start_thread(self._renew, "heartbeat")

    def end(self) -> None:
        """Stop the heartbeat and remove the registration, if Redis answers."""
        if self._thread is None:
            return
        self._stop.set()
        self._thread.join(timeout=1)
        self._probe.close()
        with contextlib.suppress(redis.RedisError, OSError):
            try:
                self._client.hdel(keys.services(), self._instance)
            except redis.exceptions.NoPermissionError:
                self._register(alive_ms=0)  # one that deletes nothing, as the audit writer; others remove it

    @contextlib.contextmanager
    def of_loop(self, *, ends: bool) -> Iterator[None]:
        """Inside, the looks of a loop are the signs of life; ``ends``: a loop that hangs ends this process."""
        self._looked_at, self._armed_until, self._ends, _of_loop.life = 0.0, 0.0, ends, self
        self.beat()
        try:
            yield
        finally:
            self._looked_at, _of_loop.life = None, None
            if ends:
                faulthandler.cancel_dump_traceback_later()

    def beat(self) -> None:
        """The loop looks up."""
        now = machine.monotonic()
        if self._looked_at is None or now - self._looked_at < _LOOK_EVERY_S:
            return
        self._looked_at = now
        self._probe.beat()
        if self._ends and now >= self._armed_until:
            # A thread without the interpreter's lock ends the process; the last words in its log say where it stood.
            faulthandler.dump_traceback_later(self._hangs_after_s, exit=True, file=2)
            self._armed_until = now + self._hangs_after_s / 8

    def _is_late(self) -> bool:
        """Return True if the loop has not looked up for so long that it counts as gone."""
        since = self._looked_at
        return since is not None and machine.monotonic() - since > self._interval_s * MISSED_HEARTBEATS

    def _renew(self) -> None:
        for beats in count():
            if self._stop.wait(self._interval_s):
                return
            if self._looked_at is None:
                self._probe.beat()
            if self._is_late():
                continue
            # The service handles outages; the next heartbeat registers again.
            with contextlib.suppress(redis.RedisError, OSError):
                self._register()
                if beats % _LOOKS_AROUND_EVERY == 0:
                    self._name_wrong_keys()
                    self._forget_the_gone()

    def _name_wrong_keys(self) -> None:
        for wrong in self._shared.wrong():
            if self._seldom.due(wrong.key):
                get_logger().error("key-overwritten", key=wrong.key, reason=str(wrong))

    def hinders(self, error: Exception) -> bool:
        """Return True if a command was refused because a key that sessions share was overwritten; then it is named."""
        hinders = self._shared.hinder(error)
        if hinders:
            self._name_wrong_keys()
        return hinders

    def _register(self, *, alive_ms: int | None = None) -> None:
        if alive_ms is None:
            alive_ms = round(self._interval_s * MISSED_HEARTBEATS * 1000)
        now_ms = server_ms(self._client)
        self._started_ms = self._started_ms or now_ms
        record = ServiceRecord(
            service=self._service,
            instance=self._instance,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ms=self._started_ms,
            alive_until_ms=now_ms + alive_ms,
            mark=machine.own_mark(),
            serves=self._serves,
            versions=self._versions,
            slots=self._slots,
        )
        try:
            self._client.hset(keys.services(), self._instance, json.dumps(asdict(record)))
        except redis.ResponseError as error:
            if not self.hinders(error):  # otherwise its work can be done all the same
                raise

    def _forget_the_gone(self) -> None:
        """Remove the registrations of processes that were killed an hour ago, and what is none."""
        long_ago_ms = server_ms(self._client) - 3_600_000
        gone = [
            instance
            for instance, raw in self._client.hgetall(keys.services()).items()
            if (one := _record(raw)) is None or one.alive_until_ms < long_ago_ms
        ]
        if gone:
            with contextlib.suppress(redis.exceptions.NoPermissionError):
                self._client.hdel(keys.services(), *gone)


def _stop_on_signals(stop: threading.Event) -> None:
    def handle(number: int, _frame: object) -> None:
        if stop.is_set():
            # The second signal ends the process at once.
            os._exit(128 + number)
        set_soon(stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)

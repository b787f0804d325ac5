"""The frame that every service runs in: signals, readiness, signs of life, and outages of Redis.

A service is an object with ``run(stop)`` that works until ``stop`` is set. It lets an outage of Redis out as
the exception it is: the frame waits until the server is back and builds the service again, so a restart of
Redis never ends a service. Anything else it raises is a bug or a wrong set-up and ends the process.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import socket
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from types import MappingProxyType
from typing import Protocol

import redis

from orchestrator.agents.registry import AgentRecord
from orchestrator.config.settings import Settings
from orchestrator.config.stack import resolve, resolve_redis_url
from orchestrator.errors import ServerUnavailable
from orchestrator.log import configure_logging, get_logger
from orchestrator.policy.versions import split_lane
from orchestrator.redisdb import keys
from orchestrator.redisdb.client import check_server, connect, is_outage
from orchestrator.redisdb.holders import connection_name, own_mark
from orchestrator.runtime.parent_death import die_with_parent
from orchestrator.runtime.signals import set_soon

#: The descriptor on which a child of `orchestra up` says that it is ready.
READY_VARIABLE = "ORCHESTRA_READY_FD"
#: Heartbeats that a service may miss before others take it for gone.
MISSED_HEARTBEATS = 4
_BACKOFF_CAP_S = 2.0
#: Failures that are counted; the pause has reached its cap long before, and a larger power of two is no float.
_MOST_FAILURES = 10
#: How far a background service stands back; it still gets a tenth of a core that everybody wants.
_NICE = 10


class Service(Protocol):
    """Something that works until it is told to stop."""

    def run(self, stop: threading.Event) -> None:
        """Work; return within a second or two of ``stop`` being set."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServiceRecord:
    """One running copy of a service, as it registered itself."""

    service: str
    instance: str
    host: str
    pid: int
    #: Server time in milliseconds when it started, and until when it counts as alive.
    started_ms: int
    alive_until_ms: int
    #: Of a worker: the agents that it serves, and the queue that it reads for each.
    serves: Mapping[str, str] = field(default_factory=dict)
    #: Of a worker: the version of each agent that it serves.
    versions: Mapping[str, str] = field(default_factory=dict)


def serve(
    name: str,
    make: Callable[[redis.Redis, Settings], Service],
    settings: Settings,
    *,
    background: bool = False,
    stop: threading.Event | None = None,
) -> None:
    """Run one copy of a service until SIGTERM or SIGINT; returns after a clean stop.

    ``make`` connects what the service needs and is called again after an outage; its settings name the
    Redis. With ``stop`` given the caller does the stopping and no signal handler is installed. Nobody waits
    for what a ``background`` service does: it gives way to those somebody waits for.

    Raises:
        ConfigurationError, ServerUnavailable: nothing usable answers when the service starts. Under
            `orchestra up`, which has seen the server answer, it waits instead.
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
        name=connection_name(name, own_mark()),
        check=not supervised,
        timeout_s=settings.command_timeout_s,
    )
    life = SignsOfLife(name, client, settings)
    failures = 0
    try:
        while not stop.is_set():
            try:
                if supervised:
                    check_server(client, url)
                service = make(client, settings)
                life.begin()
                notify_ready()
                failures = 0
                if alone:
                    spare_the_collector()
                service.run(stop)
            except (redis.RedisError, OSError, ServerUnavailable) as error:
                if not is_outage(error):
                    raise
                failures = min(failures + 1, _MOST_FAILURES)
                delay = min(_BACKOFF_CAP_S, 0.05 * 2**failures) * random.uniform(0.5, 1)  # noqa: S311
                log.warning("redis-away", error=str(error), retry_in_s=round(delay, 2))
                stop.wait(delay)
    finally:
        life.end()
        client.close()


def spare_the_collector() -> None:
    """Take what this process has loaded, and will keep, out of what Python looks through for garbage.

    It is most of what there is: a router spends a quarter less time on a message.
    """
    gc.collect()
    gc.freeze()


def notify_ready() -> None:
    """Tell the `orchestra up` that started this process, if any, that it is ready; only the first call counts."""
    number = os.environ.pop(READY_VARIABLE, None)
    if number is not None:
        with contextlib.suppress(OSError):
            os.write(int(number), b"ready\n")
            os.close(int(number))


def live_services(client: redis.Redis) -> list[ServiceRecord]:
    """Every copy of a service that gave a sign of life recently, by service and start."""
    now_ms = _server_ms(client)
    records = map(_record, client.hgetall(keys.services()).values())
    return sorted(
        (record for record in records if record is not None and record.alive_until_ms >= now_ms),
        key=lambda record: (record.service, record.started_ms),
    )


def _record(raw: bytes | str) -> ServiceRecord | None:
    """A record; None if it cannot be read: somebody else wrote it."""
    try:
        facts = json.loads(raw)
        own = {name: dict(facts.get(name) or {}) for name in ("serves", "versions")}
        record = ServiceRecord(**{**facts, **own})
        return replace(record, alive_until_ms=int(record.alive_until_ms))
    except (ValueError, TypeError, AttributeError):
        return None


def living_agents(client: redis.Redis) -> frozenset[tuple[str, str]]:
    """Name and queue of every agent that a living worker serves, and of every lane of a version that one has.

    A worker that stops in good order is not among them from that moment, one that is killed after a few heartbeats.
    """
    return frozenset(pair for record in live_services(client) for pair in record.serves.items())


def is_served(record: AgentRecord, living: Collection[tuple[str, str]]) -> bool:
    """Whether somebody takes the runs of an agent. Of an external program that is not known, and taken for granted."""
    return record.external or record.system or (record.name, record.queue) in living


def with_lanes(agents: Iterable[str], living: Collection[tuple[str, str]]) -> list[str]:
    """These agents, each followed by the lanes of its versions that a living worker serves."""
    lanes = sorted(name for name, _ in living if split_lane(name)[1])
    return [one for agent in agents for one in (agent, *(n for n in lanes if split_lane(n)[0] == agent))]


def living_versions(client: redis.Redis) -> dict[str, dict[str, int]]:
    """The versions of every agent that living workers serve, and how many workers have each."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for record in live_services(client):
        for agent, version in record.versions.items():
            found[agent][version] += 1
    return {agent: dict(sorted(versions.items())) for agent, versions in found.items()}


class SignsOfLife:
    """Registers a process of a service in Redis, again and again, from a thread of its own."""

    def __init__(
        self,
        service: str,
        client: redis.Redis,
        settings: Settings,
        *,
        serves: Mapping[str, str] = MappingProxyType({}),
        versions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._service = service
        self._serves = dict(serves)
        self._versions = dict(versions)
        self._instance = uuid.uuid4().hex[:12]
        self._client = client
        self._interval_s = settings.heartbeat_s
        self._started_ms = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Register now, and keep on; may be called again."""
        self._register()
        if self._thread is None:
            self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Take the registration back, if the server is there to hear it."""
        if self._thread is None:
            return
        self._over.set()
        self._thread.join(timeout=1)
        with contextlib.suppress(redis.RedisError, OSError):
            self._client.hdel(keys.services(), self._instance)

    def _beat(self) -> None:
        while not self._over.wait(self._interval_s):
            # An outage is the service's own business; the next beat registers again.
            with contextlib.suppress(redis.RedisError, OSError):
                self._register()

    def _register(self) -> None:
        now_ms = _server_ms(self._client)
        self._started_ms = self._started_ms or now_ms
        record = ServiceRecord(
            service=self._service,
            instance=self._instance,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ms=self._started_ms,
            alive_until_ms=now_ms + round(self._interval_s * MISSED_HEARTBEATS * 1000),
            serves=self._serves,
            versions=self._versions,
        )
        self._client.hset(keys.services(), self._instance, json.dumps(asdict(record)))
        gone = [
            instance
            for instance, raw in self._client.hgetall(keys.services()).items()
            if (known := _record(raw)) is None or known.alive_until_ms < now_ms - 3_600_000
        ]
        if gone:
            self._client.hdel(keys.services(), *gone)


def _server_ms(client: redis.Redis) -> int:
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000


def _stop_on_signals(stop: threading.Event) -> None:
    def handle(number: int, _frame: object) -> None:
        if stop.is_set():
            # Asked a second time: whoever asks does not want to wait for the good order.
            os._exit(128 + number)
        set_soon(stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)

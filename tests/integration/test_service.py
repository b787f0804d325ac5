"""The frame of the services: signs of life, outages, clean stops, and who runs where."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from fakeredis import FakeRedis

from orchestrator.config.settings import Settings, load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.deployment.supervisor import ChildSpec
from orchestrator.doctor import health
from orchestrator.errors import ConfigurationError, ServerUnavailable
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import Service, live_services, notify_ready, serve, still_at_work
from tests.supervised import Supervised
from tests.waiting import wait_until


class Pinging:
    """A service that talks to Redis all the time."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(0.01):
            self._client.incr("pings")


@contextmanager
def serving(
    settings: Settings, make: Callable[[redis.Redis, Settings], Service], name: str = "toy"
) -> Iterator[None]:
    stop = threading.Event()
    failure: list[BaseException] = []

    def run() -> None:
        try:
            serve(name, make, settings, stop=stop)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
    if failure:
        raise failure[0]


def test_a_service_shows_among_the_living_until_it_stops(redis_url: str, redis: redis.Redis) -> None:
    settings = load_settings(redis_url=redis_url, heartbeat_s=0.05)
    with serving(settings, lambda client, _: Pinging(client)):
        wait_until(lambda: live_services(redis))
        (record,) = live_services(redis)
        assert (record.service, record.pid) == ("toy", os.getpid())
        wait_until(lambda: any(one.alive_until_ms > record.alive_until_ms for one in live_services(redis)))
    assert live_services(redis) == []


def test_copies_of_a_service_are_told_apart(redis_url: str, redis: redis.Redis) -> None:
    settings = load_settings(redis_url=redis_url)
    with (
        serving(settings, lambda client, _: Pinging(client)),
        serving(settings, lambda client, _: Pinging(client)),
        serving(settings, lambda client, _: Pinging(client), "another"),
    ):
        wait_until(lambda: len(live_services(redis)) == 3)
        assert [record.service for record in live_services(redis)] == ["another", "toy", "toy"]


def test_one_that_died_without_a_word_is_not_among_the_living(redis_url: str, redis: redis.Redis) -> None:
    """A service that was killed counts as alive for a few heartbeats, and no longer."""
    code = (
        "import os, sys, threading\n"
        "from orchestrator.runtime.service import serve\n"
        "from orchestrator.config.settings import load_settings\n"
        "class Dying:\n"
        "    def run(self, stop): os.kill(os.getpid(), 9)\n"
        "serve('dying', lambda client, settings: Dying(), load_settings(redis_url=sys.argv[1], heartbeat_s=0.2))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, redis_url], check=False, timeout=30)
    assert done.returncode == -signal.SIGKILL
    wait_until(lambda: live_services(redis) == [])


def test_a_restart_of_redis_does_not_end_a_service(start_valkey: Callable[..., ValkeyProcess]) -> None:
    server = start_valkey()
    settings = load_settings(redis_url=server.url, heartbeat_s=0.05)
    made: list[int] = []

    def make(client: redis.Redis, _: Settings) -> Service:
        made.append(1)
        return Pinging(client)

    with serving(settings, make):
        observer = connect(server.url)
        wait_until(lambda: observer.exists("pings"))
        server.kill()
        time.sleep(1.0)  # longer than the connection's own retries
        server.start()
        before = int(observer.get("pings") or 0)
        wait_until(lambda: int(observer.get("pings") or 0) > before)
        wait_until(lambda: live_services(observer))
    assert len(made) >= 2


def test_an_outage_of_hours_ends_no_service(redis_url: str) -> None:
    """The pause between two tries has a bound after any number of them."""

    class Impatient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            assert timeout <= 2
            return self.is_set()

    stop, tries = Impatient(), iter(range(1100))

    class Back:
        def run(self, stop: threading.Event) -> None:
            stop.set()

    def make(_: redis.Redis, __: Settings) -> Service:
        if next(tries, None) is not None:
            raise redis.ConnectionError("away")
        return Back()

    serve("toy", make, load_settings(redis_url=redis_url), stop=stop)


def test_what_is_no_outage_ends_the_service(redis_url: str) -> None:
    class Broken:
        def run(self, stop: threading.Event) -> None:
            raise ZeroDivisionError("a bug")

    class Refused:
        def run(self, stop: threading.Event) -> None:
            raise redis.ResponseError("WRONGTYPE")

    settings = load_settings(redis_url=redis_url)
    for service, error in ((Broken(), ZeroDivisionError), (Refused(), redis.ResponseError)):
        with pytest.raises(error), serving(settings, lambda *_, service=service: service):
            time.sleep(0.2)


def test_a_service_does_not_start_without_a_server(tmp_path: Path) -> None:
    with pytest.raises(ServerUnavailable):
        serve(
            "toy",
            lambda *_: Pinging(FakeRedis()),
            load_settings(redis_url="redis://127.0.0.1:1/0"),
            stop=threading.Event(),
        )
    with pytest.raises(ConfigurationError, match="no stack is running"):
        serve("toy", lambda *_: Pinging(FakeRedis()), load_settings(data=tmp_path), stop=threading.Event())


def test_under_up_a_service_waits_for_a_server_that_is_just_restarting(
    start_valkey: Callable[..., ValkeyProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_valkey()
    server.kill()
    read_end, write_end = os.pipe()
    monkeypatch.setenv("ORCHESTRA_READY_FD", str(write_end))
    os.set_blocking(read_end, False)
    with serving(load_settings(redis_url=server.url), lambda client, _: Pinging(client)):
        time.sleep(0.3)
        with pytest.raises(BlockingIOError):
            os.read(read_end, 64)
        server.start()
        wait_until(lambda: live_services(connect(server.url)))
    assert os.read(read_end, 64) == b"ready\n"
    os.close(read_end)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_service_cleanly(number: signal.Signals, redis_url: str, redis: redis.Redis) -> None:
    code = (
        "import sys\n"
        "from orchestrator.runtime.service import serve\n"
        "from orchestrator.config.settings import load_settings\n"
        "class Idle:\n"
        "    def run(self, stop): stop.wait()\n"
        "serve('idle', lambda client, settings: Idle(), load_settings(redis_url=sys.argv[1]))\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, redis_url]) as process:
        wait_until(lambda: live_services(redis))
        process.send_signal(number)
        assert process.wait(60) == 0
    assert live_services(redis) == []


def test_the_audit_writer_gives_way_to_what_somebody_waits_for(
    redis_url: str, redis: redis.Redis, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "orchestrator", "service", "audit"]
    options = ["--redis-url", redis_url, "--data", str(tmp_path)]
    with subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: live_services(redis))
        ours = os.getpriority(os.PRIO_PROCESS, os.getpid())
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == min(19, ours + 10)
        process.terminate()


def test_readiness_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    monkeypatch.setenv("ORCHESTRA_READY_FD", str(write_end))
    notify_ready()
    notify_ready()
    assert os.read(read_end, 64) == b"ready\n"
    assert os.read(read_end, 64) == b""
    os.close(read_end)


HANGING = """
import re, sys, time
from orchestrator.config.settings import load_settings
from orchestrator.runtime import service

def sleeping():
    time.sleep(600)

def computing():  # it holds the lock of the interpreter, and no other thread works
    re.match("(a+)+$", "a" * 64 + "b")

class Hanging:
    def run(self, stop):
        for _ in range(5):
            stop.wait(0.1)
        {how}()

service.hangs_after_s = lambda _: 4
service.serve("toy", lambda *_: Hanging(), load_settings(redis_url={url!r}, heartbeat_s=0.1, lease_s=1))
"""


@pytest.mark.parametrize("how", ["sleeping", "computing"])
def test_a_service_that_hangs_is_named_and_started_again(
    redis_url: str, redis: redis.Redis, tmp_path: Path, how: str
) -> None:
    """Its sign of life comes from its loop, and its log says where it stood."""
    command = (sys.executable, "-c", HANGING.format(how=how, url=redis_url))
    supervisor = Supervised(ChildSpec(name="toy", command=command), logs=tmp_path)
    named: list[str] = []

    def restarted() -> bool:
        named.extend(f.message for f in health.services(redis) if f.rule == "service-hung")
        if named:
            assert [record for record in live_services(redis) if record.service == "toy"] == []
        return "restarting" in supervisor.told("toy")

    try:
        supervisor.until_ready()
        pid = supervisor.pids["toy"]
        supervisor.until(restarted)
        assert f"toy on {socket.gethostname()}, process {pid}" in named[0]
        (ended,) = [notice.detail for notice in supervisor.notices if notice.kind == "restarting"]
        assert "it hung: File" in ended
        assert f" in {how}" in supervisor.logs["toy"].read_text()
        supervisor.until_ready()
        assert supervisor.pids["toy"] != pid
    finally:
        supervisor.stop_at_once()


def test_a_service_that_was_stopped_by_a_signal_is_named(redis_url: str, redis: redis.Redis) -> None:
    code = HANGING.replace("{how}()", "stop.wait()").format(how="", url=redis_url)
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        wait_until(lambda: live_services(redis))
        process.send_signal(signal.SIGSTOP)
        wait_until(lambda: any(f.rule == "service-hung" for f in health.services(redis)))
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not any(f.rule == "service-hung" for f in health.services(redis)))


def test_a_long_round_gives_signs_of_life(redis_url: str, redis: redis.Redis) -> None:
    class Sweeping:
        def run(self, stop: threading.Event) -> None:
            until = time.monotonic() + 2
            while time.monotonic() < until:
                still_at_work()
            while not stop.wait(0.05):
                pass

    settings = load_settings(redis_url=redis_url, heartbeat_s=0.1)
    with serving(settings, lambda *_: Sweeping()):
        wait_until(lambda: live_services(redis))
        until = time.monotonic() + 2
        while time.monotonic() < until:
            assert not any(f.rule == "service-hung" for f in health.services(redis))
            time.sleep(0.05)

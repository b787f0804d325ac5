"""Over HTTP: a scrape, probes, a server that goes away, a command that ends when it is asked to."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator import agent
from orchestrator.bootstrap import Container
from orchestrator.config.settings import Settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import SignsOfLife
from orchestrator.telemetry import Exporter, MetricsServer
from tests.kit import Kit
from tests.telemetry.conftest import Watched, samples_of
from tests.waiting import wait_until


class Served(MetricsServer):
    """A server of metrics, on a free port, and whoever asks it."""

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
        return ask(self.server_port, path, method, **headers)


@contextmanager
def served(exporter: Exporter) -> Iterator[Served]:
    server = Served(exporter, host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Return status, content type and body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.headers["Content-Type"] or "", answer.read().decode()


@pytest.fixture
def exporter(kit: Kit) -> Exporter:
    return Exporter(kit.parts, keep_s=0)


def test_a_scrape_in_both_formats(exporter: Exporter) -> None:
    with served(exporter) as server:
        status, kind, body = server.ask("/metrics")
        assert (status, kind.partition(";")[0]) == (200, "text/plain")
        assert samples_of(body)["orchestra_promise_gap"] == {(): 0.0}
        accepts = "application/openmetrics-text; version=1.0.0"
        status, kind, body = server.ask("/metrics?name=x", Accept=accepts)
        assert (status, kind.partition(";")[0]) == (200, "application/openmetrics-text")
        assert body.endswith("# EOF\n")
        assert server.ask("/metrics", "HEAD")[0::2] == (200, "")
        assert server.ask("/")[0] == 404
        assert server.ask("/readyz/nobody")[0] == 404
        assert server.ask("/metrics", "POST")[0] == 501


def test_probes_say_who_lives(kit: Kit, exporter: Exporter) -> None:
    """Nobody at first; then each service by its own signs of life; and one that ends is gone."""
    redis, settings = kit.redis, kit.settings
    lives = [SignsOfLife(name, redis, settings) for name in ("router", "callbacks", "reaper", "audit")]
    worker = SignsOfLife("worker", redis, settings, serves={"a": "orchestra"}, slots=3)
    with served(exporter) as server:
        assert server.ask("/healthz")[0] == 200
        assert server.ask("/readyz")[0] == 503
        for life in lives:
            life.begin()
        status, _, body = server.ask("/readyz")
        assert (status, json.loads(body)["services"]["worker"]) == (503, 0)
        worker.begin()
        status, _, body = server.ask("/readyz")
        assert (status, json.loads(body)) == (
            200,
            {
                "ready": True,
                "services": {"audit": 1, "callbacks": 1, "reaper": 1, "router": 1, "worker": 1},
                "hung": [],
            },
        )
        samples = samples_of(server.ask("/metrics")[2])
        assert samples["orchestra_slots"] == {(("agent", "a"),): 3.0}
        assert samples["orchestra_workers_up"] == {(): 1.0}
        assert server.ask("/readyz/router")[0] == 200
        lives[0].end()
        assert server.ask("/readyz/router")[0] == 503
        assert server.ask("/readyz/worker")[0] == 200
    for life in (*lives, worker):
        life.end()


def test_without_redis_there_are_no_values_rather_than_old_ones(
    start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> None:
    """The exporter lives, says why it has nothing, and goes on when the server is back."""
    valkey = start_valkey()
    with connect(valkey.url, check=False) as client:
        exporter = Exporter(Container(client, Settings(data=tmp_path, redis_url=valkey.url)), keep_s=0)
        with served(exporter) as server:
            assert server.ask("/metrics")[0] == 200
            valkey.kill()
            status, _, body = server.ask("/metrics")
            assert status == 503
            assert "orchestra_" not in body
            assert server.ask("/readyz")[0] == 503
            assert server.ask("/healthz")[0] == 200
            valkey.start()
            wait_until(lambda: server.ask("/metrics")[0] == 200, "a scrape")


def test_the_role_console_suffices(kit: Kit) -> None:
    """The Redis user of the exporter changes nothing."""
    exporter = Exporter(Container(kit.as_role("console"), kit.settings), keep_s=0)
    with served(exporter) as server:
        assert server.ask("/metrics")[0] == 200
        assert server.ask("/readyz")[0] == 503


def test_a_client_that_says_nothing_holds_up_nobody(exporter: Exporter) -> None:
    with served(exporter) as server:
        silent = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(20)]
        assert server.ask("/metrics")[0] == 200
        for one in silent:
            one.close()


def test_the_command_serves_until_it_is_asked_to_end(redis_url: str, tmp_path: Path) -> None:
    environment = {**os.environ, "ORCHESTRA_REDIS_URL": redis_url, "ORCHESTRA_DATA": str(tmp_path)}
    command = [sys.executable, "-m", "orchestrator", "metrics", "--port", "0"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            found = re.fullmatch(r"serving http://127\.0\.0\.1:(\d+)/metrics\n", said)
            assert found, said
            assert ask(int(found[1]), "/metrics")[0] == 200
            taken = subprocess.run(
                [*command[:-1], found[1]],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert taken.returncode == 2, taken
            assert f"nothing can listen on 127.0.0.1:{found[1]}" in taken.stderr
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


@agent("leaf")
def leaf(ctx) -> str:  # type: ignore[no-untyped-def]
    return "done"


def test_scrapes_of_a_stack_at_work_never_go_back(watch: Callable[..., Watched]) -> None:
    """Two exporters, one of which is new each time, while runs come and go."""
    stack = watch(leaf)
    other = Exporter(stack.parts, keep_s=0)
    sessions = [stack.client.submit("leaf", f"go {n}").id for n in range(30)]
    last: dict[object, float] = {}
    for _ in range(10):
        for exporter in (other, Exporter(stack.parts, keep_s=0)):
            stack.exporter = exporter
            for name, rows in stack.samples().items():
                if name.endswith(("_total", "_count", "_bucket")):
                    for key, value in rows.items():
                        assert value >= last.get((name, key), 0), (name, key)
                        last[name, key] = value
    for session in sessions:
        stack.client.result(session, timeout_s=60)
    stack.until(30, "orchestra_runs_total", agent="leaf", end="completed")

"""Whoever waits outlasts an outage of Redis, says that it does, and gets the answer; nothing is submitted twice."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py

from orchestrator import AsyncClient, Client
from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.errors import ServerUnavailable
from orchestrator.redisdb.client import connect
from tests.commands import place
from tests.integration.client.conftest import echo
from tests.kit import Kit
from tests.waiting import wait_until


@pytest.fixture
def server(start_valkey: Callable[..., ValkeyProcess]) -> ValkeyProcess:
    """A server whose data outlives it."""
    return start_valkey()


@pytest.fixture
def kit(server: ValkeyProcess, tmp_path: Path) -> Iterator[Kit]:
    """A stage on it, with an agent that gives its prompt back."""
    with connect(server.url) as client:
        kit = Kit.on(
            client, load_settings(redis_url=server.url, data=tmp_path / "data", lease_s=1, heartbeat_s=0.05)
        )
        kit.agent("solo")(echo)
        yield kit


class Commands:
    """Commands as a user types them, each in a process of its own."""

    def __init__(self, kit: Kit, folder: Path) -> None:
        self._env = {**os.environ, **place(kit.settings)}
        self._folder = folder
        self.started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, *arguments: str) -> None:
        log = self._folder / f"stderr-{len(self.started)}"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "orchestrator", *arguments],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self.started.append((process, log))

    def all_wait(self) -> bool:
        return all("waiting for Redis at unix://" in log.read_text() for _, log in self.started)

    def outputs(self) -> list[tuple[int, str]]:
        found = [(process.communicate(timeout=60)[0].decode(), process) for process, _ in self.started]
        return [(process.returncode, output) for output, process in found]


@pytest.fixture
def commands(kit: Kit, tmp_path: Path) -> Iterator[Commands]:
    """Commands on the kit's stack; what still runs is ended."""
    commands = Commands(kit, tmp_path)
    yield commands
    for process, _ in commands.started:
        process.kill()
        process.communicate()


def test_all_that_waits_gets_the_answer_after_an_outage(
    server: ValkeyProcess, kit: Kit, commands: Commands
) -> None:
    """`submit --wait`, `result`, `watch`, `Client.result`, `stream` and `AsyncClient.result`, with the server gone for a second."""
    said: list[str] = []
    answers: list[str] = []
    client = Client(kit.settings, on_outage=said.append)
    session = client.submit("solo", "hello", key="k").id

    async def wait() -> str:
        async with AsyncClient(kit.settings, on_outage=said.append) as own:
            return await own.result(session, timeout_s=60)

    waiting = [
        threading.Thread(target=lambda: answers.append(client.result(session, timeout_s=60))),
        threading.Thread(target=lambda: answers.append(asyncio.run(wait()))),
    ]
    waiting.append(threading.Thread(target=lambda: answers.append(str(list(client.stream(session))))))
    for thread in waiting:
        thread.start()
    commands.start("submit", "solo", "hello", "--key", "k", "--wait")
    commands.start("result", session, "--wait")
    commands.start("watch", session)
    # Each reads the events of the session, which shows that it waits.
    wait_until(lambda: len([c for c in kit.redis.client_list() if c["cmd"] == "xread"]) >= 6, "six that wait")
    server.stop()
    wait_until(lambda: commands.all_wait() and len(said) == 3, "that they say what they wait for")
    time.sleep(1)
    server.start()
    kit.play(session)
    for thread in waiting:
        thread.join(60)
    assert sorted(answers) == ["[]", "hello", "hello"]
    submitted, result, watched = commands.outputs()
    assert submitted == result == (0, "hello\n")
    assert watched[0] == 0
    assert watched[1].endswith("0 launched = 0 delivered + 0 pending + 0 dead\n")
    assert all(sentence.startswith("waiting for Redis at unix://") for sentence in said)
    assert [found.id for found in client.sessions()] == [session]
    client.close()


def test_what_was_submitted_when_the_connection_broke_is_submitted_once(
    server: ValkeyProcess, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request arrived and its answer did not: it is made again under the same key, also without one of the user's."""
    said: list[str] = []
    with Client(kit.settings, on_outage=said.append) as client:
        ledger = client._ledger
        real = ledger.submit

        def lose_the_answer(*arguments: Any, **options: Any) -> Any:
            monkeypatch.setattr(ledger, "submit", real)
            real(*arguments, **options)
            raise redis_py.ConnectionError("Connection closed by server.")

        monkeypatch.setattr(ledger, "submit", lose_the_answer)
        handle = client.submit("solo", "once", retry_for_s=30)
        assert handle.new
        assert [found.id for found in client.sessions()] == [handle.id]
        assert len(said) == 1
        monkeypatch.setattr(ledger, "submit", lose_the_answer)
        with pytest.raises(ServerUnavailable):
            client.submit("solo", "twice")


def test_an_outage_without_an_end_is_an_error(
    server: ValkeyProcess, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After as long as a worker waits; and a time limit of one's own ends the wait before."""
    with Client(kit.settings, on_outage=lambda _: None) as client:
        session = client.submit("solo", "never").id
        server.stop()
        with pytest.raises(TimeoutError):
            client.result(session, timeout_s=0.3)
        within = Client._outage
        monkeypatch.setattr(Client, "_outage", lambda self: within(self, 0.3))
        with pytest.raises(ServerUnavailable, match="cannot reach Redis at unix://"):
            client.result(session)

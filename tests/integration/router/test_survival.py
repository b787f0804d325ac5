"""Routers as processes of their own: killed, and with a server that is killed, under load."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.audit import AuditReader, AuditStore, AuditWriter
from orchestrator.bootstrap import build_container
from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.envelope.bodies import Message, Task, TaskDelegation
from orchestrator.ids import new_message_id
from orchestrator.redisdb.client import connect, is_outage
from orchestrator.streams import StreamId, all_streams, stream_key
from tests.integration.router.conftest import Stack, until

MESSAGES = stream_key(StreamId(0, "message", "normal"))
LEASE_S = 1.0


@contextmanager
def routers(stack: Stack, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Routers in processes of their own; those that still run are ended afterwards."""
    environment = {
        **os.environ,
        "ORCHESTRA_REDIS_URL": str(stack.settings.redis_url),
        "ORCHESTRA_DATA": str(stack.settings.data),
        "ORCHESTRA_LEASE_S": str(LEASE_S),
        "ORCHESTRA_HEARTBEAT_S": "0.3",
    }
    command = [sys.executable, "-m", "orchestrator", "service", "router"]
    started = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield started
    finally:
        for process in started:
            process.send_signal(signal.SIGKILL)
            process.wait(60)


class Talk:
    """An external program that says things to the session that it began, each of which must arrive once."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        task = Task(task_id="T-1", title="Talk", description="listen")
        order = stack.envelope(
            TaskDelegation(task=task), sender="partner", recipient="lead", correlation=new_message_id()
        )
        stack.publish(order, "task-delegation")
        stack.router("first").run_once()
        (self.session,) = (root.id for root in stack.parts.ledger.roots(0))
        self.held = stack.claim(self.session)

    def envelopes(self, count: int, prefix: str = "") -> list[bytes]:
        """Messages to the session, signed."""
        return [
            self.stack.envelope(
                Message(content=f"{prefix}{number}"),
                sender="partner",
                recipient="lead",
                correlation=self.held.session.correlation,
                chain=self.held.session.chain,
            )
            for number in range(count)
        ]

    def heard(self) -> Counter[str]:
        """What arrived, and how often."""
        ledger = self.stack.parts.ledger
        items = ledger.items(self.session)
        return Counter(ledger.texts(self.session, [i.id for i in items]).values())


def test_a_killed_router_loses_and_doubles_nothing(stack: Stack) -> None:
    """One of two routers is killed under load; what it held is taken over by the other."""
    talk = Talk(stack)
    data = talk.envelopes(400)
    with routers(stack, 2) as (first, _):
        until(lambda: len(stack.redis.xinfo_consumers(MESSAGES, "router")) >= 3)
        pipeline = stack.redis.pipeline(transaction=False)
        for envelope in data:
            pipeline.xadd(MESSAGES, {"envelope": envelope})
        pipeline.execute()
        until(lambda: len(talk.heard()) > 20)
        first.kill()
        until(lambda: sum(talk.heard().values()) >= 400 and stack.pending() == 0)
    assert talk.heard() == Counter(str(number) for number in range(400))
    assert stack.dead() == []


def test_a_thousand_messages_from_fifty_connections_are_all_routed(stack: Stack) -> None:
    """Published at once, each is handled once, and audited once."""
    talk = Talk(stack)
    data = talk.envelopes(1000)
    ready = threading.Barrier(50)

    def publish(part: list[bytes]) -> None:
        client = connect(str(stack.settings.redis_url), check=False)
        ready.wait()
        for envelope in part:
            client.xadd(MESSAGES, {"envelope": envelope})
        client.close()

    threads = [threading.Thread(target=publish, args=(data[n::50],)) for n in range(50)]
    with routers(stack, 1):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: sum(talk.heard().values()) >= 1000)
    assert talk.heard() == Counter(str(number) for number in range(1000))
    store = AuditStore(stack.settings.audit_database)
    writer = AuditWriter(stack.redis, store, consumer="a", sources=all_streams())
    while writer.run_once():
        pass
    coverage = AuditReader(store).coverage(stack.streams, all_streams())
    assert {str(c.stream): (c.published, c.missing) for c in coverage}["00/message/normal"] == (1000, 0)


def test_a_killed_server_takes_nothing_back(
    start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> None:
    """The server is killed and started again under load; what it took is handled once, by the same router."""
    server = start_valkey()
    client = connect(server.url)
    settings = load_settings(redis_url=server.url, data=tmp_path / "data")
    stack = Stack(client, settings, build_container(client, settings))
    talk = Talk(stack)
    before, after = talk.envelopes(150, "a"), talk.envelopes(150, "b")
    with routers(stack, 1) as (router,):
        for envelope in before:
            client.xadd(MESSAGES, {"envelope": envelope})
        until(lambda: len(talk.heard()) > 5)
        server.kill()
        server.start()
        for envelope in after:
            _append(client, envelope)
        until(lambda: len(talk.heard()) >= 300 and stack.pending() == 0)
        assert router.poll() is None
    assert talk.heard() == Counter([f"a{n}" for n in range(150)] + [f"b{n}" for n in range(150)])
    assert stack.dead() == []


def _append(client: redis_py.Redis, envelope: bytes) -> None:
    """Append until the server takes it; it may take it twice, which is for the router to tell."""
    deadline = time.monotonic() + 80
    while True:
        try:
            client.xadd(MESSAGES, {"envelope": envelope})
        except redis_py.RedisError as error:
            if not is_outage(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


@pytest.mark.parametrize("types", ["status-update", "message,query"])
def test_a_router_consumes_only_its_types(stack: Stack, types: str) -> None:
    """Messages of other types stay for routers that want them."""
    wanted = types.split(",")
    router = stack.router(types=wanted)
    stack.publish(stack.envelope(Message(content="x")), "message")
    handled = router.run_once()
    assert handled.done == (1 if "message" in wanted else 0)
    assert stack.router("all").run_once().done == 1 - handled.done

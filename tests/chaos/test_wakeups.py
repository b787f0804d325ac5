"""A Celery message only wakes: any broker will do, and it may lose, double or forget every one of them.

With RabbitMQ as with Redis, on the pools that are documented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.dispatch import START_TASK, WORK_TASK, Dispatcher
from orchestrator.ledger import Run
from orchestrator.redisdb.client import connect
from tests.door import FaultProxy, Verdict, door_to, door_to_port
from tests.rabbitmq import RabbitServer, server_program, url_of

from .stack import SERVICES, MakeStack, Stack, again_and_again, long

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]


#: Seconds in which the sweep wakes again: after one second, at the next sweep; and what a loaded machine adds.
WOKEN_AGAIN_S = 1.0 + 0.3 + 8.0


@pytest.fixture(scope="module")
def rabbit(tmp_path_factory: pytest.TempPathFactory, program: Callable[[str], str]) -> Iterator[RabbitServer]:
    server = server_program() or program("rabbitmq-server")
    node = RabbitServer(tmp_path_factory.mktemp("rabbit") / "node", program=server, epmd=program("epmd"))
    try:
        node.start()
        yield node
    finally:
        node.close()


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(
    request: pytest.FixtureRequest, start_valkey: Callable[..., ValkeyProcess]
) -> Iterator[tuple[FaultProxy, str, str]]:
    """A broker apart: a door to it, the URL through the door, and its own."""
    if request.param == "redis":
        server = start_valkey(durable=False)
        with door_to(server) as (door, url):
            yield door, url, server.url
    else:
        node: RabbitServer = request.getfixturevalue("rabbit")
        with door_to_port(node.port) as (door, port):
            yield door, url_of(port), node.url


def lose_wakeups(_number: int, request: bytes) -> Verdict:
    """What wakes is gone, and acknowledged where that is waited for. A worker notes in Redis what it has taken."""
    if WORK_TASK.encode() not in request:
        return "pass"
    if request.startswith(b"*"):
        return b":1\r\n" if b"LPUSH" in request else "pass"
    return "swallow"


def runs_of(stack: Stack) -> list[Run]:
    return [run for root in stack.roots() for s in stack.ledger.tree(root) for run in stack.ledger.runs(s.id)]


def assert_once(stack: Stack) -> None:
    """Every run was claimed once, and nothing is left undone."""
    stack.assert_settled()
    assert {run.attempt for run in runs_of(stack)} == {1}


@pytest.mark.parametrize("pool", ["threads", long("prefork")])
def test_every_wake_is_lost(pool: str, broker: tuple[FaultProxy, str, str], make_stack: MakeStack) -> None:
    """All but those of the sweep: no run waits for longer than for that."""
    door, through_door, own = broker
    stack = make_stack(broker_url=through_door)
    for name in SERVICES:
        stack.start(name, **({"ORCHESTRA_BROKER_URL": own} if name == "reaper" else {}))
    stack.start("worker", "--pool", pool)
    stack.wait_ready()
    door.keep(lose_wakeups)
    with stack.client() as client:
        assert stack.answer(client.submit("branch", "3,2")) == "6"
    assert_once(stack)
    waits = [run.started_ms - run.created_ms for run in runs_of(stack)]
    assert max(waits) < WOKEN_AGAIN_S * 1000
    assert max(waits) > 300  # or nothing was lost at all


@pytest.mark.parametrize("pool", ["prefork", long("threads")])
def test_every_wake_comes_many_times(
    pool: str, broker: tuple[FaultProxy, str, str], make_stack: MakeStack
) -> None:
    _, _, own = broker
    stack = make_stack(broker_url=own)
    wake = partial(Dispatcher(stack.app).wake, [("branch", "chaos"), ("leaf", "chaos")])
    stack.start_services()
    stack.start("worker", "--pool", pool)
    stack.start("worker", "--pool", pool)
    stack.wait_ready()
    with stack.client() as client, again_and_again(wake, 0.01) as sent:
        session = client.submit("branch", "3,3,2")
        assert stack.answer(session) == "18"
        stack.wait(lambda: sent[0] > 100, "wakeups")
    assert_once(stack)


@pytest.mark.parametrize("pool", ["prefork", long("threads"), long("solo")])
def test_rabbitmq_as_the_broker(pool: str, rabbit: RabbitServer, make_stack: MakeStack) -> None:
    """A submission by a plain Celery message and one by the client; the results are in the ledger's Redis.

    Before them comes a message of lists in lists, at which pickle gives up in the process that consumes.
    """
    stack = make_stack(broker_url=rabbit.url)
    stack.start_all("--pool", pool)
    deep: list[object] = []
    for _ in range(900):
        deep = [deep]
    stack.app.send_task(
        START_TASK, kwargs={"agent": "leaf", "task": deep}, argsrepr="", kwargsrepr="", queue="chaos"
    )
    task = stack.send("branch", "2,2")
    with stack.client() as client:
        assert stack.answer(client.submit("branch", "2")) == "2"
    assert task.get(timeout=120) == "4"
    assert_once(stack)


def test_rabbitmq_is_away_for_a_while(rabbit: RabbitServer, make_stack: MakeStack) -> None:
    """It is killed while a tree runs, and comes back: every run is executed, once."""
    stack = make_stack(broker_url=rabbit.url)
    stack.env["CHAOS_LEAF_S"] = "0.3"
    stack.start_all()
    with stack.client() as client:
        session = client.submit("branch", "3,2")
        stack.wait(lambda: stack.leases, "work")
        rabbit.kill()
        rabbit.start()
        assert stack.answer(session) == "6"
    assert_once(stack)


@pytest.mark.parametrize("pool", ["prefork", long("threads")])
def test_a_broker_whose_keys_are_deleted_loses_no_run(
    pool: str, start_valkey: Callable[..., ValkeyProcess], make_stack: MakeStack
) -> None:
    """Again and again, while the tree runs: queues, bindings and what was not acknowledged."""
    broker = start_valkey(durable=False)
    stack = make_stack(broker_url=broker.url)
    stack.env["CHAOS_LEAF_S"] = "0.05"
    stack.start_all("--pool", pool)
    with stack.client() as client, connect(broker.url) as keys_of_broker:
        session = client.submit("branch", "3,2,2")
        with again_and_again(keys_of_broker.flushall, 0.1):
            assert stack.answer(session) == "12"
    assert_once(stack)

"""A consumer that has gone silent, without an error and without a message: it is woken, or its worker ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.deployment.forks import ForkServer
from orchestrator.worker.execution.slot import LINGER_S
from tests.door import FaultProxy, door_to
from tests.forks import start_forks

from .stack import MakeStack, long

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(480)]


#: Seconds of silence that the workers bear.
SILENCE_S = 4


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    forks = start_forks("tests.chaos.impatient", CHAOS_SILENCE_S=str(SILENCE_S))
    yield forks
    forks.close()


@pytest.fixture
def broker(start_valkey: Callable[..., ValkeyProcess]) -> Iterator[tuple[FaultProxy, str]]:
    with door_to(start_valkey(durable=False)) as door:
        yield door


@pytest.mark.parametrize("pool", ["prefork", long("threads"), long("solo")])
def test_a_worker_that_kombu_made_deaf_ends(
    pool: str, broker: tuple[FaultProxy, str], make_stack: MakeStack
) -> None:
    """As many acknowledgements as it has slots met a broken connection, and kombu takes all of that for work.

    Its supervisor starts a new one, which does what was ready.
    """
    door, url = broker
    stack = make_stack(broker_url=url)
    worker = stack.start_all("--pool", pool)
    slots = 1 if pool == "solo" else stack.settings.concurrency
    door.keep(lambda _, request: "hang up" if b"HDEL" in request else "pass")
    tasks = [stack.send("branch", "2,2") for _ in range(slots)]
    stack.wait(lambda: worker.log.read_text().count("Couldn't ack") >= slots, "deafness")
    door.open()
    stack.wait(
        lambda: not worker.alive or all(task.state == "SUCCESS" for task in tasks), "its end, or its work"
    )
    stack.replace_the_dead()
    assert [task.get(timeout=120) for task in tasks] == ["4"] * slots
    stack.assert_settled()


def test_a_worker_whose_consumer_stays_silent_ends(
    broker: tuple[FaultProxy, str], make_stack: MakeStack
) -> None:
    """It asks for messages, over one connection and another, and is never answered; its supervisor starts a new one."""
    door, url = broker
    stack = make_stack(broker_url=url)
    worker = stack.start_all()
    door.keep(lambda _, request: "swallow" if b"BRPOP" in request else "pass")
    with stack.client() as client:
        # It had asked already: one message is heard, and may be enough for a whole tree.
        assert stack.answer(client.submit("leaf", "1")) == "1"
        time.sleep(10 * sum(LINGER_S))  # nor does the slot look for more any longer
        session = client.submit("branch", "2,2")
        stack.wait(lambda: not worker.alive, "its end", timeout_s=60)
        door.open()
        stack.replace_the_dead()
        assert stack.answer(session) == "4"
    stack.assert_settled()


def test_busy_consumers_are_left_alone(make_stack: MakeStack) -> None:
    """A message waits for longer than silence is borne, because every slot is taken."""
    stack = make_stack()
    stack.start_services()
    workers = [stack.start("worker", "--pool", pool) for pool in ("prefork", "threads", "solo")]
    stack.wait_ready()
    slots = 2 * stack.settings.concurrency + 1
    with stack.client() as client:
        at_work = [client.submit("sleeper", "work") for _ in range(slots)]
        stack.wait(lambda: len(stack.leases) == slots, "work for all")
        waiting = client.submit("leaf", "1")
        time.sleep(SILENCE_S * 1.5)  # nothing is to happen
        assert [w.name for w in workers if "consumer-silent" in w.log.read_text()] == []
        for session in at_work:
            client.stop(session.id)
        assert stack.answer(waiting) == "1"
    stack.assert_settled()

"""What a worker has taken from the broker: where it is written down, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_py
from celery import Celery
from kombu import Queue
from kombu.asynchronous import Hub, set_event_loop

from orchestrator.dispatch import Dispatcher, build_celery
from orchestrator.dispatch.unacked import DELAY_S
from orchestrator.ledger import Dispatch
from orchestrator.settings import load_settings

RUN = Dispatch(run="run_00aa", session="ses_00bb", agent="lead", cause="start")


@pytest.fixture
def app(redis_url: str) -> Celery:
    return build_celery(load_settings(redis_url=redis_url))


@pytest.fixture
def hub() -> Iterator[Hub]:
    """An event loop such as a worker with a pool of processes has."""
    made = Hub()
    set_event_loop(made)
    yield made
    set_event_loop(None)
    made.close()


class Taker:
    """Takes messages as a worker does."""

    def __init__(self, app: Celery) -> None:
        self.connection = app.connection_for_read()
        self.messages: list[Any] = []
        self.consumer = self.connection.Consumer(
            [Queue("orchestra")], on_message=self.messages.append, accept=["json"]
        )
        self.consumer.consume()

    def take(self) -> Any:
        self.connection.drain_events(timeout=5)
        return self.messages[-1]


def held(redis: redis_py.Redis) -> int:
    """How many messages the broker knows to be taken."""
    assert redis.hlen("unacked") == redis.zcard("unacked_index")
    return redis.hlen("unacked")


def let_pass(hub: Hub, seconds: float) -> None:
    """Let the loop do what it was to do within this time."""
    until = time.monotonic() + seconds * 1.5
    while time.monotonic() < until:
        hub.fire_timers()
        time.sleep(0.005)


def test_the_message_of_a_short_run_is_never_written_down(
    app: Celery, hub: Hub, redis: redis_py.Redis
) -> None:
    """Dealt with before its time, it costs the broker nothing."""
    Dispatcher(app).send(RUN, "orchestra")
    taker = Taker(app)
    message = taker.take()
    assert held(redis) == 0
    message.ack()
    let_pass(hub, DELAY_S)
    assert held(redis) == 0
    taker.connection.close()
    assert redis.llen("orchestra") == 0


def test_the_message_of_a_long_run_is_written_down_and_struck_out_at_its_end(
    app: Celery, hub: Hub, redis: redis_py.Redis
) -> None:
    Dispatcher(app).send_all([(RUN, "orchestra")])
    taker = Taker(app)
    message = taker.take()
    let_pass(hub, DELAY_S)
    assert held(redis) == 1
    message.ack()
    assert held(redis) == 0
    taker.connection.close()
    assert redis.llen("orchestra") == 0


@pytest.mark.parametrize("how", ["closed", "requeued"])
def test_the_message_of_a_run_that_was_not_begun_goes_back(
    how: str, app: Celery, hub: Hub, redis: redis_py.Redis
) -> None:
    """A worker that ends, or cannot reach the ledger, puts it back for others, written down or not."""
    Dispatcher(app).send(RUN, "orchestra")
    taker = Taker(app)
    message = taker.take()
    if how == "requeued":
        message.reject(requeue=True)
    taker.connection.close()
    assert held(redis) == 0
    assert redis.llen("orchestra") == 1
    let_pass(hub, DELAY_S)
    assert held(redis) == 0


@pytest.mark.parametrize("what", ["a submission", "without a loop"])
def test_every_other_message_is_written_down_before_it_is_handed_on(
    what: str, app: Celery, redis: redis_py.Redis, request: pytest.FixtureRequest
) -> None:
    """Nobody else knows of a root that is yet to be submitted; and without a loop nobody would come back to it."""
    if what == "a submission":
        request.getfixturevalue("hub")
        app.send_task("orchestrator.start_session", kwargs={"agent": "lead"}, queue="orchestra")
    else:
        Dispatcher(app).send(RUN, "orchestra")
    taker = Taker(app)
    message = taker.take()
    assert held(redis) == 1
    message.ack()
    assert held(redis) == 0
    taker.connection.close()

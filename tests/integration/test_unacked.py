"""What a worker has taken from the broker: where it is written down, and when."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
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
    hub.fire_timers()  # however long the last sleep was


class Meanwhile:
    """Does something in another thread while messages are written down, if it can be done meanwhile."""

    def __init__(self, qos: Any, act: Callable[[], object]) -> None:
        self._open = qos.pipe_or_acquire
        self._thread = threading.Thread(target=act)
        qos.pipe_or_acquire = self._acquire

    @contextlib.contextmanager
    def _acquire(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with self._open(*args, **kwargs) as pipe:
            execute = pipe.execute

            def execute_beside() -> Any:
                if self._thread.ident is None:
                    self._thread.start()
                    self._thread.join(0.2)  # it is to have its chance, and to find the door shut
                return execute()

            pipe.execute = execute_beside
            yield pipe

    def join(self) -> None:
        """Wait until it is done."""
        self._thread.join(30)
        assert not self._thread.is_alive()


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


def test_each_message_has_its_own_time(app: Celery, hub: Hub, redis: redis_py.Redis) -> None:
    """A run that has just begun is not written down because another one takes long, and is in its turn."""
    other = Dispatch(run="run_00cc", session="ses_00bb", agent="lead", cause="start")
    Dispatcher(app).send_all([(RUN, "orchestra"), (other, "other")])
    taker = Taker(app)
    taker.take()
    time.sleep(DELAY_S * 0.9)
    taker.consumer.add_queue(Queue("other"))
    taker.consumer.consume()
    begun_at = time.monotonic()
    taker.take()
    while held(redis) == 0:
        hub.fire_timers()
    assert held(redis) == 1
    while held(redis) == 1:
        hub.fire_timers()
    assert time.monotonic() - begun_at >= DELAY_S
    taker.connection.close()


def test_a_message_is_written_down_when_the_broker_is_back(
    app: Celery, hub: Hub, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Dispatcher(app).send(RUN, "orchestra")
    taker = Taker(app)
    qos = taker.take().channel.qos

    def away(*_: Any, **__: Any) -> Any:
        raise redis_py.ConnectionError("away")

    with monkeypatch.context() as broken:
        broken.setattr(qos, "pipe_or_acquire", away)
        let_pass(hub, DELAY_S)
    assert held(redis) == 0
    let_pass(hub, 2 * DELAY_S)
    assert held(redis) == 1
    taker.connection.close()


@pytest.mark.parametrize("how", ["closed", "cut", "requeued"])
def test_the_message_of_a_run_that_was_not_begun_goes_back(
    how: str, app: Celery, hub: Hub, redis: redis_py.Redis
) -> None:
    """A worker that ends, or cannot reach the ledger, puts it back for others, written down or not."""
    Dispatcher(app).send(RUN, "orchestra")
    taker = Taker(app)
    message = taker.take()
    if how == "requeued":
        message.reject(requeue=True)
    if how == "cut":
        redis.client_kill_filter(_type="normal", skipme=True)
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


def test_what_a_thread_acknowledges_while_it_is_written_down_is_struck_out(
    app: Celery, hub: Hub, redis: redis_py.Redis
) -> None:
    """The pool `threads` acknowledges from its threads, at any moment."""
    Dispatcher(app).send(RUN, "orchestra")
    taker = Taker(app)
    message = taker.take()
    meanwhile = Meanwhile(message.channel.qos, message.ack)
    let_pass(hub, DELAY_S)
    meanwhile.join()
    assert held(redis) == 0
    taker.connection.close()
    assert redis.llen("orchestra") == 0


def test_what_is_taken_while_a_thread_gives_another_back_is_written_down(
    app: Celery, hub: Hub, redis: redis_py.Redis
) -> None:
    """The pool `threads` gives messages back from its threads, too; no other one is forgotten over that."""
    dispatcher = Dispatcher(app)
    dispatcher.send(RUN, "orchestra")
    dispatcher.send(RUN, "orchestra")
    taker = Taker(app)
    message = taker.take()
    meanwhile = Meanwhile(message.channel.qos, taker.take)
    message.reject(requeue=True)
    meanwhile.join()
    taker.connection.close()
    assert held(redis) == 0
    assert redis.llen("orchestra") == 2

"""Wake-ups as Celery messages, and the results of roots."""

from __future__ import annotations

import json
import time
from contextlib import suppress

import pytest
import redis as redis_py
from celery import Celery

from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.dispatch import Dispatcher, RootResults, build_celery
from orchestrator.errors import ServerUnavailable, SessionFailed
from tests.door import door_to

LEAD = ("lead", "orchestra")


@pytest.fixture
def app(redis_url: str) -> Celery:
    """A Celery app on the embedded server."""
    return build_celery(load_settings(redis_url=redis_url))


def test_a_wake_names_the_agent_and_no_run(app: Celery, redis: redis_py.Redis) -> None:
    """One message for each agent, in the agent's queue, however often it is named."""
    Dispatcher(app).wake([LEAD, ("reviewer", "reviews"), LEAD])
    (wake,) = (json.loads(raw) for raw in redis.lrange("orchestra", 0, -1))
    assert wake["headers"]["task"] == "orchestrator.work"
    assert wake["content-type"] == "application/json"
    assert "{'agent': 'lead'}" in wake["headers"]["kwargsrepr"]
    assert redis.llen("reviews") == 1


def test_a_broker_that_is_away_is_named() -> None:
    """The caller gets one error with the broker's address and no password."""
    settings = load_settings(redis_url="redis://127.0.0.1:1/0", broker_url="redis://:secret@127.0.0.1:1/0")
    with pytest.raises(ServerUnavailable, match=r"broker at redis://:\*\*\*@127\.0\.0\.1:1/0"):
        Dispatcher(build_celery(settings)).wake([LEAD])


def test_nobody_waits_long_for_a_broker_that_is_away() -> None:
    """Whoever wakes workers takes it to be away for a moment."""
    dispatcher = Dispatcher(build_celery(load_settings(redis_url="redis://127.0.0.1:1/0")))
    began = time.monotonic()
    for _ in range(50):
        with pytest.raises(ServerUnavailable):
            dispatcher.wake([LEAD])
    dispatcher.wake([])
    assert time.monotonic() - began < 8


def test_a_root_answers_once(app: Celery, redis: redis_py.Redis) -> None:
    """Waiting shows until the answer is there; the answer is never replaced."""
    results = RootResults(app, redis)
    assert results.store_waiting("task-1")
    assert app.AsyncResult("task-1").state == "WAITING"
    assert results.store_result("task-1", "the answer")
    assert not results.store_waiting("task-1")
    assert not results.store_result("task-1", SessionFailed("ses_1", "too late"))
    assert app.AsyncResult("task-1").get(timeout=60) == "the answer"


def test_a_failed_root_raises_what_it_failed_with(app: Celery, redis: redis_py.Redis) -> None:
    """The exception comes back as what it was."""
    results = RootResults(app, redis)
    results.store_result("task-2", SessionFailed("ses_1", "no luck"))
    assert not results.store_result("task-2", "late answer")
    with pytest.raises(SessionFailed, match="session ses_1 failed: no luck"):
        app.AsyncResult("task-2").get(timeout=60)


def test_a_broken_connection_does_not_lose_a_wake(app: Celery, redis: redis_py.Redis) -> None:
    """The pool's connection was cut by the server: the message is sent over a new one."""
    dispatcher = Dispatcher(app)
    dispatcher.wake([("warm", "warm")])
    redis.client_kill_filter(_type="normal", skipme=True)
    dispatcher.wake([LEAD])
    assert redis.llen("orchestra") == 1


@pytest.mark.parametrize("refused", [1, 2, 8])
def test_a_connection_that_breaks_anywhere_in_the_middle_is_an_outage_or_none(
    redis_server: ValkeyProcess, redis: redis_py.Redis, refused: int
) -> None:
    """Whichever request meets it, workers are woken or the broker is away; afterwards they are woken in any case."""
    with door_to(redis_server) as (door, url):
        for first in range(1, 12):
            app = build_celery(load_settings(redis_url=url))
            Dispatcher(app).wake([("warm", "warm")])
            bad = range(first, first + refused)
            door.keep(lambda number, _, bad=bad: "hang up" if number in bad else "pass")
            with suppress(ServerUnavailable):
                Dispatcher(app).wake([("lead", f"queue-{first}")])
            door.open()
            Dispatcher(app).wake([("lead", f"queue-{first}")])
            assert redis.llen(f"queue-{first}") >= 1
            app.close()

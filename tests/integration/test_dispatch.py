"""Runs as Celery messages, and the results of roots."""

from __future__ import annotations

import base64
import json
import time
from contextlib import suppress
from typing import Any

import pytest
import redis as redis_py
from celery import Celery

from orchestrator.dispatch import Dispatcher, RootResults, build_celery, run_task_id
from orchestrator.dispatch.depth import QueueDepth
from orchestrator.dispatch.dispatcher import BUNDLE, SPREAD
from orchestrator.embedded.valkey import ValkeyProcess
from orchestrator.errors import ServerUnavailable, SessionFailed
from orchestrator.ledger import Dispatch
from orchestrator.settings import load_settings
from tests.door import door_to

RUN = Dispatch(run="run_00aa", session="ses_00bb", agent="lead", cause="start")


@pytest.fixture
def app(redis_url: str) -> Celery:
    """A Celery app on the embedded server."""
    return build_celery(load_settings(redis_url=redis_url))


def test_a_run_is_sent_by_name_with_ids_only(app: Celery, redis: redis_py.Redis) -> None:
    """A start and a resume go to the agent's queue, under an id that is always the same for a run."""
    dispatcher = Dispatcher(app)
    dispatcher.send(RUN, "orchestra")
    dispatcher.send(Dispatch(run="run_00cc", session="ses_00bb", agent="lead", cause="callbacks"), "gpu")
    started = json.loads(redis.lrange("orchestra", 0, -1)[0])
    resumed = json.loads(redis.lrange("gpu", 0, -1)[0])
    assert started["headers"]["task"] == "orchestrator.start_session"
    assert started["headers"]["id"] == run_task_id("run_00aa")
    assert started["content-type"] == "application/json"
    assert "'session': 'ses_00bb'" in started["headers"]["kwargsrepr"]
    assert resumed["headers"]["task"] == "orchestrator.resume_session"


@pytest.mark.parametrize("of", ["a worker", "who sends"])
def test_a_channel_keeps_its_client_for_as_long_as_its_connections(of: str, app: Celery) -> None:
    """Making one takes longer than a command; after an outage kombu begins with new connections, and so do we."""
    taken = app.connection_for_read() if of == "a worker" else app.amqp.producer_pool.acquire(block=True)
    with taken:
        channel = taken.default_channel if of == "a worker" else taken.channel
        with channel.conn_or_acquire() as first, channel.conn_or_acquire() as second:
            assert first is second
            assert first.ping()
        channel._disconnect_pools()
        with channel.conn_or_acquire() as third:
            assert third is not first
            assert third.ping()


def test_a_broker_that_is_away_is_named() -> None:
    """The caller gets one error with the broker's address and no password."""
    settings = load_settings(redis_url="redis://127.0.0.1:1/0", broker_url="redis://:secret@127.0.0.1:1/0")
    with pytest.raises(ServerUnavailable, match=r"broker at redis://:\*\*\*@127\.0\.0\.1:1/0"):
        Dispatcher(build_celery(settings)).send(RUN, "orchestra")


def test_nobody_waits_long_for_a_broker_that_is_away() -> None:
    """Neither who sends, for whom it is away for a moment then, nor who asks how much it holds."""
    settings = load_settings(redis_url="redis://127.0.0.1:1/0")
    dispatcher, depth = Dispatcher(build_celery(settings)), QueueDepth(build_celery(settings))
    began = time.monotonic()
    for _ in range(50):
        with pytest.raises(ServerUnavailable):
            dispatcher.send(RUN, "orchestra")
        assert depth("orchestra") == 0
    assert time.monotonic() - began < 8


def test_how_much_the_broker_holds_is_known_to_a_second(app: Celery, redis: redis_py.Redis) -> None:
    Dispatcher(app).send(RUN, "orchestra")
    depth = QueueDepth(app)
    assert depth("orchestra") == 1
    redis.delete("orchestra")
    assert depth("orchestra") == 1
    assert depth("another") == 0
    assert QueueDepth(app)("orchestra") == 0


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


def _bodies(redis: redis_py.Redis, queue: str) -> list[dict[str, Any]]:
    """The arguments of the messages of a queue, first sent first."""
    messages = [json.loads(raw) for raw in reversed(redis.lrange(queue, 0, -1))]
    return [json.loads(base64.b64decode(message["body"]))[1] for message in messages]


def _runs(count: int, **facts: str) -> list[Dispatch]:
    given = {"agent": "leaf", "cause": "start", **facts}
    return [Dispatch(run=f"run_00{n:02}", session=f"ses_00{n:02}", **given) for n in range(count)]


def test_few_runs_travel_alone_and_many_together(app: Celery, redis: redis_py.Redis) -> None:
    """Every run is in exactly one message, in order; one message never holds more than a bundle."""
    dispatcher = Dispatcher(app)
    dispatcher.send_all((run, "few") for run in _runs(SPREAD))
    dispatcher.send_all((run, "many") for run in _runs(SPREAD * BUNDLE * 2))
    assert [sorted(body) for body in _bodies(redis, "few")] == [["agent", "run", "session"]] * SPREAD
    bodies = _bodies(redis, "many")
    assert len(bodies) == SPREAD * 2
    sent = [one for b in bodies for one in ([b["agent"], b["session"], b["run"]], *b["more"])]
    assert sent == [[run.agent, run.session, run.run] for run in _runs(SPREAD * BUNDLE * 2)]


def test_starts_and_resumes_and_queues_are_not_mixed(app: Celery, redis: redis_py.Redis) -> None:
    """A message has one task name and one queue."""
    runs = [(run, "a") for run in _runs(20)] + [(run, "a") for run in _runs(20, cause="callbacks")]
    Dispatcher(app).send_all([*runs, *((run, "b") for run in _runs(20))])
    names = [json.loads(raw)["headers"]["task"] for raw in redis.lrange("a", 0, -1)]
    assert set(names) == {"orchestrator.start_session", "orchestrator.resume_session"}
    held = [1 + len(body.get("more", ())) for queue in ("a", "b") for body in _bodies(redis, queue)]
    assert sum(held) == 60


def test_a_broken_connection_does_not_lose_a_bundle(app: Celery, redis: redis_py.Redis) -> None:
    """The pool's connection was cut by the server: the messages are sent over a new one."""
    dispatcher = Dispatcher(app)
    dispatcher.send(RUN, "warm")
    redis.client_kill_filter(_type="normal", skipme=True)
    dispatcher.send_all((run, "many") for run in _runs(40))
    sent = {one for b in _bodies(redis, "many") for one in (b["run"], *(m[2] for m in b.get("more", ())))}
    assert sent == {run.run for run in _runs(40)}


@pytest.mark.parametrize("runs", [1, 20])
@pytest.mark.parametrize("refused", [1, 2, 8])
def test_a_connection_that_breaks_anywhere_in_the_middle_is_an_outage_or_none(
    redis_server: ValkeyProcess, redis: redis_py.Redis, runs: int, refused: int
) -> None:
    """Whichever request meets it, the runs are sent or the broker is away; afterwards they are sent in any case."""
    with door_to(redis_server) as (door, url):
        for first in range(1, 12):
            app = build_celery(load_settings(redis_url=url))
            Dispatcher(app).send(RUN, "warm")
            to_send = [(run, f"queue-{first}") for run in _runs(runs)]
            bad = range(first, first + refused)
            door.keep(lambda number, _, bad=bad: "hang up" if number in bad else "pass")
            with suppress(ServerUnavailable):
                Dispatcher(app).send_all(to_send)
            door.open()
            Dispatcher(app).send_all(to_send)
            bodies = _bodies(redis, f"queue-{first}")
            sent = {
                one for body in bodies for one in (body["run"], *(more[2] for more in body.get("more", ())))
            }
            assert sent == {run.run for run, _ in to_send}, first
            app.close()

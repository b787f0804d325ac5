"""One round trip to Redis: what breaks on it costs nobody else an answer."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import redis as redis_py

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.redisdb.client import connect
from orchestrator.redisdb.raw_pipeline import exchange
from orchestrator.redisdb.scripts import Scripts
from tests.waiting import wait_until


def connections(client: redis_py.Redis) -> int:
    """How many connections the server has, of all clients."""
    return int(client.info("clients")["connected_clients"])


def test_answers_come_in_order_and_an_error_in_its_place(redis: redis_py.Redis) -> None:
    """What the server refuses is an answer like any other, and those after it are not lost."""
    answers = exchange(
        redis, [("SET", "a", "1"), ("INCR", "a"), ("HGET", "a", "x"), ("NOSUCH",), ("GET", "a")]
    )
    assert [type(answer) for answer in answers] == [
        bytes,
        int,
        redis_py.ResponseError,
        redis_py.ResponseError,
        bytes,
    ]
    assert (answers[1], answers[4]) == (2, b"2")
    assert exchange(redis, [("GET", "a")]) == [b"2"]


def test_text_octets_and_numbers_arrive_as_they_are(redis: redis_py.Redis) -> None:
    """Whatever is in them."""
    texts = ["", "a b", "é\u2028😀\r\n$5\r\n", b"\x00\xff\r\n", 12, -1, 1.5, "x" * 200_000]
    exchange(redis, [("RPUSH", "texts", *texts)])
    assert exchange(redis, [("LRANGE", "texts", 0, -1)]) == [
        [t if isinstance(t, bytes) else str(t).encode() for t in texts]
    ]


def test_a_server_that_was_started_anew_is_asked_again(start_valkey: Callable[..., ValkeyProcess]) -> None:
    """The connection of before is of no use; nobody is told."""
    server = start_valkey()
    client = connect(server.url)
    assert exchange(client, [("SET", "a", "1")]) == [b"OK"]
    server.kill()
    server.start()
    assert exchange(client, [("GET", "a")]) == [b"1"]
    client.close()


def test_a_server_that_is_gone_is_an_error_of_the_connection(
    start_valkey: Callable[..., ValkeyProcess],
) -> None:
    """As every caller expects that waits for it; when it is back the same client works."""
    server = start_valkey()
    client = connect(server.url)
    exchange(client, [("SET", "a", "1")])
    server.stop()
    with pytest.raises(redis_py.ConnectionError):
        exchange(client, [("GET", "a")])
    server.start()
    assert exchange(client, [("GET", "a")]) == [b"1"]
    client.close()


@contextmanager
def alarm(after_s: float, act: Callable[[], object]) -> Iterator[None]:
    """A signal comes in a moment, and its handler acts in the midst of what is done then."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        act()

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_answer_that_was_not_waited_for_is_nobody_elses(redis_url: str) -> None:
    """A signal may end the wait; what comes then must not be taken for the answer to the next question."""
    client, other = connect(redis_url), connect(redis_url)

    class Enough(BaseException):
        pass

    def give_up() -> None:
        raise Enough

    with alarm(0.2, give_up), pytest.raises(Enough):
        exchange(client, [("BLPOP", "list", 5)])
    other.rpush("list", "for nobody")
    assert exchange(client, [("ECHO", "mine")]) == [b"mine"]
    client.close()
    other.close()


def test_threads_share_a_client(redis: redis_py.Redis) -> None:
    """Each has its own answers, and connections are used again."""
    wrong: list[object] = []

    def ask(number: int) -> None:
        for _ in range(200):
            answer = exchange(redis, [("ECHO", str(number)), ("ECHO", str(number * 2))])
            if answer != [str(number).encode(), str(number * 2).encode()]:
                wrong.append(answer)

    before = connections(redis)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (wrong, connections(redis) - before <= 4) == ([], True)


def test_a_fork_has_connections_of_its_own(redis: redis_py.Redis) -> None:
    """Neither process reads what the other one asked for."""
    exchange(redis, [("SET", "a", "1")])
    child = os.fork()
    if child == 0:
        answers = {bytes(exchange(redis, [("ECHO", "child")])[0]) for _ in range(300)}
        os._exit(0 if answers == {b"child"} else 1)
    answers = {bytes(exchange(redis, [("ECHO", "parent")])[0]) for _ in range(300)}
    ended = wait_until(lambda: (found := os.waitpid(child, os.WNOHANG))[0] and found, "the child")
    assert (answers, ended[1]) == ({b"parent"}, 0)


def test_a_fork_leaves_its_parents_pool_alone(
    redis: redis_py.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may have held the pool's lock when the fork was made, and nobody opens it in the child."""
    other = connect(redis_url, check=False)
    exchange(redis, [("ECHO", "parent")])
    parent = os.getpid()
    release = redis_py.ConnectionPool.release

    def guarded(pool: redis_py.ConnectionPool, connection: redis_py.Connection) -> None:
        if os.getpid() != parent and pool is redis.connection_pool:
            os._exit(3)  # where it might have waited for ever
        release(pool, connection)

    monkeypatch.setattr(redis_py.ConnectionPool, "release", guarded)
    child = os.fork()
    if child == 0:
        os._exit(0 if exchange(other, [("ECHO", "child")]) == [b"child"] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    other.close()


def test_what_cannot_be_sent_is_said_before_anything_is_sent(redis: redis_py.Redis) -> None:
    """As redis-py says it."""
    with pytest.raises(redis_py.DataError, match="SET cannot be sent"):
        exchange(redis, [("SET", "a", "1"), ("SET", "b", None)])
    assert exchange(redis, [("EXISTS", "a")]) == [0]


def test_a_large_batch_is_sent_in_pieces(redis: redis_py.Redis) -> None:
    """With small and large commands, all answered in order."""
    texts = [str(number) * (1 if number % 7 else 100_000) for number in range(300)]
    assert exchange(redis, [("ECHO", text) for text in texts]) == [text.encode() for text in texts]


def test_a_thread_that_ends_leaves_its_connection_to_the_next(redis: redis_py.Redis) -> None:
    """An agent may start a thread for every call."""
    exchange(redis, [("ECHO", "mine")])
    before = connections(redis)
    for _ in range(10):
        thread = threading.Thread(target=lambda: exchange(redis, [("ECHO", "theirs")]))
        thread.start()
        thread.join()
    assert connections(redis) - before <= 1


def test_a_signal_handler_asks_over_a_connection_of_its_own(redis_url: str) -> None:
    """It runs in the thread whose own round trip it interrupts."""
    client, other = connect(redis_url), connect(redis_url)
    said: list[object] = []

    def ask() -> None:
        said.extend(exchange(client, [("ECHO", "from the handler")]))
        other.rpush("list", "for the caller")

    with alarm(0.05, ask):
        assert exchange(client, [("BLPOP", "list", 5)]) == [[b"list", b"for the caller"]]
    assert said == [b"from the handler"]
    assert exchange(client, [("ECHO", "mine")]) == [b"mine"]
    client.close()
    other.close()


# --- Scripts on a server that may forget them at any moment, as one that is started again does.


RESULT = ("store_result", ["celery-task-meta-x"], ['{"status": "SUCCESS"}', 60])


class ForgetfulPool(redis_py.ConnectionPool):
    """The server forgets every script just before it gets to see what was asked."""

    forget: Callable[[], object]

    def get_connection(self, *args: Any, **options: Any) -> Any:
        self.forget()
        return super().get_connection(*args, **options)


@pytest.fixture
def forgetful(start_valkey: Callable[..., ValkeyProcess]) -> Iterator[redis_py.Redis]:
    server = start_valkey(durable=False)
    pool = ForgetfulPool.from_url(server.url)
    pool.forget = lambda: redis_py.Redis.from_url(server.url).script_flush()
    client = redis_py.Redis(connection_pool=pool)
    yield client
    client.close()
    pool.disconnect()


def test_a_batch_is_carried_out_by_a_server_that_forgets_scripts_all_the_time(
    forgetful: redis_py.Redis,
) -> None:
    batch = Scripts(forgetful).batch()
    batch.script(*RESULT)
    batch.command("SET", "plain", "1")
    batch.script(*RESULT)
    assert batch.execute() == [1, b"OK", 0]


def test_a_script_is_carried_out_by_a_server_that_does_not_know_it(redis: redis_py.Redis) -> None:
    redis.script_flush()
    assert Scripts(redis).run(*RESULT) == 1

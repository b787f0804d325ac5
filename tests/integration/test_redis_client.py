"""The connection: database, password, TLS and version, and what each mistake is answered with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import redis
from celery import Celery
from kombu import Connection

from orchestrator.config.urls import kombu_url
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.errors import ConfigurationError, OrchestraError, ServerUnavailable, UnsupportedServer
from orchestrator.machine import run_on
from orchestrator.redisdb.client import (
    MAX_BLOCK_MS,
    advice_on_refusal,
    check_server,
    connect,
    explain,
    is_outage,
)
from orchestrator.redisdb.raw_pipeline import ServerClock
from tests.clock import SteppedMachine
from tests.refusing import REFUSALS, Refusing
from tests.tls import tls_server
from tests.waiting import wait_until


def test_the_database_number_is_honoured(redis_server: ValkeyProcess, redis: redis.Redis) -> None:
    connect(redis_server.url.replace("db=0", "db=3")).set("where", "three")
    assert redis.get("where") is None
    assert connect(redis_server.url.replace("db=0", "db=3")).get("where") == b"three"


def test_a_database_that_does_not_exist_is_named(redis_server: ValkeyProcess) -> None:
    with pytest.raises(ConfigurationError, match="has no database of that number"):
        connect(redis_server.url.replace("db=0", "db=999"))


def test_kombu_and_celery_reach_the_same_database_over_the_socket(
    start_valkey: Callable[..., ValkeyProcess],
) -> None:
    """The broker and the result backend of a URL are the database that the ledger has."""
    server = start_valkey(durable=False)
    url = server.url.replace("db=0", "db=2")
    with Connection(kombu_url(url)) as connection, connection.SimpleQueue("errands") as queue:
        queue.put({"n": 1})
    app = Celery(broker=kombu_url(url), backend=kombu_url(url))
    app.backend.set("celery-task-meta-x", b"done")
    client = connect(url)
    assert client.llen("errands") == 1
    assert client.get("celery-task-meta-x") == b"done"
    app.close()


@pytest.fixture
def locked_server(start_valkey: Callable[..., ValkeyProcess]) -> ValkeyProcess:
    server = start_valkey(durable=False)
    connect(server.url).config_set("requirepass", "open sesame")
    return server


def test_a_password_is_honoured(locked_server: ValkeyProcess) -> None:
    url = locked_server.url + "&password=open%20sesame"
    assert connect(url).ping()
    with Connection(kombu_url(url)) as connection, connection.SimpleQueue("errands") as queue:
        queue.put({})
    assert connect(url).llen("errands") == 1


@pytest.mark.parametrize("given", ["", "&password=wrong"])
def test_a_missing_or_wrong_password_is_told_from_an_outage(given: str, locked_server: ValkeyProcess) -> None:
    with pytest.raises(ConfigurationError, match="password") as caught:
        connect(locked_server.url + given)
    assert "=wrong" not in str(caught.value)
    assert not is_outage(caught.value)


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    began = time.monotonic()
    with pytest.raises(
        ServerUnavailable, match=r"cannot reach Redis at redis://:\*\*\*@127\.0\.0\.1:1/0"
    ) as caught:
        connect("redis://:hunter2@127.0.0.1:1/0")
    assert "hunter2" not in str(caught.value)
    assert time.monotonic() - began < 5
    assert is_outage(caught.value)


class _OldRedis:
    def info(self, section: str) -> dict[str, str]:
        return {"redis_version": "5.0.14"}


def test_an_old_server_is_refused() -> None:
    with pytest.raises(UnsupportedServer, match=r"is version 5\.0\.14; agent-orchestra needs Redis 6\.2"):
        check_server(_OldRedis(), "redis://old:6379/0")  # type: ignore[arg-type]


def test_a_query_option_that_redis_does_not_take_is_named() -> None:
    with pytest.raises(ConfigurationError, match="is not usable"):
        connect("redis://127.0.0.1:1/0?socket_timeout=soon")


def test_any_other_refusal_keeps_its_words() -> None:
    error = explain(redis.ResponseError("ERR unknown"), "redis://h/0")
    assert type(error) is OrchestraError
    assert "ERR unknown" in str(error)
    denied = explain(redis.exceptions.NoPermissionError("no INFO"), "redis://h/0")
    assert isinstance(denied, ConfigurationError)


def _ask_until_answered(client: redis.Redis, key: str) -> object:
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline:
        try:
            return client.get(key)
        except redis.RedisError as error:
            if not is_outage(error):
                raise
    return None


def test_a_connection_survives_a_restart_of_the_server(start_valkey: Callable[..., ValkeyProcess]) -> None:
    """A command that is sent while the server restarts is answered by its successor."""
    server = start_valkey()
    client = connect(server.url)
    client.set("kept", "yes")
    server.kill()
    starter = threading.Thread(target=server.start)
    starter.start()
    try:
        assert _ask_until_answered(client, "kept") == b"yes"
    finally:
        starter.join()


def test_a_blocking_read_may_take_longer_than_any_time_out_would_say(redis_url: str) -> None:
    client = connect(redis_url)
    assert client.xread({"empty": "$"}, block=50) in (None, [], {})
    assert client.connection_pool.connection_kwargs["socket_timeout"] * 1000 > MAX_BLOCK_MS


# --- TLS ---------------------------------------------------------------------------------------------------


@pytest.fixture
def tls_url(program: Callable[[str], str], tmp_path: Path) -> Iterator[tuple[str, Path]]:
    with tls_server(program("redis-server"), program("openssl"), tmp_path) as (port, certificate):
        yield f"rediss://:pw@localhost:{port}/0", certificate


def test_tls_is_honoured_and_its_certificate_checked(tls_url: tuple[str, Path]) -> None:
    url, certificate = tls_url
    trusted = f"{url}?ssl_ca_certs={certificate}"
    assert connect(trusted).ping()
    with Connection(kombu_url(trusted)) as connection, connection.SimpleQueue("errands") as queue:
        queue.put({})
    assert connect(trusted).llen("errands") == 1
    with pytest.raises(ConfigurationError, match=r"certificate of Redis at .* cannot be verified") as caught:
        connect(url)
    assert "ssl_ca_certs" in str(caught.value)
    assert "pw@" not in str(caught.value)


def test_a_certificate_file_that_is_not_there_is_an_error_of_the_set_up(tls_url: tuple[str, Path]) -> None:
    url, certificate = tls_url
    with pytest.raises(OrchestraError, match=r"certificate|No such file"):
        connect(f"{url}?ssl_ca_certs={certificate}.missing")


@pytest.mark.parametrize("code", REFUSALS)
def test_a_server_that_takes_no_writes_is_an_outage_however_it_says_so(
    start_valkey: Callable[..., ValkeyProcess], code: str
) -> None:
    """To a command, in a script, in a pipeline, and to whoever was waiting for something in that moment."""
    server = start_valkey(durable=False)
    client, refusal = connect(server.url), Refusing(server, code)
    heard: list[BaseException] = []

    def wait_for_news() -> None:
        try:
            client.xreadgroup("g", "c", {"news": ">"}, block=10_000)
        except redis.RedisError as error:
            heard.append(error)

    client.xgroup_create("news", "g", mkstream=True)
    waiter = threading.Thread(target=wait_for_news)
    waiter.start()
    wait_until(lambda: client.info("clients")["blocked_clients"], "the waiter")
    refusal.begin()
    ways = (
        lambda: client.set("a", "b"),
        lambda: client.eval("return redis.call('SET', KEYS[1], 'b')", 1, "a"),
        lambda: client.pipeline(transaction=False).get("a").set("a", "b").execute(),
    )
    for way in ways:
        with pytest.raises(redis.RedisError) as caught:
            way()
        assert is_outage(caught.value), caught.value
        assert advice_on_refusal(caught.value)
    refusal.end()
    client.xadd("news", {"f": "v"})
    waiter.join()
    assert all(is_outage(error) for error in heard), heard
    client.close()


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (redis.exceptions.ClusterDownError("The cluster is down"), True),
        (redis.exceptions.TryAgainError("Multiple keys request during rehashing of slot"), True),
        (redis.exceptions.MasterDownError("Link with MASTER is down"), True),
        (redis.exceptions.BusyLoadingError("Redis is loading the dataset in memory"), True),
        (redis.ResponseError("NOREPLICAS Not enough good replicas to write."), True),
        (redis.ResponseError("BUSY Redis is busy running a script."), True),
        (redis.ResponseError("UNBLOCKED force unblock from blocking operation"), True),
        (
            redis.ResponseError(
                "Error running script (call to f_1): @user_script:3: @user_script: 3: -MISCONF Errors writing"
            ),
            True,
        ),
        (redis.ResponseError("BUSYGROUP Consumer Group name already exists"), False),
        (redis.ResponseError("BUSYKEY Target key name already exists."), False),
        (redis.ResponseError("WRONGTYPE Operation against a key: BUSY MISCONF OOM "), False),
        (redis.AuthenticationError("WRONGPASS"), False),
        (redis.exceptions.NoPermissionError("no"), False),
    ],
)
def test_what_ends_by_itself_is_told_from_what_was_refused(error: Exception, outage: bool) -> None:
    assert is_outage(error) is outage


def test_a_machine_that_slept_asks_the_server_what_time_it_is() -> None:
    """Its monotonic clock stood still; by that, a message of this moment would be from the future."""
    server = Mock(time=Mock(return_value=(1_000, 0)))
    clock, host = ServerClock(server), SteppedMachine()
    with run_on(host):
        assert clock.now_ms() // 1000 == 1_000
        for host.ahead_s in (3600, -3600):
            server.time.return_value = (1_000 + host.ahead_s, 0)
            assert clock.now_ms() // 1000 == 1_000 + host.ahead_s
    assert server.time.call_count == 3

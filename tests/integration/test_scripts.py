"""Scripts on a server that may forget them at any moment, as one that is started again does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis as redis_py

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.redisdb.scripts import Scripts

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

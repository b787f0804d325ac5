"""The format of the ledger and what all parts agree on: each asks, and one sentence says what to do where it differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.config.settings import load_settings
from orchestrator.dispatch.dispatcher import check_broker
from orchestrator.errors import ConfigurationError, SettingsDisagree, UnsupportedFormat
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.client import connect
from orchestrator.redisdb.format import FORMAT
from tests.commands import refused


@pytest.fixture
def place(redis_url: str, tmp_path: Path) -> dict[str, str]:
    """The variables that tell a command where the stack is."""
    return {"ORCHESTRA_REDIS_URL": redis_url, "ORCHESTRA_DATA": str(tmp_path)}


def test_an_empty_ledger_has_the_format_of_whoever_comes_first(redis: redis_py.Redis, redis_url: str) -> None:
    redis.delete(keys.format_version())
    connect(redis_url).close()
    assert redis.get(keys.format_version()) == str(FORMAT).encode()
    connect(redis_url).close()


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        (str(FORMAT - 1), "let its sessions end with the version that wrote it"),
        (str(FORMAT + 1), "upgrade this part of the stack"),
        ("a guess", "upgrade this part of the stack"),
    ],
)
def test_another_format_is_refused_in_one_sentence(
    said: str, advice: str, redis: redis_py.Redis, redis_url: str, place: dict[str, str]
) -> None:
    redis.set(keys.format_version(), said)
    with pytest.raises(UnsupportedFormat, match=advice):
        connect(redis_url)
    for command in (["sessions"], *PARTS[:4], ["doctor"]):
        code, stderr = refused(command, place)
        assert code in (1, 2), command
        assert advice in stderr, command
        assert "Traceback" not in stderr
    assert redis.get(keys.format_version()) == said.encode()


def test_a_server_that_is_the_broker_only_is_asked_nothing(redis: redis_py.Redis, redis_url: str) -> None:
    redis.delete(keys.format_version())
    check_broker(redis_url)
    assert redis.get(keys.format_version()) is None


PARTS = (*[["service", name] for name in ("router", "callbacks", "reaper", "audit", "worker")], ["up"])
CLIENTS = (["submit", "lead", "x"], ["sessions"], ["doctor"])


@pytest.fixture
def stack(redis: redis_py.Redis, redis_url: str) -> redis_py.Redis:
    """A ledger on which a part with the defaults is alive."""
    connect(redis_url, settings=load_settings(redis_url=redis_url), begins=True).close()
    later_ms = int(redis.time()[0]) * 1000 + 600_000
    redis.hset(keys.services(), "a", json.dumps({"service": "router", "alive_until_ms": later_ms}))
    redis.hset(keys.agreed(), "at", 0)
    return redis


@pytest.mark.parametrize("command", [*PARTS, *CLIENTS], ids=" ".join)
def test_every_part_and_client_is_refused_whose_settings_are_not_the_stacks(
    command: list[str], stack: redis_py.Redis, place: dict[str, str]
) -> None:
    """Else sessions would wait where nobody looks, and runs would be taken from those who have them."""
    before = stack.hgetall(keys.agreed())
    for setting, here, there in (("lease_s", "120", "15"), ("shards", "4", "1")):
        if setting == "lease_s" and command in CLIENTS:
            continue
        variable = f"ORCHESTRA_{setting.upper()}"
        code, stderr = refused(command, {**place, variable: here})
        said = f"has {setting} = {there}, and this part of it {setting} = {here}: set {variable}={there} here"
        assert code in (1, 2), stderr
        assert said in stderr
        assert "Traceback" not in stderr
    assert stack.hgetall(keys.agreed()) == before


def test_the_settings_change_while_no_part_is_alive(stack: redis_py.Redis, redis_url: str) -> None:
    """One that has begun and shows no sign of life yet is alive, and no shard with trees is left out."""

    def begin(**settings: object) -> None:
        connect(redis_url, settings=load_settings(redis_url=redis_url, **settings), begins=True).close()

    begin()
    stack.delete(keys.services())
    with pytest.raises(SettingsDisagree, match="lease_s = 15"):
        begin(lease_s=60)
    stack.hset(keys.agreed(), "at", 0)
    stack.hset(keys.services(), "b", "rubbish")
    begin(lease_s=60, shards=4)
    assert stack.hmget(keys.agreed(), "shards", "lease_s") == [b"4", b"60"]
    stack.zadd(ledger_keys.roots(3), {"ses_03": 1})
    for forgotten in (False, True):
        stack.hset(keys.agreed(), "at", 0)
        if forgotten:
            stack.delete(keys.agreed())
        with pytest.raises(ConfigurationError, match="has trees in shards that shards = 2 leaves out"):
            begin(lease_s=60, shards=2)


def test_a_server_that_takes_no_writes_for_now_is_no_other_stack(
    stack: redis_py.Redis, redis_url: str
) -> None:
    """As after a failover: who begins waits for it."""
    stack.config_set("min-replicas-to-write", 1)
    try:
        connect(redis_url, settings=load_settings(redis_url=redis_url), begins=True).close()
    finally:
        stack.config_set("min-replicas-to-write", 0)

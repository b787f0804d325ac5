"""The format of the ledger: every part asks for it, and one sentence says what to do where it is another."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis as redis_py
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.dispatch.broker import check_broker
from orchestrator.errors import UnsupportedFormat
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.redisdb.client import connect
from orchestrator.redisdb.format import FORMAT


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
        (None, "let its sessions end with the version that wrote it"),
    ],
)
def test_another_format_is_refused_in_one_sentence(
    said: str | None, advice: str, redis: redis_py.Redis, redis_url: str, tmp_path: Path
) -> None:
    """Also one that no program has said, where there are trees: it is older than formats are."""
    if said is None:
        redis.delete(keys.format_version())
        redis.zadd(ledger_keys.roots(3), {"ses_03": 1})
    else:
        redis.set(keys.format_version(), said)
    with pytest.raises(UnsupportedFormat, match=advice):
        connect(redis_url)
    for command in (["sessions"], ["router"], ["callbacks"], ["reaper"], ["audit", "writer"], ["doctor"]):
        place = ["--redis-url", redis_url, "--data", str(tmp_path)]
        done = CliRunner().invoke(main, [*command, *place])
        assert done.exit_code in (1, 2), command
        assert advice in done.stderr, command
        assert "Traceback" not in done.stderr
    assert redis.get(keys.format_version()) == (None if said is None else said.encode())


def test_a_server_that_is_the_broker_only_is_asked_nothing(redis: redis_py.Redis, redis_url: str) -> None:
    redis.delete(keys.format_version())
    check_broker(redis_url)
    assert redis.get(keys.format_version()) is None

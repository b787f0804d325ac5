"""Clients of redis-py on the simulated server, and what may happen to an exchange or to the server."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis as redis_py
from redis.backoff import NoBackoff
from redis.retry import Retry

from orchestrator.ids import root_session_id
from orchestrator.ledger import Ledger, Outgoing
from orchestrator.redisdb.client import RETRIES, check_server
from orchestrator.redisdb.holders import connected_holders, connection_name
from orchestrator.redisdb.raw_pipeline import exchange
from orchestrator.testing.simulation.link import Link, SimulatedPool
from orchestrator.testing.simulation.server import Command, Server, ServerSession


class Fated(Link):
    """Does with the next exchanges what it is told: `away` before, `lost` after they were carried out."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.fates: list[str] = []
        self.exchanges: list[list[bytes]] = []

    def exchange(self, session: ServerSession, commands: Sequence[Command]) -> list[Any]:
        fate = self.fates.pop(0) if self.fates else ""
        if fate == "away":
            raise redis_py.ConnectionError("away")
        self.exchanges.append([command[0] for command in commands])
        answers = super().exchange(session, commands)
        if fate == "lost":
            raise redis_py.ConnectionError("lost")
        return answers


@pytest.fixture
def link() -> Fated:
    return Fated(Server())


def connect(link: Link, name: str = "") -> redis_py.Redis:
    """A client of the server, as a simulated process has it."""
    retry = Retry(NoBackoff(), RETRIES)
    return redis_py.Redis(connection_pool=SimulatedPool(link, client_name=name, retry=retry))


@pytest.fixture
def client(link: Fated) -> Iterator[redis_py.Redis]:
    with connect(link) as client:
        yield client


def test_clients_and_pipelines_of_redis_py_work_on_it(client: redis_py.Redis) -> None:
    assert client.set("a", "1", px=5)
    client.zadd("z", {"m": 1.5})
    assert client.zrange("z", 0, -1, withscores=True) == [(b"m", 1.5)]
    with client.pipeline(transaction=True) as pipe:
        pipe.get("a").hget("a", "x")
        first, second = pipe.execute(raise_on_error=False)
    assert first == b"1"
    assert "WRONGTYPE" in str(second)
    with pytest.raises(redis_py.ResponseError, match="no command 'GEOADD'"):
        client.geoadd("g", (1, 2, "x"))


def test_the_ledger_works_on_it(client: redis_py.Redis) -> None:
    check_server(client, "redis://simulated")
    ledger, session = Ledger(client), root_session_id("root")
    envelope = Outgoing(data=b"<m/>", type="task-delegation", priority="high", message_id="m")
    ledger.submit(session, agent="a", prompt="p", envelope=envelope, correlation="c")
    assert ledger.session(session).state == "pending"


def test_commands_of_one_round_trip_are_one_exchange(client: redis_py.Redis, link: Fated) -> None:
    assert exchange(client, [("SET", "a", "1"), ("GET", "a")]) == [b"OK", b"1"]
    assert link.exchanges == [[b"SET", b"GET"]]


def test_large_commands_are_one_exchange(client: redis_py.Redis, link: Fated) -> None:
    large = b"x" * 300_000
    assert exchange(client, [("SET", "a", large), ("GET", "a")]) == [b"OK", large]
    assert link.exchanges == [[b"SET", b"GET"]]


def test_a_lost_answer_is_asked_for_again(client: redis_py.Redis, link: Fated) -> None:
    link.fates = ["lost"]
    assert exchange(client, [("INCR", "n")]) == [2]
    link.fates = ["lost"]
    assert client.incr("n") == 4


def test_a_server_that_stays_away_is_given_up(client: redis_py.Redis, link: Fated) -> None:
    link.fates = ["away"] * (RETRIES + 1)
    with pytest.raises(redis_py.ConnectionError, match="away"):
        exchange(client, [("INCR", "n")])
    assert client.get("n") is None


def test_a_server_that_starts_again_has_the_keys_of_before_and_no_script(
    client: redis_py.Redis, link: Fated
) -> None:
    client.set("a", "old")
    keys = link.server.copy()
    client.set("a", "new")
    sha = client.script_load("return 1")
    assert client.evalsha(sha, 0) == 1
    link.server.restart(keys)
    assert client.get("a") == b"old"
    with pytest.raises(redis_py.exceptions.NoScriptError):
        client.evalsha(sha, 0)


def test_copies_of_the_keys_stay_as_they_are(client: redis_py.Redis, link: Fated) -> None:
    """Also where a later copy shares with them what nobody has touched in between."""

    def keys() -> list[object]:
        return [
            client.get("t"),
            client.hgetall("h"),
            client.xrange("x"),
            client.xpending("x", "g"),
            client.zrange("z", 0, -1),
        ]

    client.xgroup_create("x", "g", mkstream=True)
    copies = []
    for number in range(6):
        if number % 2:
            client.set("t", number)
            client.hset("h", mapping={"a": number, f"b{number}": "1"})
            client.xadd("x", {"a": number})
            client.xreadgroup("g", "c", {"x": ">"})
            client.zadd("z", {f"m{number}": number})
            client.rename("t", "t2")
            client.rename("t2", "t")
        copies.append((link.server.copy(), keys()))
    for copy, then in [*copies, *reversed(copies)]:
        link.server.restart(copy)
        assert keys() == then
        client.flushall()


def test_the_server_names_who_is_connected(client: redis_py.Redis, link: Fated) -> None:
    with connect(link, connection_name("holder", "mark")) as holder:
        holder.ping()
        assert connected_holders(client).holders == {"mark"}
        link.server.set_time(link.server.now_us + 7_000_000)
        assert connected_holders(client).oldest_s == 7
        (number,) = (
            number for number, session in link.server.sessions.items() if session.name.endswith(b"@mark")
        )
        client.client_kill_filter(_id=str(number))
        assert not connected_holders(client).holders
        holder.ping()  # it connects again
        assert connected_holders(client).holders == {"mark"}
        link.close()
        assert not link.server.sessions


def test_a_blocking_read_answers_at_once(client: redis_py.Redis, link: Fated) -> None:
    before = link.server.added
    assert client.xread({"s": "$"}, block=60_000) == []
    client.xadd("s", {"a": "1"})
    assert link.server.added == before + 1
    assert client.xread({"s": "0"}, block=60_000) == [[b"s", [(b"1700000000000-0", {b"a": b"1"})]]]


def test_keys_expire_by_the_clock_that_is_set(client: redis_py.Redis, link: Fated) -> None:
    client.set("a", "1", px=100)
    link.server.set_time(link.server.now_us + 100_000)
    assert client.exists("a")
    link.server.set_time(link.server.now_us + 1_000)
    assert not client.exists("a")


SCRIPT = """
from tests.properties.redis_commands import Commands
from orchestrator.testing.simulation.server import Server
import hashlib
server, digest = Server(), hashlib.sha256()
commands = Commands(7)
for n in range(400):
    server.set_time(server.now_us + 1000)
    digest.update(repr(server.execute([word.encode() for word in commands.next()])).encode())
text = b"local t = {} for i = 1, 40 do t['k' .. i * 7919] = i end return cjson.encode(t)"
digest.update(server.execute([b"EVAL", text, b"0"]))
print(digest.hexdigest())
"""


def test_two_processes_answer_alike(root: Path) -> None:
    """The order of everything is the same, that of Lua's tables as well."""
    command = [sys.executable, "-c", SCRIPT]
    first, second = (
        subprocess.run(
            command,
            cwd=root,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second
    assert len(first.strip()) == len(hashlib.sha256().hexdigest())


def test_lua_is_imported_only_by_who_makes_a_server() -> None:
    code = (
        "import sys, orchestrator.testing, orchestrator.testing.simulation.link\n"
        "assert not {'lupa', 'lupa.lua51', 'orchestrator.testing.simulation.process'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""What a call costs on the simulated server, on fakeredis, and on a Valkey over a socket: microseconds, the median of rounds.

The same exchanges of the project on each: simple commands, reads of a few rows, and a launch with its transitions by the
scripts. Prints one JSON line for each.

    python benchmarks/bench_simulated_server.py [--calls N] [--quick]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import fakeredis
import redis

from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.ids import new_claim_id, root_session_id, run_id
from orchestrator.ledger import Claim, EndedRun, Ledger, Outcome, Outgoing, Start
from orchestrator.redisdb.raw_pipeline import exchange
from orchestrator.testing.simulation.link import Link, SimulatedPool
from orchestrator.testing.simulation.server import Server

ROUNDS = 5
COMMANDS: dict[str, list[tuple[Any, ...]]] = {
    "HGET": [("HGET", "hash", "field-3")],
    "HSET": [("HSET", "hash", "field-3", "value")],
    "HGETALL of 20": [("HGETALL", "hash")],
    "ZADD": [("ZADD", "zset", 5, "member-5")],
    "ZRANGE of 10": [("ZRANGE", "zset", 0, 9, "WITHSCORES")],
    "XADD": [("XADD", "stream", "MAXLEN", 100, "*", "envelope", "x" * 500)],
    "XREADGROUP of nothing": [("XREADGROUP", "GROUP", "g", "c", "COUNT", 10, "STREAMS", "quiet", ">")],
    "ten HGET in one exchange": [("HGET", "hash", "field-3")] * 10,
}


def prepare(client: redis.Redis) -> None:
    client.hset("hash", mapping={f"field-{n}": f"value {n}" for n in range(20)})
    client.zadd("zset", {f"member-{n}": n for n in range(100)})
    client.xgroup_create("quiet", "g", mkstream=True)


def life(ledger: Ledger, number: int) -> None:
    """A session from its submission to its end: submit, start, claim, commit."""
    session = root_session_id(f"bench-{number}")
    run = run_id(session, 1)
    envelope = Outgoing(data=b"<m/>", type="task-delegation", priority="high", message_id="m")
    ledger.submit(session, agent="a", prompt="p", envelope=envelope, correlation="c")
    launch = Start(
        session=session,
        message="m",
        sender="operator",
        digest="d",
        recipient="a",
        conversation="c",
        stream="ao:{00}:s",
        entry="1-1",
        mark_ms=1000,
    )
    ledger.scripts.run("start", *ledger.start_call(0, [launch], group="g", keep_ms=1000))
    claim = new_claim_id()
    ledger.claim(run, claim, session_id=session, worker="w")
    held = Claim(run=run, claim=claim, session=session, parent="", root=session)
    ledger.commit(EndedRun(held, Outcome(status="completed", text="t"), make_envelope=lambda: envelope))


def per_call(act: Callable[[int], None], calls: int) -> float:
    """Microseconds a call."""
    rounds = []
    for turn in range(ROUNDS):
        before = time.perf_counter()
        for number in range(calls):
            act(turn * calls + number)
        rounds.append((time.perf_counter() - before) / calls)
    return round(statistics.median(rounds) * 1e6, 1)


@contextmanager
def clients() -> Iterator[dict[str, redis.Redis]]:
    sockets = make_socket_dir()
    with tempfile.TemporaryDirectory() as folder:
        valkey = ValkeyProcess(Path(folder), sockets, durable=False)
        valkey.start()
        pool = SimulatedPool(Link(Server()))
        yield {
            "simulated": redis.Redis(connection_pool=pool),
            "fakeredis": fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2),
            "valkey": redis.Redis.from_url(valkey.url, protocol=2),
        }
        valkey.stop()
    remove_socket_dir(sockets)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    calls = 200 if given.quick else given.calls
    with clients() as servers:
        for client in servers.values():
            prepare(client)
        for name, commands in COMMANDS.items():
            took = {
                server: per_call(lambda _, to=client, what=commands: exchange(to, what) and None, calls)
                for server, client in servers.items()
            }
            print(json.dumps({"what": name, "unit": "us", **took}), flush=True)
        took = {
            server: per_call(partial(life, Ledger(client)), calls // 20) for server, client in servers.items()
        }
        print(json.dumps({"what": "a session's four transitions", "unit": "us", **took}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a session costs while it is parked and when it has finished: bytes in Redis and in the audit database.

A stack in this process, with an embedded server. Leads delegate to a specialist that is paused: each lead is parked,
each child waits. Then the specialist goes on and all of them finish; the messages are audited and trimmed meanwhile.
Prompts and answers are as long as `--text` says, of words as people use them. The share of a million sessions a day is that number times the bytes;
what has finished stays for `tree_ttl_s`, which is a week by default.

Prints one JSON line.

    python benchmarks/bench_memory.py [--pairs N] [--text OCTETS]
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Callable
from itertools import accumulate

from trail.messages import vocabulary

from orchestrator.agents.definition import AgentDefinition, define_agent
from orchestrator.audit import build_writer
from orchestrator.bootstrap import Container
from orchestrator.redisdb.client import connect
from orchestrator.streams import GROUPS, RedisStreams, all_streams, consumer_name
from orchestrator.testing import InProcessStack
from orchestrator.worker.context.context import Context

_WORDS = vocabulary()
_WEIGHTS = list(accumulate(1 / (rank + 2) for rank in range(len(_WORDS))))
_CHANCE = random.Random(20261127)


def said(octets: int) -> str:
    """Return so many octets of words, the frequent ones more often, as in any language."""
    return " ".join(_CHANCE.choices(_WORDS, cum_weights=_WEIGHTS, k=octets // 2))[:octets]


def agents(text: int) -> list[AgentDefinition]:
    """A lead, and the specialist that it waits for."""

    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("specialist", said(text))
            ctx.wait_for("all")
            return "waiting"
        return said(text)

    def specialist(_: Context) -> str:
        return said(text)

    return [
        define_agent("lead", source=__file__, function=lead, role="coordinator"),
        define_agent("specialist", source=__file__, function=specialist),
    ]


def wait_for(condition: Callable[[], object], what: str, seconds: float = 300) -> None:
    """Return once ``condition`` holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.1)


def measure(pairs: int, text: int) -> dict[str, object]:
    """Octets for each session in each state, and for each message in the audit database."""
    with InProcessStack(agents(text)) as stack:
        client = connect(str(stack.settings.redis_url), check=False)
        parts = Container(client, stack.settings)
        streams, known = RedisStreams(client), all_streams(stack.settings.shards)
        writer, stop = build_writer(parts, consumer=consumer_name("audit")), threading.Event()
        thread = threading.Thread(target=writer.run, args=(stop,), daemon=True)
        thread.start()

        def used() -> int:
            """Octets that the server holds once everything was audited and trimmed."""
            before = -1
            while (now := sum(row.unread + row.pending for row in streams.backlog("audit", known))) or before:
                streams.trim(GROUPS, known)
                before = now
                time.sleep(0.3)
            client.memory_purge()
            return int(client.info("memory")["used_memory"])

        stack.run("lead", "warm-up")
        parts.concurrency.pause("agent", "specialist")
        empty = used()
        sessions = [stack.client.submit("lead", said(text)) for _ in range(pairs)]
        wait_for(
            lambda: parts.ledger.sweep.ready(0, ["specialist"]).get("specialist") == pairs, "all to be parked"
        )
        parked = used()
        parts.concurrency.unpause("agent", "specialist", agents=["specialist"])
        for session in sessions:
            session.result(timeout_s=300)
        finished = used()
        stop.set()
        thread.join()
        trail = sum(path.stat().st_size for path in stack.settings.data.glob("audit*"))
        messages = sum(row.published for row in streams.backlog("audit", known))
    return {
        "pairs": pairs,
        "text_octets": text,
        "redis_octets_of_a_parked_session": round((parked - empty) / pairs / 2),
        "redis_octets_of_a_finished_session": round((finished - empty) / pairs / 2),
        "audit_octets_of_a_message": round(trail / messages),
        "messages": messages,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--text", type=int, default=500)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(measure(given.pairs, given.text)) + "\n")


if __name__ == "__main__":
    main()

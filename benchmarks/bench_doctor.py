"""How long the doctor takes over trees that have finished: by default, and with `--full`.

A stack in this process, with an embedded server and an audit writer. Leads delegate to children, and all finish. Then
`--roots` further members are put into the indexes of roots and timers, as trees at rest that are nothing but that, for
what grows with the number of trees by default. Prints one JSON line: seconds of wall and of processor time.

    python benchmarks/bench_doctor.py [--trees N] [--children N] [--roots N]
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from typing import Any

from orchestrator.agents.definition import AgentDefinition, define_agent
from orchestrator.audit import build_writer
from orchestrator.audit.reader import AuditReader
from orchestrator.audit.store import AuditStore
from orchestrator.bootstrap import Container
from orchestrator.doctor import Doctor
from orchestrator.ids import is_session_id, root_session_id
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.client import connect
from orchestrator.streams import RedisStreams, all_streams, consumer_name
from orchestrator.testing import InProcessStack
from orchestrator.worker.context.context import Context


def agents(children: int) -> list[AgentDefinition]:
    """A lead, and the specialist that it waits for so many times."""

    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            for number in range(children):
                ctx.delegate("specialist", f"part {number} " + "p" * 500)
            ctx.wait_for("all")
            return "waiting"
        return "r" * 500

    def specialist(_: Context) -> str:
        return "r" * 500

    return [
        define_agent("lead", source=__file__, function=lead, role="coordinator"),
        define_agent("specialist", source=__file__, function=specialist),
    ]


def timed(parts: Container, **options: Any) -> dict[str, object]:
    """One examination."""
    audit = AuditReader(AuditStore(parts.settings.audit_database, read_only=True))
    wall, processor = time.monotonic(), time.process_time()
    found = Doctor(parts, audit=audit).examine(watch_leases=False, **options)
    return {
        "wall_s": round(time.monotonic() - wall, 2),
        "processor_s": round(time.process_time() - processor, 2),
        "sessions": found.tally.sessions,
        "breaks": sum(f.severity == "break" for f in found.findings),
    }


def measure(trees: int, children: int, roots: int) -> dict[str, object]:
    """Seconds for both kinds of examination."""
    with InProcessStack(agents(children)) as stack:
        client = connect(str(stack.settings.redis_url), check=False)
        parts = Container(client, stack.settings)
        streams, known = RedisStreams(client), all_streams(stack.settings.shards)
        writer, stop = build_writer(parts, consumer=consumer_name("audit")), threading.Event()
        thread = threading.Thread(target=writer.run, args=(stop,), daemon=True)
        thread.start()
        for session in [stack.client.submit("lead", "p" * 500) for _ in range(trees)]:
            session.result(timeout_s=3600)
        while any(row.unread or row.pending for row in streams.backlog("audit", known)):
            time.sleep(0.3)
        # As if all had finished yesterday.
        timers, day_ms = ledger_keys.timers(0), 86_400_000
        ends: Any = client.zrange(timers, 0, -1, withscores=True)
        for name, due in ends:
            client.zadd(timers, {name: due - day_ms})
        ids: Any = client.scan_iter(match=ledger_keys.any_session(), count=10_000)
        for key in ids:
            if client.type(key) == b"hash" and is_session_id(key.decode().rpartition(":")[2]):
                client.hincrby(key, "updated_ms", -day_ms)
        measured: dict[str, object] = {
            "trees": trees,
            "children": children,
            "full": timed(parts, full=True),
            "default": timed(parts, full=False),
        }
        now_ms = parts.ledger.server_ms()
        for start in range(0, roots, 10_000):
            names = [root_session_id(f"rest {n}") for n in range(start, min(start + 10_000, roots))]
            client.zadd(ledger_keys.roots(0), dict.fromkeys(names, now_ms - day_ms))
            client.zadd(timers, {f"expire|{name}": now_ms + day_ms for name in names})
        if roots:
            measured["default_with_roots"] = {"roots": roots, **timed(parts, full=False)}
        stop.set()
        thread.join()
    return measured


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--children", type=int, default=199)
    parser.add_argument("--roots", type=int, default=0)
    given = parser.parse_args()
    sys.stdout.write(json.dumps(measure(given.trees, given.children, given.roots)) + "\n")


if __name__ == "__main__":
    main()

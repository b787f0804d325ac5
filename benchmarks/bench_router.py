"""How many messages one router routes, how soon, and in how much memory; beside a FastStream consumer.

Everything is a process of its own, as in a stack: the embedded Valkey (without a file, as a server in memory),
the routers, the audit writer, and this one, which publishes and watches. Messages are status-updates and
task-completions of 2.5 KB, signed with RSA-2048; every one is parsed, validated, verified, judged by the live
rules, told from duplicates, counted, acknowledged, and written to the audit database. The peer does none of
that: it decodes JSON of the same size.

Prints one JSON line for each figure, the last with `messages_per_s` and `faststream_per_s` (null without it).

    python benchmarks/bench_router.py [--messages N] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis as redis_py

from orchestrator.bootstrap import Parts, assemble
from orchestrator.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.envelope.model import (
    AgentMessage,
    Header,
    Party,
    StatusUpdate,
    TaskCompletion,
)
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.signature import sign_message
from orchestrator.ids import derived_uuid, new_message_id, root_session_id
from orchestrator.letters import Thread
from orchestrator.redisdb import keys
from orchestrator.redisdb.client import connect
from orchestrator.registry import AgentRecord
from orchestrator.router.steps import MARK_MARGIN_MS, Limits
from orchestrator.settings import load_settings
from orchestrator.streams import GROUPS, ROUTER_GROUP, RedisStreams, StreamId, all_streams, stream_key

UPDATES = StreamId(0, "status-update", "normal")
COMPLETIONS = StreamId(0, "task-completion", "high")
DELEGATIONS = StreamId(0, "task-delegation", "high")
PEER = Path(__file__).with_name("peer_faststream.py")
#: Where `make bench-peers` installs what ours is compared with.
PEERS_PYTHON = PEER.parent.parent / ".venv-bench" / "bin" / "python"


@dataclass
class Bench:
    """A server, and what is needed to publish on it."""

    client: redis_py.Redis
    parts: Parts
    environment: dict[str, str]

    def envelopes(self, count: int) -> list[tuple[StreamId, bytes]]:
        """Messages with their streams, half of each type, in conversations of a hundred."""
        found = []
        now_ms = time.time_ns() // 1_000_000
        signer = self.parts.keyring.signer("reviewer")
        conversation = first = ""
        for number in range(count):
            if number % 100 == 0:
                conversation, first = new_message_id(), new_message_id()
            update = StatusUpdate(
                task_id="ses_00aabbccddeeff001122334455",
                status="in-progress",
                progress_percentage=number % 100,
                current_activity="reading one module after the other " * 35,
            )
            done = TaskCompletion(
                task_id="ses_00aabbccddeeff001122334455",
                status="success",
                summary="reviewed",
                result="line 12: x & y is never used again\n" * 32,
            )
            message = AgentMessage(
                header=Header(
                    message_id=new_message_id(),
                    timestamp=Timestamp.from_ms(now_ms),
                    sender=Party(agent_name="reviewer", agent_role="specialist"),
                    recipient=Party(agent_name="lead", agent_role="coordinator"),
                    correlation_id=conversation,
                    conversation_chain=(first,),
                ),
                body=update if number % 2 else done,
            )
            data = sign_message(message, signer, now_ms=now_ms)
            found.append((UPDATES if number % 2 else COMPLETIONS, data))
        return found

    def publish(self, envelopes: list[tuple[StreamId, bytes]]) -> None:
        """Append all of them, as fast as the server takes them."""
        for start in range(0, len(envelopes), 500):
            pipeline = self.client.pipeline(transaction=False)
            for stream, data in envelopes[start : start + 500]:
                pipeline.xadd(stream_key(stream), {"envelope": data})
            pipeline.execute()

    def routed(self, streams: list[StreamId]) -> int:
        """How many entries of these streams the routers have acknowledged."""
        total = 0
        for stream in streams:
            for group in self.client.xinfo_groups(stream_key(stream)):
                if group["name"] == ROUTER_GROUP.encode():
                    total += (group["entries-read"] or 0) - group["pending"]
        return total

    @contextmanager
    def processes(self, *commands: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Parts of the stack, each in a process of its own, ended afterwards."""
        started = [
            subprocess.Popen(command, env=self.environment, stderr=subprocess.DEVNULL) for command in commands
        ]
        try:
            yield started
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)

    def until_consumers(self, count: int) -> None:
        """Wait until so many routers read the streams."""
        while len(self.client.xinfo_consumers(stream_key(UPDATES), ROUTER_GROUP)) < count:
            time.sleep(0.02)


def orchestra(*arguments: str) -> list[str]:
    """A command of the stack."""
    return [sys.executable, "-m", "orchestrator", *arguments]


def rate(bench: Bench, streams: list[StreamId], count: int) -> float:
    """Messages a second, from when a twentieth of ``count`` is routed until all of it is."""
    begun = begin_count = 0.0
    while (routed := bench.routed(streams)) < count:
        if not begun and routed >= count / 20:
            begun, begin_count = time.perf_counter(), routed
        time.sleep(0.002)
    return (count - begin_count) / (time.perf_counter() - begun)


def throughput(bench: Bench, count: int, *, routers: int) -> dict[str, Any]:
    """Messages a second of so many routers, each on its own core as far as there are any, with the audit."""
    envelopes = bench.envelopes(count)
    streams = [UPDATES, COMPLETIONS]
    with bench.processes(*[orchestra("router")] * routers, orchestra("audit", "writer")) as processes:
        bench.until_consumers(routers)
        for number, process in enumerate(processes[:routers]):
            os.sched_setaffinity(process.pid, {sorted(os.sched_getaffinity(0))[-1 - number]})
        before = sum(cpu_s(process.pid) for process in processes[:routers])
        bench.publish(envelopes)
        measured = rate(bench, streams, count)
        spent = sum(cpu_s(process.pid) for process in processes[:routers]) - before
        memory = max(peak_mib(process.pid) for process in processes[:routers])
    return {
        "routers": routers,
        "messages": count,
        "bytes": len(envelopes[0][1]),
        "messages_per_s": round(measured),
        "cpu_us_per_message": round(spent / count * 1e6, 1),
        "peak_memory_mib": round(memory),
    }


def delegations(bench: Bench, count: int) -> dict[str, Any]:
    """Delegations a second: each makes a run in the ledger and is published to Celery."""
    parts = bench.parts
    for number in range(count):
        session = root_session_id(f"bench-{number}")
        thread = Thread(correlation=derived_uuid("conversation", session))
        letter = parts.letters.delegation(
            sender="operator", recipient="lead", task_id=session, title="t", description="d", thread=thread
        )
        parts.ledger.submit(
            session, agent="lead", prompt="d", envelope=letter, correlation=thread.correlation
        )
    with bench.processes(orchestra("router")):
        measured = rate(bench, [DELEGATIONS], count)
    return {"delegations": count, "delegations_per_s": round(measured)}


def latency(bench: Bench, *, per_s: int, seconds: int) -> dict[str, Any]:
    """Milliseconds from published to acknowledged at a steady pace, both by the server's clock.

    An entry's id says when it was published; its duplicate mark, set in the step that acknowledges it, lives for a
    known time, so that its end says when it was set. Nothing is watched meanwhile.
    """
    envelopes = bench.envelopes(per_s * seconds)
    entries: list[tuple[str, str]] = []
    with bench.processes(orchestra("router"), orchestra("audit", "writer")):
        bench.until_consumers(1)
        time.sleep(0.5)
        begun = time.perf_counter()
        for number, (stream, data) in enumerate(envelopes):
            time.sleep(max(0.0, begun + number / per_s - time.perf_counter()))
            entry: Any = bench.client.xadd(stream_key(stream), {"envelope": data})
            entries.append((entry.decode(), data[data.index(b"<message-id>") + 12 :][:36].decode()))
        while bench.routed([UPDATES, COMPLETIONS]) < len(entries):
            time.sleep(0.01)
    mark_ms = Limits().max_age_ms + MARK_MARGIN_MS
    pipeline = bench.client.pipeline(transaction=False)
    for _, message_id in entries:
        pipeline.execute_command("PEXPIRETIME", keys.seen(0, message_id))
    routed = [int(end) - mark_ms for end in pipeline.execute()]
    waits = sorted(at - int(entry.partition("-")[0]) for at, (entry, _) in zip(routed, entries, strict=True))
    return {
        "latency_at_per_s": per_s,
        "p50_ms": statistics.median(waits),
        "p99_ms": waits[int(len(waits) * 0.99)],
        "max_ms": waits[-1],
    }


def backlog(bench: Bench, count: int) -> dict[str, Any]:
    """Memory of a router that begins with so many messages waiting (each message stands there several times)."""
    distinct = bench.envelopes(min(count, 5000))
    for start in range(0, count, len(distinct)):
        bench.publish(distinct[: count - start])
    with bench.processes(orchestra("router")) as (router,):
        bench.until_consumers(1)
        while bench.routed([UPDATES, COMPLETIONS]) < count:
            time.sleep(0.05)
        return {"backlog": count, "peak_memory_mib": round(peak_mib(router.pid))}


def faststream(bench: Bench, count: int) -> float | None:
    """What a FastStream consumer of JSON of the same size does, one process on one core; None: not installed."""
    python = str(PEERS_PYTHON) if PEERS_PYTHON.exists() else sys.executable
    if subprocess.run([python, "-c", "import faststream"], check=False, capture_output=True).returncode:
        sys.stderr.write("faststream: not installed; run `make bench-router`\n")
        return None
    command = [python, str(PEER), bench.environment["ORCHESTRA_REDIS_URL"], str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    return float(done.stdout.strip().splitlines()[-1])


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_mib(pid: int) -> float:
    """The most memory that a process has had, in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


@contextmanager
def fresh(data: Path) -> Iterator[Bench]:
    """An empty server, agents and keys."""
    socket_dir = make_socket_dir()
    server = ValkeyProcess(data / "valkey", socket_dir, durable=False)
    server.start()
    try:
        client = connect(server.url)
        settings = load_settings(redis_url=server.url, data=data)
        parts = assemble(client, settings)
        parts.agents.announce(
            [AgentRecord(name="lead", role="coordinator"), AgentRecord(name="reviewer", role="specialist")]
        )
        RedisStreams(client).ensure_groups(GROUPS, all_streams())
        environment = {
            **os.environ,
            "ORCHESTRA_REDIS_URL": server.url,
            "ORCHESTRA_DATA": str(data),
            "ORCHESTRA_LOG_LEVEL": "error",
        }
        yield Bench(client, parts, environment)
    finally:
        server.stop()
        remove_socket_dir(socket_dir)


def show(figure: dict[str, Any]) -> None:
    """Print one figure as a JSON line."""
    sys.stdout.write(json.dumps(figure) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run every part on a server of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, to see that it runs")
    options = parser.parse_args()
    count = options.messages // 10 if options.quick else options.messages
    parts: dict[str, Any] = {}

    def on_fresh_server(name: str, run: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder, fresh(Path(folder)) as bench:
            parts[name] = run(bench)
        if isinstance(parts[name], dict):
            show({"part": name, **parts[name]})
        return parts[name]

    on_fresh_server("latency", lambda b: latency(b, per_s=500, seconds=1 if options.quick else 6))
    on_fresh_server("delegations", lambda b: delegations(b, count // 10))
    on_fresh_server("backlog", lambda b: backlog(b, 10_000 if options.quick else 100_000))
    on_fresh_server("few", lambda b: throughput(b, max(1000, count // 20), routers=1))
    one = on_fresh_server("one router", lambda b: throughput(b, count, routers=1))
    two = on_fresh_server("two routers", lambda b: throughput(b, count, routers=2))
    peer = on_fresh_server("faststream", lambda b: faststream(b, count))
    show(
        {
            "messages_per_s": one["messages_per_s"],
            "faststream_per_s": None if peer is None else round(peer),
            "two_routers_ratio": round(two["messages_per_s"] / one["messages_per_s"], 2),
            "cores": os.cpu_count(),
        }
    )


if __name__ == "__main__":
    main()

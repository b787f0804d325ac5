"""What `bench_router.py` measures: each function on a fresh server."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from orchestrator.envelope.bodies import Task
from orchestrator.ids import derived_uuid, root_session_id
from orchestrator.messages.factory import Thread
from orchestrator.streams import StreamId, stream_key
from routing.stack import DELEGATIONS, REPORTS, Bench, cpu_s, memory_mib, orchestra

_HERE = Path(__file__).resolve().parent
#: Where `make bench-peers` installs what ours is compared with.
_PEERS_PYTHON = _HERE.parent.parent / ".venv-bench" / "bin" / "python"


def rate(bench: Bench, streams: Sequence[StreamId], count: int) -> float:
    """Messages a second, from when a twentieth of ``count`` is routed until all of it is."""
    begun = begin_count = 0.0
    while (routed := bench.handled(streams)) < count:
        if not begun and routed >= count / 20:
            begun, begin_count = time.perf_counter(), routed
        time.sleep(0.002)
    return (count - begin_count) / (time.perf_counter() - begun)


def throughput(bench: Bench, count: int, *, routers: int) -> dict[str, Any]:
    """Messages a second of so many routers, each on its own core as far as there are any, with the audit."""
    envelopes = bench.envelopes(count)
    streams = list(REPORTS)
    with bench.processes(
        *[orchestra("service", "router")] * routers, orchestra("audit", "writer")
    ) as processes:
        bench.until_consumers(routers)
        for number, process in enumerate(processes[:routers]):
            os.sched_setaffinity(process.pid, {sorted(os.sched_getaffinity(0))[-1 - number]})
        before = sum(cpu_s(process.pid) for process in processes[:routers])
        bench.publish(envelopes)
        measured = rate(bench, streams, count)
        spent = sum(cpu_s(process.pid) for process in processes[:routers]) - before
        memory = max(memory_mib(process.pid) for process in processes[:routers])
    return {
        "routers": routers,
        "messages": count,
        "bytes": len(envelopes[0][1]),
        "messages_per_s": round(measured),
        "cpu_us_per_message": round(spent / count * 1e6, 1),
        "peak_memory_mib": round(memory),
    }


def scaling(bench: Bench, count: int, *, routers: int) -> dict[str, Any]:
    """Messages a second of so many routers with nobody beside them but the server: what they route is there before.

    They are stopped while it is published.
    """
    with bench.processes(*[orchestra("service", "router")] * routers) as processes:
        bench.until_consumers(routers)
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        bench.publish(bench.envelopes(count))
        before = sum(cpu_s(process.pid) for process in processes)
        for process in processes:
            process.send_signal(signal.SIGCONT)
        measured = rate(bench, list(REPORTS), count)
        spent = sum(cpu_s(process.pid) for process in processes) - before
    return {
        "routers": routers,
        "messages_per_s": round(measured),
        "cpu_us_per_message": round(spent / count * 1e6, 1),
    }


def delegations(bench: Bench, count: int) -> dict[str, Any]:
    """Delegations a second: each makes a run in the ledger and is published to Celery."""
    parts = bench.parts
    for number in range(count):
        session = root_session_id(f"bench-{number}")
        thread = Thread(correlation=derived_uuid("conversation", session))
        letter = parts.message_factory.delegation(
            sender="operator",
            recipient="lead",
            task_id=session,
            task=Task(title="t", description="d"),
            thread=thread,
        )
        parts.ledger.submit(
            session, agent="lead", prompt="d", envelope=letter, correlation=thread.correlation
        )
    with bench.processes(orchestra("service", "router")):
        measured = rate(bench, [DELEGATIONS], count)
    return {"delegations": count, "delegations_per_s": round(measured)}


def latency(bench: Bench, *, per_s: int, seconds: int) -> dict[str, Any]:
    """Milliseconds from published to acknowledged at a steady pace.

    From just before the message is sent to the server until a process of its own has heard that its mark is set,
    in the step that acknowledges it: both ways from and to the server are in it. The router's processor time for
    each message tells what the promptness costs.
    """
    envelopes = bench.envelopes(per_s * seconds)
    sent: dict[str, int] = {}
    with bench.processes(orchestra("service", "router"), orchestra("audit", "writer")) as (router, _):
        bench.until_consumers(1)
        listen = [sys.executable, str(_HERE / "listener.py"), urlsplit(bench.url).path, str(len(envelopes))]
        with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as listener:
            assert listener.stdout is not None
            listener.stdout.readline()
            time.sleep(0.5)
            before = cpu_s(router.pid)
            begun = time.perf_counter()
            for number, (stream, data) in enumerate(envelopes):
                time.sleep(max(0.0, begun + number / per_s - time.perf_counter()))
                message_id = data[data.index(b"<message-id>") + 12 :][:36].decode().lower()
                sent[message_id] = time.monotonic_ns()
                bench.client.xadd(stream_key(stream), {"envelope": data})
            heard = dict(line.split() for line in listener.stdout)
        spent = cpu_s(router.pid) - before
    waits = sorted((int(heard[message_id]) - at) / 1e6 for message_id, at in sent.items())
    return {
        "latency_at_per_s": per_s,
        "p50_ms": round(statistics.median(waits), 2),
        "p99_ms": round(waits[int(len(waits) * 0.99)], 2),
        "max_ms": round(waits[-1], 2),
        "cpu_us_per_message": round(spent / len(envelopes) * 1e6, 1),
    }


def backlog(bench: Bench, count: int) -> dict[str, Any]:
    """Memory of a router that begins with so many messages waiting (each message stands there several times)."""
    distinct = bench.envelopes(min(count, 5000))
    for start in range(0, count, len(distinct)):
        bench.publish(distinct[: count - start])
    with bench.processes(orchestra("service", "router")) as (router,):
        bench.until_consumers(1)
        bench.until(count, every_s=0.05)
        return {"backlog": count, "peak_memory_mib": round(memory_mib(router.pid))}


def faststream(bench: Bench, count: int) -> dict[str, Any] | None:
    """What a FastStream consumer of JSON of the same size does, one process on one core; None: not installed."""
    python = str(_PEERS_PYTHON) if _PEERS_PYTHON.exists() else sys.executable
    if subprocess.run([python, "-c", "import faststream"], check=False, capture_output=True).returncode:
        sys.stderr.write("faststream: not installed; run `make bench-router`\n")
        return None
    command = [python, str(_HERE / "faststream_peer.py"), bench.url, str(count)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    per_s, cpu_us = map(float, done.stdout.split()[-2:])
    return {"messages_per_s": round(per_s), "cpu_us_per_message": round(cpu_us, 1)}

"""Whether the millionth message costs what the thousandth did: one router, the audit writer, streams trimmed.

Messages come in portions; each is signed while the router has nothing to do, published at once, routed, written to
the audit database, and trimmed as the reaper trims. What a portion cost in processor time is shown for a few of them.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
from typing import Any

from orchestrator.streams import AUDIT_GROUP, GROUPS, RedisStreams, all_streams, stream_key
from routing.stack import REPORTS, Bench, Envelopes, cpu_s, memory_mib, orchestra

#: Messages of one portion.
PORTION = 10_000


def million(bench: Bench, total: int, *, marks: tuple[int, ...]) -> dict[str, Any]:
    """Processor time and memory of the portions in which ``marks`` lie, and of the last one.

    And the router's processor time for a message in each tenth of the way, as one portion can be disturbed.
    """
    streams = RedisStreams(bench.client)
    at: list[dict[str, Any]] = []
    stretches: list[list[float]] = []
    done = 0
    with bench.processes(orchestra("service", "router"), orchestra("audit", "writer")) as (router, writer):
        bench.until_consumers(1)
        watched = {"router": router.pid, "audit": writer.pid, "server": bench.server_pid}
        # The first thousand warm up: imports, keys, agents.
        for size in [1000, *[PORTION] * (total // PORTION)]:
            envelopes = _signed(bench, size)
            before = {name: cpu_s(pid) for name, pid in watched.items()}
            bench.publish(envelopes)
            del envelopes
            bench.until(done + size)
            spent = {"router": cpu_s(router.pid) - before["router"]}
            bench.until(done + size, AUDIT_GROUP, every_s=0.02)
            spent |= {name: cpu_s(watched[name]) - before[name] for name in ("audit", "server")}
            streams.trim(GROUPS, all_streams())
            if done:
                if (done - 1000) % (total // 10) == 0:
                    stretches.append([])
                stretches[-1].append(spent["router"] / size * 1e6)
            begun, done = done, done + size
            if any(begun <= mark < done for mark in marks) or done >= total:
                at.append(
                    {
                        "after": begun,
                        "messages": size,
                        **{f"{name}_cpu_us": round(s / size * 1e6, 1) for name, s in spent.items()},
                        **{
                            f"{name}_mib": round(memory_mib(pid, peak=False)) for name, pid in watched.items()
                        },
                    }
                )
    tenths = [round(statistics.mean(costs), 1) for costs in stretches]
    left = sum(int(bench.client.xlen(stream_key(stream))) for stream in REPORTS)
    return {"total": done, "left_in_streams": left, "router_cpu_us_by_tenth": tenths, "at": at}


def _signed(bench: Bench, count: int) -> Envelopes:
    """Messages that all cores made together, in processes that inherit the bench with its keys."""
    cores = len(os.sched_getaffinity(0))
    each = -(-count // cores // 100) * 100
    _inherited.append(bench)
    try:
        with multiprocessing.get_context("fork").Pool(cores) as pool:
            parts = pool.map(_make, [min(each, count - start) for start in range(0, count, each)])
    finally:
        _inherited.pop()
    return [envelope for part in parts for envelope in part]


_inherited: list[Bench] = []


def _make(count: int) -> Envelopes:
    return _inherited[0].envelopes(count)

"""How many messages one router routes, how soon, and in how much memory; beside a FastStream consumer.

Everything is a process of its own, as in a stack: the embedded Valkey (without a file, as a server in memory),
the routers, the audit writer, and this one, which publishes and watches. Messages are status-updates and
task-completions of 2.5 KB, signed with RSA-2048, and once more with Ed25519; every one is parsed, validated, verified, judged by the live
rules, told from duplicates, counted, acknowledged, and written to the audit database. The peer does none of
that: it decodes JSON of the same size.

Prints one JSON line for each figure, the last with `messages_per_s`, `ed25519_messages_per_s` and `faststream_per_s`
(null without it).
`--million` routes a million messages first and shows what one costs at the beginning and at the end; that takes
several minutes and 4 GB in the folder for temporary files (`TMPDIR`), for the audit database.

    python benchmarks/bench_router.py [--messages N] [--quick] [--million]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from routing.figures import backlog, delegations, faststream, latency, scaling, throughput
from routing.million import million
from routing.stack import fresh

from orchestrator.envelope.signature import ED25519, RSA_SHA256


def show(figure: dict[str, Any]) -> None:
    """Print one figure as a JSON line."""
    sys.stdout.write(json.dumps(figure) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run every part on a server of its own."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="a tenth of everything, to see that it runs")
    parser.add_argument("--million", action="store_true", help="route a million messages, too")
    options = parser.parse_args()
    count = options.messages // 10 if options.quick else options.messages
    parts: dict[str, Any] = {}

    def on_fresh_server(name: str, run: Any, *, algorithm: str = RSA_SHA256) -> Any:
        with tempfile.TemporaryDirectory() as folder, fresh(Path(folder), algorithm=algorithm) as bench:
            parts[name] = run(bench)
        if isinstance(parts[name], dict):
            show({"part": name, **parts[name]})
        return parts[name]

    if options.million:
        total, marks = (100_000, (1000, 10_000)) if options.quick else (1_000_000, (1000, 100_000))
        on_fresh_server("million", lambda b: million(b, total, marks=marks))
    on_fresh_server("latency", lambda b: latency(b, per_s=500, seconds=1 if options.quick else 6))
    on_fresh_server("delegations", lambda b: delegations(b, count // 10))
    on_fresh_server("backlog", lambda b: backlog(b, 10_000 if options.quick else 100_000))
    on_fresh_server("few", lambda b: throughput(b, max(1000, count // 20), routers=1))
    one = on_fresh_server("one router", lambda b: throughput(b, count, routers=1))
    elliptic = on_fresh_server(
        "one router, Ed25519", lambda b: throughput(b, count, routers=1), algorithm=ED25519
    )
    two = on_fresh_server("two routers", lambda b: throughput(b, count, routers=2))
    scaled = [
        on_fresh_server(
            f"{routers} alone",
            lambda b, routers=routers: scaling(b, count, routers=routers),
            algorithm=ED25519,
        )
        for routers in (1, 2)
    ]
    peer = on_fresh_server("faststream", lambda b: faststream(b, count))
    show(
        {
            "messages_per_s": one["messages_per_s"],
            "ed25519_messages_per_s": elliptic["messages_per_s"],
            "faststream_per_s": None if peer is None else peer["messages_per_s"],
            "two_routers_alone_ratio": round(scaled[1]["messages_per_s"] / scaled[0]["messages_per_s"], 2),
            "two_routers_ratio": round(two["messages_per_s"] / one["messages_per_s"], 2),
            "cores": os.cpu_count(),
        }
    )


if __name__ == "__main__":
    main()

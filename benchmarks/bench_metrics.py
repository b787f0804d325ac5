"""What a scrape of `orchestra metrics` costs while many sessions are open, and what the first reading of their trail does.

A ledger on an embedded server: `--trees` roots with `--children` children each, none of which has begun. Prints one JSON line:
milliseconds of wall time, of this process and of the server for the first reading and for scrapes with nothing new, and the
memory and the file of the exporter.

    python benchmarks/bench_metrics.py [--trees N] [--children N] [--scrapes N]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import redis

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from orchestrator.audit import build_writer
from orchestrator.bootstrap import Container
from orchestrator.config.settings import Settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.ledger import Ledger
from orchestrator.redisdb.client import connect
from orchestrator.telemetry import Exporter, exposition, registry_of
from orchestrator.telemetry.exporter import NotYet
from tests.integration.ledger.conftest import Play


def make_trees(client: redis.Redis, trees: int, children: int) -> None:
    play = Play(Ledger(client))
    for tree in range(trees):
        _, parent = play.begin(f"root {tree}")
        for child in range(children):
            play.delegate(parent, f"child {child}")
        play.commit(parent.claim)


def server_ms(client: redis.Redis) -> float:
    used = client.info("cpu")
    return 1000 * (used["used_cpu_user"] + used["used_cpu_sys"])


def scrape(client: redis.Redis, exporter: Exporter) -> tuple[float, float, float]:
    """Wall time, processor time here, processor time of the server, in milliseconds."""
    server, wall, own = server_ms(client), time.monotonic(), time.process_time()
    while True:
        try:
            exposition(registry_of(exporter))
            break
        except NotYet:
            continue
    took = 1000 * (time.monotonic() - wall), 1000 * (time.process_time() - own)
    return *took, server_ms(client) - server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--children", type=int, default=99)
    parser.add_argument("--scrapes", type=int, default=20)
    given = parser.parse_args()
    socket_dir = make_socket_dir()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = ValkeyProcess(folder / "valkey", socket_dir, durable=False)
        server.start()
        try:
            with connect(server.url, check=False) as client:
                parts = Container(client, Settings(data=folder / "data", redis_url=server.url))
                make_trees(client, given.trees, given.children)
                writer = build_writer(parts, consumer="audit")
                while writer.run_once():
                    pass
                exporter = Exporter(parts, keep_s=0)
                first = scrape(client, exporter)
                # The sessions that are new are looked at some at a time.
                for _ in range(10):
                    scrape(client, exporter)
                rows = [scrape(client, exporter) for _ in range(given.scrapes)]
                exporter.close()
                files = sum(file.stat().st_size for file in (parts.settings.data / "metrics").iterdir())
        finally:
            server.stop()
            remove_socket_dir(socket_dir)
    names = ("wall_ms", "processor_ms", "server_ms")
    found = {
        "sessions": given.trees * (given.children + 1),
        "first": {name: round(value, 1) for name, value in zip(names, first, strict=True)},
        "scrape": {
            name: round(statistics.median(column), 1)
            for name, column in zip(names, zip(*rows, strict=True), strict=True)
        },
        "file_bytes": files,
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

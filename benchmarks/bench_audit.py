"""How fast the audit writer catches up with a backlog, and how soon a search answers.

The backlog is of signed status-updates and task-completions of 2.5 KB, as they stand in the streams after an outage of the
database. The writer is the real one, with its signed heads. Searches are by sender, recipient, type, time, task,
conversation, outcome and message, and for words that all messages have, few or none, of a page of 100; `--messages 1000000` is the
size that the limit of 100 ms is for.

Prints one JSON line for each database: `messages_per_s`, `cpu_us_per_message`, `search_p95_ms`. The SQLite file is in the folder
for temporary files (`TMPDIR`); `--url` adds a PostgreSQL database, which must be empty.

    python benchmarks/bench_audit.py [--messages N] [--url postgresql://…] [--quick]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from routing.stack import Bench, fresh

from orchestrator.audit import AuditReader, AuditStore, build_writer
from orchestrator.audit.text import text_of
from orchestrator.audit.words import words_of
from orchestrator.bootstrap import build_container
from orchestrator.config.settings import load_settings
from orchestrator.envelope.signature import ED25519
from orchestrator.streams import AUDIT_GROUP

_ROUNDS = 20


def figures(bench: Bench, data: Path, url: str | None, messages: int) -> dict[str, Any]:
    """Of one database."""
    settings = load_settings(
        redis_url=bench.url, data=data, signature_algorithm=ED25519, **({"audit_url": url} if url else {})
    )
    writer = build_writer(build_container(bench.client, settings), consumer="bench")
    start, cpu = time.perf_counter(), time.process_time()
    written = 0
    while written < messages:
        written += writer.run_once()
    took, used = time.perf_counter() - start, time.process_time() - cpu
    begun, store = time.perf_counter(), AuditStore(settings.audit_database)
    while store.index(2000):
        pass
    indexed = time.perf_counter() - begun
    if url:
        with store.database.write() as db:  # as the server does by itself after a while
            db.exec_driver_sql("ANALYZE")
    reader = AuditReader(AuditStore(settings.audit_database, read_only=True))
    last = reader.search(limit=1)[0]
    searches: list[dict[str, Any]] = [
        {"sender": "reviewer"},
        {"sender": "nobody"},
        {"recipient": "lead", "message_type": "task-completion"},
        {"correlation": last.correlation_id},
        {"task_id": last.task_id, "sender": "nobody"},
        {"since_ms": last.published_ms - 1000},
        {"until_ms": 1},
        {"outcome": "success"},
        {"message_id": last.message_id},
        {"text": "nothing says this"},
        *({"text": words} for words in _texts(reader)),
    ]
    times, slowest = [], dict[str, float]()
    for _ in range(_ROUNDS):
        for search in searches:
            begun = time.perf_counter()
            reader.search(**search)
            times.append(time.perf_counter() - begun)
            name = "+".join(search)
            slowest[name] = max(slowest.get(name, 0.0), round(times[-1] * 1000, 1))
    return {
        "database": "postgresql" if url else "sqlite",
        "messages": messages,
        "messages_per_s": round(messages / took),
        "cpu_us_per_message": round(used / messages * 1e6, 1),
        "indexed_per_s": round(messages / indexed),
        "slowest_ms": slowest,
        "search_p50_ms": round(sorted(times)[len(times) // 2] * 1000, 2),
        "search_p95_ms": round(sorted(times)[len(times) * 95 // 100] * 1000, 2),
    }


def _texts(reader: AuditReader) -> list[str]:
    """A word that every message has, one that few have, and two words that follow each other."""
    said = words_of(text_of(reader.search(limit=1)[0].xml))
    return [said[0], max(said, key=len), " ".join(said[1:3])]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--url")
    parser.add_argument("--quick", action="store_true", help="2,000 messages")
    options = parser.parse_args()
    messages = 2000 if options.quick else options.messages
    with tempfile.TemporaryDirectory() as folder, fresh(Path(folder), algorithm=ED25519) as bench:
        bench.publish(bench.envelopes(messages))
        for url in [None, *([options.url] if options.url else [])]:
            for key in bench.client.scan_iter("*:msg:*"):
                if url:
                    bench.client.xgroup_setid(key, AUDIT_GROUP, "0")
            sys.stdout.write(json.dumps(figures(bench, Path(folder), url, messages)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()

"""How soon a search of the audit trail answers among a million messages, for each kind of search.

Fills an audit database with messages as a stack writes them in a month (`trail/messages.py`), through the store's own writing
and indexing, then asks for pages of 100: the first and the second. Prints a JSON line with the times of filling and one with
the percentiles of each kind, in milliseconds; `cpu` is the processor time of this process, which with SQLite is all
of it and hardly depends on what else the machine does.

    python benchmarks/bench_audit_search.py [--messages 1000000] [--folder DIR] [--url postgresql://…] [--quick]

The database is SQLite in a folder for temporary files, or in `--folder`; `--url` names a PostgreSQL database instead, which must
be empty. `--keep` leaves what was filled for another run, which fills no more.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from trail.messages import (
    BEGIN_MS,
    CONVERSATION,
    RARE_RULE,
    RARE_WORD,
    SPAN_MS,
    Messages,
    message_id,
    task_of,
)

from orchestrator.audit import AuditReader, AuditStore

_BATCH = 5000
_ROUNDS = 20
_PAGE = 100


def say(**line: Any) -> None:
    """Print a JSON line."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def fill(store: AuditStore, messages: Messages) -> None:
    """Write and index all messages; what takes the time."""
    spent = dict.fromkeys(("making", "writing", "indexing"), 0.0)
    used, begun = time.process_time(), time.perf_counter()
    for records, dead in messages.batches(_BATCH):
        spent["making"] += time.perf_counter() - begun
        begun = time.perf_counter()
        store.add(records, dead)
        spent["writing"] += time.perf_counter() - begun
        begun = time.perf_counter()
        while store.index(_BATCH):
            pass
        spent["indexing"] += time.perf_counter() - begun
        begun = time.perf_counter()
    each = {f"{name}_us_per_message": round(s / messages.count * 1e6, 1) for name, s in spent.items()}
    cpu = (time.process_time() - used) / messages.count * 1e6
    say(filled=messages.count, **each, cpu_us_per_message=round(cpu, 1))


def searches(messages: Messages) -> Mapping[str, list[dict[str, Any]]]:
    """The searches of each kind, a few different ones."""
    chance, count = random.Random(1), messages.count
    some = [chance.randrange(count) for _ in range(_ROUNDS)]
    hour = 3_600_000
    ends = [BEGIN_MS + SPAN_MS * n // _ROUNDS for n in range(1, _ROUNDS + 1)]
    common, usual = messages.common_word(), messages.usual_words()
    return {
        "nothing": [{}],
        "message": [{"message_id": message_id(n)} for n in some],
        "correlation": [{"correlation": message_id(n // CONVERSATION * CONVERSATION)} for n in some],
        "session": [{"task_id": task_of(n)} for n in some],
        "sender, busy": [{"sender": "agent-0"}],
        "sender, idle": [{"sender": "agent-39"}],
        "sender, unknown": [{"sender": "nobody"}],
        "recipient": [{"recipient": f"agent-{n}"} for n in range(0, 40, 4)],
        "sender and recipient": [{"sender": f"agent-{n}", "recipient": "agent-39"} for n in (0, 20, 39)],
        "type, frequent": [{"message_type": "status-update"}],
        "type, rare": [{"message_type": "escalation"}],
        "type, absent": [{"message_type": "query"}],
        "priority, frequent": [{"priority": "normal"}],
        "priority, rare": [{"priority": "critical"}],
        "outcome, frequent": [{"outcome": "success"}],
        "outcome, seldom": [{"outcome": "failed"}],
        "outcome, dead": [{"outcome": "dead"}],
        "rule, frequent": [{"rule": "expired"}],
        "rule, rare": [{"rule": RARE_RULE}],
        "rule, absent": [{"rule": "nothing"}],
        "attempt, first": [{"attempt": 1}],
        "attempt, third": [{"attempt": 3}],
        "attempt, absent": [{"attempt": 9}],
        "since": [{"since_ms": end} for end in ends],
        "until": [{"until_ms": end} for end in ends],
        "an hour": [{"since_ms": end - hour, "until_ms": end} for end in ends],
        "sender, until": [{"sender": "agent-0", "until_ms": end} for end in ends],
        "sender, an hour": [{"sender": "agent-39", "since_ms": end - hour, "until_ms": end} for end in ends],
        "type and outcome, until": [
            {"message_type": "task-completion", "outcome": "failed", "until_ms": end} for end in ends
        ],
        "text, common": [{"text": common}],
        "text, usual": [{"text": word} for word in usual],
        "text, rare": [{"text": RARE_WORD}],
        "text, absent": [{"text": "nobody says so"}],
        "text, two usual words": [{"text": " ".join(pair)} for pair in pairwise(usual)],
        "text, two common words": [{"text": f"{common} {common}"}],
        "text and sender": [{"text": common, "sender": "agent-39"}, {"text": usual[0], "sender": "agent-0"}],
        "text and correlation": [
            {"text": common, "correlation": message_id(n // CONVERSATION * CONVERSATION)} for n in some
        ],
        "text, an hour": [{"text": common, "since_ms": end - hour, "until_ms": end} for end in ends],
        "text, until": [{"text": usual[3], "until_ms": end} for end in ends],
    }


def measure(reader: AuditReader, kinds: Mapping[str, list[dict[str, Any]]], limit_s: float) -> None:
    """Ask, in turn; the first and the second page of each."""
    times: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}
    spent = dict.fromkeys(kinds, 0.0)
    for number in range(_ROUNDS):
        for kind, asked in kinds.items():
            if spent[kind] > limit_s:
                continue
            before = None
            for page in ("", ", next page"):
                begun, used = time.perf_counter(), time.process_time()
                found = reader.search(**asked[number % len(asked)], limit=_PAGE, before=before)
                took = time.perf_counter() - begun
                spent[kind] += took
                times.setdefault(kind + page, []).append(took * 1000)
                cpu.setdefault(kind + page, []).append((time.process_time() - used) * 1000)
                if len(found) < _PAGE:
                    break
                before = found[-1].seq
    for kind, ms in times.items():
        used = {f"cpu_p{percent}_ms": _percentile(cpu[kind], percent) for percent in (50, 95)}
        say(kind=kind, p50_ms=_percentile(ms, 50), p95_ms=_percentile(ms, 95), **used, asked=len(ms))
    every, own = ([took for ms in found.values() for took in ms] for found in (times, cpu))
    used = {f"cpu_p{percent}_ms": _percentile(own, percent) for percent in (50, 95)}
    say(kind="all", p50_ms=_percentile(every, 50), p95_ms=_percentile(every, 95), **used)


def _percentile(ms: list[float], percent: int) -> float:
    return round(sorted(ms)[min(len(ms) - 1, len(ms) * percent // 100)], 2)


def main() -> None:
    """Fill and measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the SQLite file is made")
    parser.add_argument("--url", help="an empty PostgreSQL database")
    parser.add_argument("--keep", action="store_true", help="leave the SQLite file in --folder")
    parser.add_argument("--quick", action="store_true", help="5,000 messages: whether it runs, not how fast")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds after which a kind is left")
    options = parser.parse_args()
    messages = Messages(5000 if options.quick else options.messages)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        where = options.url or (options.folder if options.keep else Path(folder)) / "trail.sqlite"
        store = AuditStore(where)
        if store.total() < messages.count:
            fill(store, messages)
            if options.url:
                with store.database.write() as db:  # as the server does by itself after a while
                    db.exec_driver_sql("ANALYZE")
        reader = AuditReader(AuditStore(where, read_only=True))
        measure(reader, searches(messages), options.limit)


if __name__ == "__main__":
    main()

"""How long a report on the audit trail takes, and how much memory.

The trail is made for it: trees of a lead and eight reviewers, each with its messages and the transitions of its ledger, spread
over 48 hours; one message in 200 is a dead letter, one in 100 a second attempt. `--messages 200000` is about 200,000 rows of
messages and a million transitions.

Prints one JSON line for each database: `report_s`, `cpu_s` (of this process; a server has its own), `peak_mb` (of this process). The SQLite
file is in the folder for temporary files (`TMPDIR`); `--url` adds a PostgreSQL database, which must be empty.

    python benchmarks/bench_report.py [--messages N] [--url postgresql://…] [--quick] [--keep FOLDER]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from orchestrator.audit import AuditStore, MessageRecord
from orchestrator.audit.records import DeadRecord
from orchestrator.audit.report import make_report
from orchestrator.audit.transitions import Step, StepsRecord
from orchestrator.ids import child_session_id, root_session_id

_CHILDREN = 8
_REVIEWERS = ("reviewer", "security-reviewer", "style-reviewer", "test-writer")
_RULES = ("signature-invalid", "expired", "recipient-unknown", "missing-element")
_PRIORITY = {"status-update": "normal", "query": "critical"}
_START_MS = 1_790_000_000_000
_HOURS = 48
_XML = b"<agent-message>" + b"x" * 1200 + b"</agent-message>"


class Trail:
    """Makes the rows of trees, in the order of their times."""

    def __init__(self, messages: int) -> None:
        self._random = random.Random(7)
        self._trees = max(1, messages // (2 * _CHILDREN + 2))
        self._number = 0

    def trees(self) -> Iterator[tuple[list[MessageRecord], list[DeadRecord], list[Step]]]:
        """A tree after the other."""
        for number in range(self._trees):
            # More by day than by night.
            hour = self._random.choices(
                range(_HOURS), [2 + 6 * math.exp(-(((h % 24) - 10) ** 2) / 16) for h in range(_HOURS)]
            )
            at_ms = _START_MS + hour[0] * 3_600_000 + self._random.randrange(3_600_000)
            yield self._tree(number, at_ms)

    def _tree(self, number: int, at: int) -> tuple[list[MessageRecord], list[DeadRecord], list[Step]]:
        some, root = self._random, root_session_id(f"tree-{number}")
        conversation = str(uuid.UUID(int=some.getrandbits(128), version=4))
        messages, dead, steps = [], [], []

        def say(kind: str, way: tuple[str, str], task: str, ms: int, parent: str = "") -> str:
            sender, to = way
            self._number += 1
            late = self._number % 100 == 0
            message_id = (
                conversation if not messages else str(uuid.UUID(int=some.getrandbits(128), version=4))
            )
            for attempt in (1, 2) if late else (1,):
                record = MessageRecord(
                    stream=f"00/{kind}/{_PRIORITY.get(kind, 'high')}",
                    entry_id=f"{ms + attempt * 50}-{self._number}",
                    message_id=message_id,
                    type=kind,
                    priority=_PRIORITY.get(kind, "high"),
                    sender=sender,
                    recipient=to,
                    correlation_id=conversation,
                    parent_id=parent,
                    task_id=task,
                    sent="2026-09-21T00:00:00Z",
                    published_ms=ms + attempt * 50,
                    attempt=attempt,
                    xml=_XML,
                    sha256=hashlib.sha256(b"%d" % self._number).hexdigest(),
                    received_ms=ms + attempt * 50 + some.randrange(5, 400),
                    status="success" if kind == "task-completion" else "",
                )
                messages.append(record)
            if self._number % 200 == 0:
                last = messages[-1]
                reason = DeadRecord(
                    dead_id=f"00-{self._number}",
                    stream=last.stream,
                    entry_id=last.entry_id,
                    rule=some.choices(_RULES, (5, 3, 2, 1))[0],
                    reason="as the rule says",
                    attempts=last.attempt,
                    at_ms=ms + 200,
                    received_ms=ms + 300,
                )
                dead.append(reason)
            return message_id

        def changed(ms: int, by: str, *lines: str) -> None:
            steps.append(Step(f"{ms}-{len(steps)}", by, "\n".join(lines)))

        def spent(ms: int, session: str, run: str, tokens: int) -> None:
            cost = f"requests=1 input_tokens={tokens} output_tokens={tokens // 4} nano_usd={tokens * 4000}"
            changed(ms, "spend", f"budget {session} {run} spent {cost}")

        def ran(ms: int, session: str, run: str, took: int, end: str, *more: str) -> int:
            wait = int(some.lognormvariate(3, 1))
            changed(ms, "start", f"run {session} {run} queued start")
            changed(
                ms + wait, "claim", f"run {session} {run} running attempt=1", f"session {session} - running"
            )
            spent(ms + wait + took // 2, session, run, some.randrange(500, 9000))
            state = "completed" if end != "failed" else "failed"
            changed(
                ms + wait + took,
                "commit",
                f"run {session} {run} {state}",
                f"session {session} - {end}",
                *more,
            )
            return ms + wait + took

        first = say("task-delegation", ("operator", "lead"), root, at)
        changed(at, "submit", f"session {root} - pending agent=lead")
        now = ran(
            at + int(some.lognormvariate(2, 0.8)),
            root,
            f"run_{root}_1",
            int(some.lognormvariate(7, 0.5)),
            "idle",
        )
        ends = []
        for child_number in range(_CHILDREN):
            child, agent = child_session_id(root, str(child_number)), some.choice(_REVIEWERS)
            callback = f"cb_{child[4:]}"
            if some.random() < 0.3:
                asked = say("query", (agent, "lead"), "", now + 500, first)
                say("reply", ("lead", agent), "", now + 500 + int(some.lognormvariate(7, 0.7)), asked)
            given = say("task-delegation", ("lead", agent), child, now + child_number, first)
            changed(
                now + child_number,
                "delegate",
                f"session {child} - pending agent={agent} parent={root}",
                f"callback {root} {callback} owed completion",
            )
            end = "failed" if some.random() < 0.02 else "finished"
            ready = now + child_number + int(some.lognormvariate(2, 0.8))
            queued = f"callback {root} {callback} queued completion"
            done = ran(ready, child, f"run_{child}_1", int(some.lognormvariate(8, 0.7)), end, queued)
            if some.random() < 0.6:
                say("status-update", (agent, "lead"), child, ready + 200, given)
            say("task-completion", (agent, "lead"), child, done, given)
            ends.append((done, callback))
        states = [(callback, some.choices(("delivered", "dead"), (200, 1))[0]) for _, callback in ends]
        lines = [f"callback {root} {callback} {state} completion" for callback, state in states]
        done = ran(
            max(ends)[0] + 5, root, f"run_{root}_2", int(some.lognormvariate(7, 0.5)), "finished", *lines
        )
        say("task-completion", ("lead", "operator"), root, done, first)
        steps.sort(key=lambda step: int(step.entry_id.partition("-")[0]))
        return messages, dead, steps


def fill(store: AuditStore, messages: int) -> None:
    """Write the trail."""
    records: list[MessageRecord] = []
    dead: list[DeadRecord] = []
    steps: list[Step] = []

    def write() -> None:
        about = [StepsRecord(stream="00/ledger/transitions", steps=steps, received_ms=1)] if steps else []
        store.add(records, dead, about)
        records.clear()
        dead.clear()
        steps.clear()

    for more, deaths, changes in Trail(messages).trees():
        records += more
        dead += deaths
        steps += changes
        if len(records) > 2000:
            write()
    write()


def figures(where: Path | str) -> dict[str, Any]:
    """Of one database; in a process of its own, so that its memory is what the report takes."""
    begun, cpu = time.perf_counter(), time.process_time()
    store = AuditStore(where, read_only=True)
    before = _peak_mb()
    report = make_report(store, made_ms=_START_MS)
    took = time.perf_counter() - begun
    counts = {"messages": report.entries, "callbacks": report.callbacks.launched}
    return {
        "database": "sqlite" if isinstance(where, Path) else "postgresql",
        **counts,
        "report_s": round(took, 2),
        "cpu_s": round(time.process_time() - cpu, 2),
        "start_mb": before,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> int:
    """The most memory that this process has had, of itself: what its parent had counts in `getrusage`."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0]) // 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--url")
    parser.add_argument("--quick", action="store_true", help="2,000 messages")
    parser.add_argument("--keep", type=Path, help="Where the SQLite file stays.")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        where = options.measure if "://" in options.measure else Path(options.measure)
        sys.stdout.write(json.dumps(figures(where)) + "\n")
        return
    messages = 2000 if options.quick else options.messages
    with tempfile.TemporaryDirectory() as folder:
        for where in [
            (options.keep or Path(folder)) / "audit.sqlite",
            *([options.url] if options.url else []),
        ]:
            store = AuditStore(where)
            fill(store, messages)
            store.close()
            command = [sys.executable, __file__, "--measure", str(where)]
            subprocess.run(command, check=True, env={**os.environ})


if __name__ == "__main__":
    main()

"""Reports on the trail: the same on both databases, what was counted is what was said, and promised is kept."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
from rich.cells import cell_len

from orchestrator.audit import AuditStore, AuditWriter, MessageRecord
from orchestrator.audit.records import DeadRecord
from orchestrator.audit.report import Report, make_report
from orchestrator.audit.report.model import Histogram
from orchestrator.audit.transitions import Step, StepsRecord
from orchestrator.config.settings import load_settings
from orchestrator.errors import InputError
from orchestrator.policy.budget import Cost
from orchestrator.streams import all_streams
from tests.commands import run_command
from tests.integration.audit.test_transitions import a_tree
from tests.kit import Kit
from tests.postgres import TrailDatabase

HOUR = 3_600_000
START = 500_000 * HOUR
HOSTILE = "</td><script>alert(1)</script>\u202egnp\x1b[31m"


def message(number: int, ms: int, **facts: Any) -> MessageRecord:
    """A message of the trail at so many milliseconds after the start."""
    given = {
        "stream": "00/message/normal",
        "entry_id": f"{START + ms}-{number}",
        "message_id": f"m{number}",
        "type": "message",
        "priority": "normal",
        "sender": "lead",
        "recipient": "reviewer",
        "correlation_id": "c1",
        "parent_id": "",
        "task_id": "",
        "sent": "",
        "published_ms": START + ms,
        "attempt": 1,
        "xml": b"x" * 10,
        "sha256": "",
        "received_ms": START + ms + 5,
        **facts,
    }
    return MessageRecord(**given)


def dead(record: MessageRecord, rule: str) -> DeadRecord:
    return DeadRecord(
        dead_id=record.entry_id,
        stream=record.stream,
        entry_id=record.entry_id,
        rule=rule,
        reason="why",
        attempts=record.attempt,
        at_ms=record.published_ms + 1,
        received_ms=record.received_ms,
    )


def steps(*lines: tuple[int, str]) -> StepsRecord:
    """Steps of the ledger, each at so many milliseconds after the start."""
    made = [Step(f"{START + ms}-{number}", "commit", text) for number, (ms, text) in enumerate(lines)]
    return StepsRecord(stream="00/ledger/transitions", steps=made, received_ms=START)


@pytest.fixture
def store(trail_database: TrailDatabase) -> AuditStore:
    """An empty audit database, of either kind."""
    return AuditStore(trail_database.where)


def report_on(store: AuditStore, **options: Any) -> Report:
    return make_report(store, made_ms=START, **options)


def test_messages_are_counted_once_and_their_retries_apart(store: AuditStore) -> None:
    """By type, priority, agent and hour; a dead letter stands in the hour of its message."""
    again = [message(7, 900 + n, message_id="again", attempt=n) for n in (1, 2, 3)]
    refused = message(8, HOUR + 1, sender="reviewer", recipient="lead", type="query", priority="high")
    rows = [message(n, n) for n in range(4)] + again + [refused]
    store.add(rows, [dead(refused, "signature-invalid"), dead(again[2], "recipient-unknown")])
    found = report_on(store)
    assert (found.entries, found.messages, found.retries, found.retried, found.attempts) == (8, 6, 2, 1, 3)
    assert (found.by_type, found.by_priority) == ({"message": 5, "query": 1}, {"normal": 5, "high": 1})
    assert (found.dead, found.delivered, found.bytes, found.conversations) == (2, 4 / 6, 80, 1)
    assert [(f.rule, f.checked_by, f.count) for f in found.failures] == [
        ("recipient-unknown", "router", 1),
        ("signature-invalid", "signature", 1),
    ]
    assert [(a.agent, a.sent, a.received, a.dead) for a in found.agents] == [
        ("lead", 5, 1, 1),
        ("reviewer", 1, 5, 1),
    ]
    assert [(b.start_ms - START, b.messages, b.retries, b.dead) for b in found.timeline] == [
        (0, 5, 2, 1),
        (HOUR, 1, 0, 1),
    ]
    assert [b.messages for b in report_on(store, by="day").timeline] == [6]
    assert report_on(store, since_ms=START + HOUR).messages == 1
    assert report_on(store, until_ms=START).messages == 0
    assert found.longest_conversation == "c1"


def test_what_looks_like_a_step_ends_no_report(store: AuditStore) -> None:
    """Anybody who can write to Redis may append one, with any text."""
    session = "ses_00" + "a" * 24
    said = [f"run {session} run_1 queued again_in_ms={number}" for number in ("", "x", "9" * 5000, "²", "-1")]
    said += [f"budget {session} - spent requests={'9' * 5000} nano_usd=7", "", "run", " " * 9]
    store.add([], transitions=[steps(*enumerate(said))])
    found = report_on(store)
    assert (found.spent.requests, found.spent.nano_usd) == (0, 7)


def test_percentiles_are_those_of_the_durations(store: AuditStore) -> None:
    """By nearest rank, of tasks for each agent, of questions and of the trail itself; the database computes them."""
    rows, number = [], 0
    for task in range(200):
        who = "reviewer" if task % 2 else "tester"
        facts = {"task_id": f"t{task}", "correlation_id": f"c{task}"}
        rows.append(message(number, task * 1000, type="task-delegation", recipient=who, **facts))
        rows.append(
            message(number + 1, task * 1001, type="task-completion", sender=who, recipient="lead", **facts)
        )
        number += 2
    rows += [
        message(number, 0, type="query", message_id="q1"),
        message(number + 1, 70, type="reply", parent_id="q1"),
        message(number + 2, 90, type="reply", parent_id="q1"),
        message(number + 3, 0, type="query", message_id="q2"),
    ]
    store.add(rows)
    found = report_on(store)
    hops = {hop.hop: hop.times for hop in found.hops}
    of_tasks = hops["task"]
    assert (of_tasks.count, of_tasks.p50_ms, of_tasks.p95_ms, of_tasks.p99_ms, of_tasks.max_ms) == (
        200,
        99,
        189,
        197,
        199,
    )
    assert (hops["query-reply"].count, hops["query-reply"].p50_ms) == (1, 70)
    assert (hops["published-audited"].count, hops["published-audited"].p99_ms) == (404, 5)
    tasks = {row.agent: row.tasks for row in found.agents}
    assert (tasks["reviewer"].count, tasks["reviewer"].p50_ms, tasks["tester"].p50_ms) == (100, 99, 98)
    late = report_on(store, since_ms=START + 100_000)
    assert next(hop.times.count for hop in late.hops if hop.hop == "task") == 100


def test_a_histogram_keeps_percentiles_within_a_thousandth() -> None:
    """Whatever the durations, it keeps few numbers."""
    histogram, durations = Histogram(), [(n * n * 7919) % 10_000_019 for n in range(1, 20_001)]
    for duration in durations:
        histogram.add(duration)
    histogram.add(-5)
    found, cuts = histogram.percentiles(), quantiles(durations, n=100)
    assert found.count == 20_001
    for measured, exact in ((found.p50_ms, cuts[49]), (found.p95_ms, cuts[94]), (found.p99_ms, cuts[98])):
        assert measured == pytest.approx(exact, rel=0.002)
    assert len(histogram._counts) < 30_000
    assert Histogram().percentiles().p50_ms is None


def test_promised_is_kept_by_the_totals_of_the_parents(kit: Kit, store: AuditStore) -> None:
    """Launched = delivered + pending + dead, as the ledger counts; the waits of real transitions are measured."""
    root = a_tree(kit)
    waiting, done, _ = kit.parent_of("a", "b", seed="waiting")
    kit.finish(done)
    AuditWriter(kit.redis, store, consumer="w", sources=all_streams()).run_once()
    found = report_on(store)
    totals = [kit.ledger.session(parent) for parent in (root, waiting)]
    promised = found.callbacks
    assert promised.launched == sum(s.launched for s in totals) == 5
    assert promised.delivered == sum(s.delivered for s in totals)
    assert promised.dead == sum(s.dead for s in totals)
    assert (promised.carried, promised.pending) == (0, 2)
    assert [(row.agent, row.launched) for row in found.callbacks_by_agent] == [("lead", 5)]
    assert {hop.hop for hop in found.hops if hop.times.count} >= {
        "published-routed",
        "ready-claimed",
        "claimed-answered",
        "answered-delivered",
        "promised-delivered",
    }
    assert (found.sessions["begun"], found.sessions["failed"], found.sessions["stopped"]) == (7, 1, 1)


def test_callbacks_from_before_the_time_are_carried(store: AuditStore) -> None:
    """What was promised earlier and kept in it balances; a callback that nobody was promised counts when it is."""
    earlier = [(0, "session ses_1 - pending agent=lead"), (1, "callback ses_1 cb_1 owed completion")]
    within = [
        (HOUR, "callback ses_1 cb_1 queued completion\ncallback ses_1 cb_2 none completion"),
        (HOUR + 50, "callback ses_1 cb_1 claimed completion\ncallback ses_1 cb_2 queued completion"),
        (HOUR + 90, "callback ses_1 cb_1 delivered completion"),
        (HOUR + 91, "callback ses_1 cb_3 none completion\nrun ses_1 run_1 queued again_in_ms=500"),
        (HOUR + 601, "run ses_1 run_1 running attempt=2 worker=w"),
    ]
    store.add(
        [message(1, 0, task_id="ses_1", type="task-delegation", recipient="a lead")],
        [],
        [steps(*earlier, *within)],
    )
    row = report_on(store, since_ms=START + HOUR).callbacks_by_agent[0]
    assert (row.agent, row.carried, row.launched, row.delivered, row.pending) == ("a lead", 1, 1, 1, 1)
    whole = report_on(store)
    hops = {hop.hop: hop.times for hop in whole.hops}
    assert hops["promised-delivered"].p50_ms == pytest.approx(HOUR + 89, rel=0.001)
    assert hops["answered-delivered"].p50_ms == 90
    assert (whole.runs_retried, hops["ready-claimed"].p50_ms) == (1, 10)
    assert whole.callbacks_by_agent[0].agent == "lead"


def test_what_was_spent_is_told_by_agent_and_hour(store: AuditStore) -> None:
    """As the ledger wrote it down, call by call."""
    cost = "spent requests=2 input_tokens=30 output_tokens=4 nano_usd=1500000000"
    lines = [
        (0, "session ses_1 - pending agent=lead parent=ses_0"),
        (5, f"budget ses_1 r1 {cost}"),
        (HOUR, f"budget ses_1 r2 {cost}"),
    ]
    store.add([], [], [steps(*lines)])
    found = report_on(store)
    assert found.spent == Cost(requests=4, input_tokens=60, output_tokens=8, nano_usd=3_000_000_000)
    assert [(row.agent, row.cost.usd) for row in found.spent_by_agent] == [("lead", 3.0)]
    assert [bucket.cost.tokens for bucket in found.timeline] == [34, 34]


def test_a_report_says_how_far_it_is(store: AuditStore) -> None:
    """Each walk by name, then the transitions by rows."""
    store.add([message(1, 0)], [], [steps((0, "session ses_1 - pending agent=lead"))])
    said: list[tuple[str, int, int]] = []
    report_on(store, progress=lambda what, done, whole: said.append((what, done, whole)))
    assert [done for _, done, _ in said[:-1]] == [1, 2, 3, 4, 5, 6]
    assert said[-1] == ("reading what the ledger changed", 1, 1)


def test_a_time_with_too_many_hours_is_refused(store: AuditStore) -> None:
    """An entry may claim any time; days are always few enough, and empty ones take no room."""
    store.add([message(1, 0), message(2, 20_000 * HOUR)])
    assert len(report_on(store).timeline) == 2
    with pytest.raises(InputError, match="20000 hours is too long for a report; choose --by day"):
        report_on(store, by="hour")


def test_the_text_fits_80_columns_and_acts_on_no_terminal(store: AuditStore, tmp_path: Path) -> None:
    """Names of any length, script, markup or control; also in a file."""
    rows = [
        message(1, 0, sender=HOSTILE),
        message(2, 1, sender="審" * 90, type="query"),
        message(3, 2, sender="n" * 200),
    ]
    lines = [(0, f"session ses_1 - pending agent={HOSTILE}"), (1, "callback ses_1 cb_1 owed completion")]
    store.add(rows, [dead(rows[0], HOSTILE)], [steps(*lines)])
    said = audit(tmp_path, "report", "--out", str(tmp_path / "report.txt"))
    assert said == f"wrote {tmp_path / 'report.txt'}\n"
    text = (tmp_path / "report.txt").read_text(encoding="utf-8")
    assert max(cell_len(line) for line in text.splitlines() if not line.startswith("of ")) <= 80
    assert not {"\x1b", "\u202e"} & set(text)
    assert r"\u202egnp" in text
    found = json.loads(audit(tmp_path, "report", "--format", "json"))
    assert HOSTILE in {row["agent"] for row in found["agents"]}


def audit(folder: Path, *words: str) -> str:
    """What a command says of the trail of a data folder."""
    result = run_command("audit", *words, settings=load_settings(data=folder))
    assert result.exit_code == 0, result.output
    return result.output

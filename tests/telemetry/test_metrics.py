"""Metrics of real runs: answers, failures, lost workers, dead letters, budgets, and an exporter that begins again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest

from orchestrator import agent, model_agent
from orchestrator.audit import AuditWriter, build_writer
from orchestrator.audit.transitions import Step
from orchestrator.display.text import word
from orchestrator.errors import SessionFailed
from orchestrator.ledger import EndedRun, Outcome, PollRequest, Slot
from orchestrator.policy.budget import Budget
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.streams import TRANSITIONS, Portion, all_streams, ledger_streams
from orchestrator.telemetry import Exporter, exposition, registry_of
from orchestrator.telemetry.catalogue import BY_NAME, METRICS, MOST_VALUES, OTHER
from orchestrator.telemetry.fold import Fold
from orchestrator.telemetry.totals import Totals
from orchestrator.testing import Call, Say, Script, scripted_model
from tests.kit import Kit, carried
from tests.telemetry.conftest import Watched, samples_of, total
from tests.waiting import wait_until

Watch = Callable[..., Watched]


@agent("leaf")
def leaf(ctx) -> str:  # type: ignore[no-untyped-def]
    return "done"


@agent("lead")
def lead(ctx) -> str:  # type: ignore[no-untyped-def]
    if not ctx.callbacks:
        for number in range(3):
            ctx.delegate("waits" if ctx.prompt == "wait" else "leaf", f"part {number}")
    return "all"


@agent("waits")
def waits(ctx) -> str:  # type: ignore[no-untyped-def]
    while True:
        ctx.check()
        time.sleep(0.02)


@agent("asks")
def asks(ctx) -> str:  # type: ignore[no-untyped-def]
    ctx.ask_later("which one?")
    return "asked"


@agent("careful")
def careful(ctx) -> str:  # type: ignore[no-untyped-def]
    return f"{ctx.request_approval('wipe', {'path': '/srv'}).approved}"


@agent("wonders")
def wonders(ctx) -> str:  # type: ignore[no-untyped-def]
    return f"it is {ctx.ask('which one?')}"


@agent("sleeps")
def sleeps(ctx) -> str:  # type: ignore[no-untyped-def]
    ctx.sleep(3600)
    return "slept"


@agent("stumbles", attempts=2, backoff_s=3600)
def stumbles(ctx) -> str:  # type: ignore[no-untyped-def]
    raise ValueError("not yet")


@agent("broken")
def broken(ctx) -> str:  # type: ignore[no-untyped-def]
    raise ValueError("no")


def test_a_tree_is_counted(watch: Watch) -> None:
    """Runs, callbacks, messages and times of a lead with three children; nothing is unaccounted for."""
    stack = watch(lead, leaf)
    session = stack.run("lead", "go").session
    stack.until(3, "orchestra_callbacks_total", state="delivered")
    stack.calm()
    samples = stack.samples()
    of = partial(total, samples)
    runs = len([run for member in stack.ledger.tree(session) for run in stack.ledger.runs(member.id)])
    assert of("orchestra_runs_total", end="completed") == runs
    assert of("orchestra_runs_total", agent="leaf", end="completed") == 3
    assert of("orchestra_callbacks_total", state="launched") == 3
    assert of("orchestra_callbacks_total", state="dead") == 0
    assert of("orchestra_callbacks_pending") == 0
    assert of("orchestra_promise_gap") == 0
    assert of("orchestra_messages_total", type="task-delegation", verdict="accepted") == 4
    assert of("orchestra_messages_total", verdict="dead") == 0
    assert of("orchestra_run_seconds_count", agent="leaf") == 3
    assert of("orchestra_queue_wait_seconds_count") == runs
    assert of("orchestra_wake_seconds_count") == 3
    assert of("orchestra_route_seconds_count") == 4
    assert 0 < of("orchestra_wake_seconds_sum") < 60
    assert of("orchestra_runs_ready") == of("orchestra_runs_running") == 0
    assert of("orchestra_audit_backlog_oldest_seconds") == 0
    (version,) = samples["orchestra_build_info"]
    assert version[0][0] == "version"
    buckets = [v for key, v in samples["orchestra_run_seconds_bucket"].items() if ("agent", "leaf") in key]
    assert buckets == sorted(buckets)
    assert buckets[-1] == 3
    assert all(name in BY_NAME or name.rsplit("_", 1)[0] in BY_NAME for name in samples)
    assert session not in stack.text()


def test_failures_and_dead_letters_are_counted(watch: Watch) -> None:
    """A run that fails again and again counts each attempt; what is no message is dead by the rule that failed."""
    stack = watch(broken)
    with pytest.raises(SessionFailed):
        stack.run("broken", "go")
    stack.parts.redis.xadd(keys.messages(0, "task-delegation", "high"), {"envelope": b"<nonsense"})
    stack.until(1, "orchestra_dead_letters_total")
    stack.calm()
    attempts = sum(
        max(1, len(run.tries)) for s in stack.parts.reader.roots(0) for run in stack.ledger.runs(s.id)
    )
    assert stack.of("orchestra_runs_total", agent="broken", end="failed") == attempts
    assert stack.of("orchestra_dead_letters_total") == 1
    assert stack.of("orchestra_messages_total", type="task-delegation", verdict="dead") == 1
    assert stack.of("orchestra_promise_gap") == 0


def test_an_exporter_that_begins_again_counts_nothing_twice_and_loses_nothing(watch: Watch) -> None:
    """What happened while no exporter ran is counted by the next one, with its file and without."""
    stack = watch(lead, leaf)
    stack.run("lead", "one")
    stack.until(3, "orchestra_callbacks_total", state="delivered")
    stack.calm()
    before = stack.samples()
    stack.exporter.close()
    stack.run("lead", "two")
    stack.restart()
    stack.until(6, "orchestra_callbacks_total", state="delivered")
    stack.calm()
    counted = _counters(stack)
    for name, rows in before.items():
        if name.endswith(("_total", "_count", "_bucket")):
            for key, value in rows.items():
                assert counted[name][key] >= value, (name, key)
    stack.restart()
    assert _counters(stack) == counted
    for file in (stack.settings.data / "metrics").iterdir():
        file.unlink()
    stack.restart_without_keeping()
    assert _counters(stack) == counted
    for file in (stack.settings.data / "metrics").iterdir():
        file.write_text("{}")
    stack.restart_without_keeping()
    assert _counters(stack) == counted


def _counters(stack: Watched) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    samples = stack.samples()
    return {name: rows for name, rows in samples.items() if name.endswith(("_total", "_count", "_bucket"))}


def test_a_killed_worker_is_a_lost_lease(watch: Watch) -> None:
    """The run that it held ends as lost, and completes in another worker; the promise holds."""
    stack = watch(lead, leaf, slots=0)
    session = stack.client.submit("leaf", "go").id
    wait_until(lambda: stack.ledger.session(session).run, "a run")
    slot = Slot(name="gone", worker="gone", agents=("leaf",))
    stack.ledger.claim_next(0, PollRequest(slot=slot, claim="clm_gone"))
    stack.until(1, "orchestra_runs_running", agent="leaf")
    stack.until(1, "orchestra_leases_lost_total", cause="lost")
    assert stack.of("orchestra_runs_total", agent="leaf", end="lost") == 1
    assert stack.of("orchestra_runs_ready", agent="leaf") == 1
    assert stack.of("orchestra_sessions_waiting", reason="slot") == 1
    assert stack.of("orchestra_oldest_pending_seconds", kind="run") >= 0
    assert stack.of("orchestra_promise_gap") == 0


def test_a_callback_that_the_ledger_loses_shows_as_a_gap(watch: Watch) -> None:
    """Somebody takes a callback out of the counts of its session: ledger and trail differ from then on."""
    stack = watch(lead, leaf, slots=0)
    session = stack.client.submit("lead", "go").id
    wait_until(lambda: stack.ledger.session(session).run, "a run")
    stack.calm()
    assert stack.of("orchestra_promise_gap") == 0
    stack.parts.redis.hincrby(ledger_keys.session(session), "launched", 1)
    stack.client.stop(session)
    stack.calm()
    for _ in range(5):
        time.sleep(0.05)
        stack.samples()
    assert stack.of("orchestra_promise_gap") == 1


@pytest.mark.parametrize("how", ["stop", "delete"])
def test_the_promise_holds_when_a_tree_is_ended_from_outside(watch: Watch, how: str) -> None:
    """Stopped or deleted with children at work, their callbacks are dead and none is missing."""
    stack = watch(lead, waits)
    sessions = [stack.client.submit("lead", "wait").id for _ in range(3)]
    stack.until(9, "orchestra_callbacks_pending")
    for session in sessions:
        getattr(stack.client, how)(session)
    stack.until(0, "orchestra_callbacks_pending")
    stack.calm()
    samples = stack.samples()
    launched, delivered, dead = (
        total(samples, "orchestra_callbacks_total", state=state)
        for state in ("launched", "delivered", "dead")
    )
    assert launched == 9 == delivered + dead
    for _ in range(5):
        assert stack.of("orchestra_promise_gap") == 0


def test_what_sessions_wait_for_is_counted_by_reason(watch: Watch) -> None:
    stack = watch(lead, waits, asks)
    waiting = stack.client.submit("lead", "wait").id
    stack.client.submit("asks", "go")
    stack.client.submit("waits", "later", at=datetime.now(UTC) + timedelta(hours=1))
    stack.until(1, "orchestra_sessions_waiting", reason="children")
    stack.until(1, "orchestra_sessions_waiting", reason="question")
    stack.until(1, "orchestra_sessions_waiting", reason="scheduled")
    stack.client.stop(waiting)  # for whose children the end of the stack would wait
    stack.until(0, "orchestra_sessions_waiting", reason="children")


def test_who_waits_without_a_slot_is_counted_by_what_for(watch: Watch) -> None:
    """Runs that gave up their slots wait for a person, a time or another try; a model's session for its approval."""
    script = Script(Say(calls=[Call("wipe", path="/srv")]), Say("done"))

    def wipe(path: str) -> str:
        """Wipe a folder."""
        return f"{path} is empty"

    wipes = model_agent("wipes", model=scripted_model(script), tools=[wipe], approve=["wipe"])
    stack = watch(careful, wonders, sleeps, stumbles, wipes)
    for name in ("careful", "wonders", "sleeps", "stumbles", "wipes"):
        stack.client.submit(name, "go")
    stack.until(2, "orchestra_approvals_open")
    for reason, number in {"approval": 2, "question": 1, "scheduled": 1, "retry": 1, "children": 0}.items():
        stack.until(number, "orchestra_sessions_waiting", reason=reason)
    stack.restart()
    assert stack.of("orchestra_sessions_waiting", reason="approval") == 2
    for asked in stack.client.approvals():
        stack.client.approve(asked.id)
    stack.until(0, "orchestra_sessions_waiting", reason="approval")


def test_tokens_money_and_refusals_are_counted(watch: Watch) -> None:
    """By agent and model; a call that does not fit into its budget is a refusal."""
    script = Script(Say("<response>ok</response>"), Say("<response>ok</response>"))
    thinker = model_agent("thinker", model=scripted_model(script), instructions="You think.")
    stack = watch(thinker)
    stack.run("thinker", "go")
    stack.calm()
    used = sum((s.used.input_tokens + s.used.output_tokens) for s in stack.parts.reader.roots(0))
    assert used > 0
    assert stack.of("orchestra_tokens_total", agent="thinker") == used
    (key,) = {dict(k)["model"] for k in stack.samples()["orchestra_tokens_total"]}
    assert key
    with pytest.raises(SessionFailed):
        stack.run("thinker", "go", budget=Budget(tokens=1))
    # The whole answer, and the shortest.
    stack.until(2, "orchestra_budget_refusals_total", kind="tokens")


@pytest.mark.parametrize(
    "name", ['a"b', "a\\b", "naïve-名", "x parent=ses_0", "a\u202eb", "{}", "", "x" * 5000]
)
def test_no_name_breaks_the_exposition(kit: Kit, name: str) -> None:
    """No agent is called so. Whatever else stands in a trail comes out of the exposition as it was."""
    fold = Fold()
    lines = f"session ses_1 - pending agent={name} parent=\nrun ses_1 run_1 queued start"
    fold.apply("00/ledger/transitions", [Step("1-1", "launch", lines)], lambda _: {})
    ends = [
        Step("2-1", "claim", "run ses_1 run_1 running attempt=1 worker=w"),
        Step("3-1", "commit", "run ses_1 run_1 completed"),
    ]
    fold.apply("00/ledger/transitions", ends, lambda _: {})
    exporter = Exporter(kit.parts, keep_s=0)
    exporter._trail.fold = fold
    samples = samples_of(exposition(registry_of(exporter))[1].decode())
    assert total(samples, "orchestra_runs_total", agent=name, end="completed") == 1
    assert Fold.from_json(json.loads(json.dumps(fold.to_json()))).to_json() == fold.to_json()


def test_no_label_has_more_values_than_a_database_can_bear() -> None:
    """Names that come after the first 500 count together."""
    totals = Totals()
    for number in range(2 * MOST_VALUES):
        totals.count("orchestra_runs_total", f"agent-{number}", "completed")
    assert len(list(totals.counters("orchestra_runs_total"))) == MOST_VALUES + 1
    assert totals.of("orchestra_runs_total", OTHER, "completed") == MOST_VALUES


def write_all(writer: AuditWriter) -> None:
    """Let an audit writer write what there is to write."""
    while writer.run_once():
        pass


def test_what_a_killed_audit_writer_held_is_counted_in_its_turn(kit: Kit) -> None:
    """Written after what followed it: until then nothing that followed is counted, and no callback seems lost."""
    exporter = Exporter(kit.parts, keep_s=0)
    killed, other = (build_writer(kit.parts, consumer=name) for name in ("killed", "other"))
    root, parent = kit.given_run("root")
    children = [kit.delegate(parent, f"child {number}") for number in range(3)]
    assert killed._consumer.read([Portion(ledger_streams(TRANSITIONS), 1000)])
    kit.commit(parent.claim)
    for child in children:
        kit.finish(child)
    kit.commit(kit.resume(root).claim)
    other.run_once()

    def of(name: str, **labels: str) -> float:
        return total(samples_of(exposition(registry_of(exporter))[1].decode()), name, **labels)

    assert of("orchestra_callbacks_total", state="delivered") == of("orchestra_promise_gap") == 0
    exporter.close()
    exporter = Exporter(kit.parts, keep_s=0)
    assert of("orchestra_callbacks_total", state="delivered") == 0
    last = AuditWriter(kit.redis, other._store, consumer="last", sources=all_streams(), reclaim_idle_ms=0)
    write_all(last)
    for state, number in (("launched", 3), ("delivered", 3), ("dead", 0)):
        assert of("orchestra_callbacks_total", state=state) == number
    assert of("orchestra_callbacks_pending") == of("orchestra_promise_gap") == 0
    assert of("orchestra_oldest_pending_seconds", kind="run") == 0
    assert of("orchestra_runs_total", end="completed") == of("orchestra_run_seconds_count") == 5
    assert of("orchestra_wake_seconds_count") == 3


def test_a_trail_that_is_behind_is_no_gap(kit: Kit) -> None:
    """The ledger goes on while no writer does; what it has then is not compared with what the trail had before."""
    writer, exporter = build_writer(kit.parts, consumer="a"), Exporter(kit.parts, keep_s=0)

    def gaps() -> set[float]:
        texts = [exposition(registry_of(exporter))[1].decode() for _ in range(6)]
        return {total(samples_of(text), "orchestra_promise_gap") for text in texts}

    root, *children = kit.parent_of(*"abc")
    write_all(writer)
    for child in children:
        kit.finish(child)
    kit.commit(kit.resume(root).claim)
    assert gaps() == {0}
    write_all(writer)
    assert gaps() == {0}
    kit.redis.hincrby(ledger_keys.session(root), "launched", 1)
    assert gaps() == {0}  # nobody has looked since
    kit.ledger.stop(root, "enough")
    kit.redis.xadd(keys.transitions(0), {"test": f"session {root} - finished"})
    write_all(writer)
    assert gaps() == {0, 1}


def test_a_run_that_waits_for_a_provider_is_counted(kit: Kit) -> None:
    """It gave up its slot; a name of several words is one label."""
    writer, exporter = build_writer(kit.parts, consumer="a"), Exporter(kit.parts, keep_s=0)
    _, held = kit.given_run("root")
    parked = Outcome(status="parked", text="waits", parked_ms=60_000, provider=word("my own\nprovider"))
    kit.ledger.commit(EndedRun(held.claim, parked, make_envelope=carried))
    write_all(writer)
    samples = samples_of(exposition(registry_of(exporter))[1].decode())
    assert total(samples, "orchestra_provider_waits_total", provider="my_own\\nprovider") == 1
    assert total(samples, "orchestra_runs_total", end="parked") == 1
    assert total(samples, "orchestra_sessions_waiting", reason="provider") == 1
    assert total(samples, "orchestra_leases_lost_total") == 0


def test_every_metric_of_the_table_is_there(watch: Watch) -> None:
    """With its type and its help, on a stack in which nothing has happened."""
    text = watch(leaf).text()
    for metric in METRICS:
        kind = metric.kind
        assert f"# TYPE {metric.name} {kind}\n" in text
        assert f"# HELP {metric.name} {metric.help}\n" in text

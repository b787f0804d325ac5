"""A run that failed is tried again after a wait that the ledger keeps; how each try ended can be read afterwards."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Retry, machine
from orchestrator.agents.loader import load_agents
from orchestrator.cli.render import tree_lines
from orchestrator.client.history import history
from orchestrator.errors import InputError
from orchestrator.ids import new_claim_id
from orchestrator.ledger import Run, RunRef, RunState, SessionState
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution.ending import release_runs_of
from tests.examined import doctor_of
from tests.kit import Kit

NOW = 1_800_000_000_000


def failing(kit: Kit, **options: object) -> RunRef:
    """A started session whose agent always fails; the time of its ledger stands still."""
    kit.ledger.set_time(NOW)

    @kit.agent("flaky", **options)
    def flaky(ctx: Context) -> None:
        if ctx.prompt.startswith("after "):
            raise Retry("busy", after_s=float(ctx.prompt.removeprefix("after ")))
        raise ValueError(f"no luck {ctx.attempt}")

    return kit.start(kit.submit("flaky", str(options.get("title", "go"))))


def run_of(kit: Kit, dispatch: RunRef) -> Run:
    run = kit.ledger.run(dispatch.run)
    assert run is not None
    return run


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({"attempts": 9, "backoff_s": 10, "backoff_max_s": 35}, [10, 20, 35, 35]),
        ({"attempts": 9, "backoff_s": 10, "backoff": "linear"}, [10, 20, 30, 40]),
        ({"attempts": 9}, [0.001, 0.002, 0.004]),
    ],
)
def test_the_waits_grow_as_the_agents_definition_says(
    kit: Kit, options: dict[str, object], seconds: list[float]
) -> None:
    dispatch = failing(kit, **options)
    now = NOW
    for wait_s in seconds:
        assert kit.execute(dispatch) == "retry"
        run = run_of(kit, dispatch)
        assert wait_s * 500 - 1 <= run.claimable_ms - now <= wait_s * 1000 + 1
        now = run.claimable_ms
        kit.ledger.set_time(now)


def test_a_run_that_waits_is_in_nobodys_hands_until_it_is_due(kit: Kit) -> None:
    """No slot sleeps for it, no message that comes early begins it, and the sweep sends it when its time has come."""
    dispatch = failing(kit, attempts=2, backoff_s=100)
    assert kit.execute(dispatch) == "retry"
    due = run_of(kit, dispatch).claimable_ms
    kit.ledger.set_time(due - 1)
    assert kit.execute(dispatch) == "refused"
    assert kit.ledger.sweep.undispatched(0) == []
    kit.ledger.set_time(due)
    assert kit.ledger.sweep.undispatched(0) == [dispatch.run]
    assert kit.ledger.sweep.make_ready(dispatch.run) is not None
    assert kit.execute(dispatch) == "failed"


def test_an_exception_may_ask_for_a_delay(kit: Kit) -> None:
    """Longer than the sweep looks ahead, too; a clock that goes back does not make it longer."""
    dispatch = failing(kit, attempts=3, title="after 7200")
    assert kit.execute(dispatch) == "retry"
    assert run_of(kit, dispatch).claimable_ms == NOW + 7_200_000
    for minutes in (0, 5, 60, 119):
        kit.ledger.set_time(NOW + minutes * 60_000)
        for run in kit.ledger.sweep.undispatched(0):
            assert kit.ledger.sweep.make_ready(run) is None
    kit.ledger.set_time(NOW - 86_400_000)
    for run in kit.ledger.sweep.undispatched(0):
        assert kit.ledger.sweep.make_ready(run) is None
    assert run_of(kit, dispatch).claimable_ms == NOW - 86_400_000 + 7_200_000
    kit.ledger.set_time(NOW - 86_400_000 + 7_200_000)
    assert kit.ledger.sweep.undispatched(0) == [dispatch.run]
    assert kit.ledger.sweep.make_ready(dispatch.run) is not None
    assert kit.execute(dispatch) == "retry"
    assert run_of(kit, dispatch).failures == 2


@pytest.mark.parametrize("after_s", [-1, float("nan"), float("inf"), "soon", 10**9])
def test_a_delay_that_is_none_is_refused(after_s: object) -> None:
    with pytest.raises(InputError, match="give a number of seconds"):
        Retry("later", after_s=after_s)  # type: ignore[arg-type]


def test_a_delay_survives_the_way_to_another_process() -> None:
    back = pickle.loads(pickle.dumps(Retry("later", after_s=3)))
    assert (back.args, back.after_s, str(back)) == (("later",), 3, "later")


def test_a_stop_ends_a_run_that_waits(kit: Kit) -> None:
    dispatch = failing(kit, attempts=3, backoff_s=1000)
    kit.execute(dispatch)
    assert kit.ledger.stop(dispatch.session, "enough").outcome == "ended"
    assert run_of(kit, dispatch).state is RunState.STOPPED
    assert kit.ledger.sweep.undispatched(0) == []


def test_why_names_the_wait_and_the_attempt(kit: Kit) -> None:
    dispatch = failing(kit, attempts=3, backoff_s=1000)
    kit.execute(dispatch)
    _, wait, _ = doctor_of(kit).why(dispatch.session)
    assert f"{dispatch.run} waits for its attempt 2, 1 of 3 allowed failures so far" in wait.waits_for
    assert "ValueError: no luck 1" in wait.waits_for
    assert wait.by.startswith("2027-01-15T08:")
    (line,) = tree_lines(kit.ledger.tree(dispatch.session))
    assert "attempt 1 of 3 failed: ValueError: no luck 1" in line.text
    assert kit.ledger.session(dispatch.session).trouble.startswith(
        "attempt 1 of 3 failed: ValueError: no luck 1"
    )


def test_every_attempt_is_in_the_history_with_its_reason_and_wait(kit: Kit) -> None:
    dispatch = failing(kit, attempts=3, backoff_s=0.001)
    while run_of(kit, dispatch).state is RunState.QUEUED:
        kit.ledger.set_time(max(kit.ledger.server_ms(), run_of(kit, dispatch).claimable_ms))
        kit.execute(dispatch)
    told = [event for event in history(kit.ledger, dispatch.session) if event.what == "attempt"]
    assert [f"ValueError: no luck {n}" in event.text for n, event in enumerate(told, 1)] == [True] * 3
    assert ["tried again" in event.text for event in told] == [True, True, False]
    for event in told:
        assert event.detail.startswith("Traceback (most recent call last):")
        assert "in flaky" in event.detail
        assert "runner.py" not in event.detail, "it begins in the agent's own code"


def test_what_is_kept_of_attempts_is_bounded(kit: Kit) -> None:
    @kit.agent("loud", attempts=40, backoff_max_s=0.001)
    def loud(ctx: Context) -> None:
        raise ValueError("x" * 100_000 + "\ud800")

    dispatch = kit.start(kit.submit("loud"))
    while run_of(kit, dispatch).state is RunState.QUEUED:
        kit.again(dispatch)
    run = run_of(kit, dispatch)
    assert (len(run.tries), run.tries[-1].attempt) == (20, 40)
    assert sum(len(tried.reason + tried.traceback) for tried in run.tries) < 100_000
    first = next(e for e in history(kit.ledger, dispatch.session) if e.what == "run")
    assert first.text == "20 earlier tries are not kept"


def test_a_run_that_goes_well_in_the_end_is_in_no_trouble(kit: Kit) -> None:
    @kit.agent("stumbler", attempts=2)
    def stumbler(ctx: Context) -> str:
        if ctx.attempt == 1:
            raise ValueError("no luck")
        return "done"

    session = kit.begin("stumbler", ends="retry")
    assert kit.again(session) == "finished"
    assert kit.ledger.session(session).trouble == ""


def test_a_run_whose_process_dies_has_a_limit_of_its_own(kit: Kit) -> None:
    """A lost lease counts for another one, and a claim that somebody else has by now is left alone."""
    dispatch = failing(kit)
    ledger = kit.ledger

    def claim() -> None:
        ledger.set_time(max(ledger.server_ms(), run_of(kit, dispatch).claimable_ms))
        assert ledger.claim(dispatch.run, new_claim_id(), session_id=dispatch.session, worker="w")

    claim()
    (old,) = ledger.sweep.leases(0)
    assert ledger.release(old, died="signal 9", wait_ms=500) == "queued"
    assert run_of(kit, dispatch).claimable_ms == NOW + 500
    assert warnings(kit) == [f"{dispatch.run} of agent 'flaky' is queued, and its worker process died once"]
    claim()
    assert ledger.release(old, died="signal 9") == "moved"
    for _ in range(5):
        assert ledger.release(ledger.sweep.leases(0)[0]) == "queued"
        claim()
    assert ledger.release(ledger.sweep.leases(0)[0], died="signal 9") == "queued"
    claim()
    assert ledger.release(ledger.sweep.leases(0)[0], died="exit code 1") == "ended"
    session = ledger.session(dispatch.session)
    assert session.state is SessionState.FAILED
    assert session.reason == "its worker process died 3 times, at last with exit code 1"
    assert warnings(kit) == [
        f"{dispatch.run} of agent 'flaky' is failed, and its worker process died 3 times"
    ]
    hows = [tried.how for tried in run_of(kit, dispatch).tries]
    assert hows == ["died", *["lost"] * 5, "died", "died"]


def test_a_process_that_dies_loses_all_its_runs_also_if_a_session_is_deleted(kit: Kit) -> None:
    claim = f"{new_claim_id()}@{machine.mark_of(12_345)}"
    kit.agent("solo")(lambda ctx: "done")
    for _ in range(2):
        dispatch = kit.start(kit.submit("solo"))
        assert kit.ledger.claim(dispatch.run, claim, session_id=dispatch.session, worker="w")
    first, second = kit.ledger.sweep.leases(0)
    kit.redis.delete(ledger_keys.session(first.session))
    release_runs_of(12_345, kit.runtime, "signal 9")
    run = kit.ledger.run(second.run)
    assert (run.state, run.died) == (RunState.QUEUED, 1)


def test_a_heartbeat_in_between_keeps_no_run_with_a_process_that_ends(kit: Kit) -> None:
    """It would count as a death of that run, which had no part in it."""
    kit.agent("solo")(lambda ctx: "done")
    dispatch = kit.start(kit.submit("solo"))
    held = kit.ledger.claim(
        dispatch.run, f"{new_claim_id()}@{machine.own_mark()}", session_id=dispatch.session, worker="w"
    )
    beats = iter(range(2))

    class Beating(dict[str, Any]):
        """Asked for an agent by who releases its run, whose heart still beats."""

        def get(self, name: str, default: Any = None) -> Any:
            if next(beats, None) is not None:
                kit.ledger.renew(held.claim)
            return super().get(name, default)

    release_runs_of(os.getpid(), replace(kit.runtime, catalogue=Beating(kit.catalogue)))
    run = kit.ledger.run(dispatch.run)
    assert (run.state, run.lost, run.died) == (RunState.QUEUED, 1, 0)


def warnings(kit: Kit) -> list[str]:
    """What the doctor says of processes that died."""
    found = doctor_of(kit).examine(watch_leases=False).findings
    return [f.message.partition(":")[0] for f in found if f.rule == "process-died"]


def test_agents_files_set_the_waits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "flaky_waits.py").write_text("def work(ctx): ...\n", encoding="utf-8")
    file = tmp_path / "mine.toml"
    file.write_text(
        "[agents.flaky]\nfunction = 'flaky_waits:work'\nattempts = 3\n"
        "backoff = 'linear'\nbackoff_s = 2.5\nbackoff_max_s = 60\n",
        encoding="utf-8",
    )
    record = load_agents([str(file)])["flaky"].record
    assert (record.backoff, record.backoff_s, record.backoff_max_s) == ("linear", 2.5, 60)

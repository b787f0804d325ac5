"""A run that sleeps frees its slot, is made ready by the reaper in time, and keeps to the moment of its first try."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from orchestrator import agent
from orchestrator.client.history import history
from orchestrator.doctor import Doctor
from orchestrator.errors import InputError, RunParked
from orchestrator.ledger import RunRef, SessionState
from orchestrator.policy.callback import Callback
from orchestrator.testing.stack import InProcessStack
from orchestrator.worker.context.context import Context
from tests.integration.workers.conftest import StackHarness

from .test_steps import Calls, calls, lose_worker, result

__all__ = ["calls"]

NOW = 1_800_000_000_000


def sweep(stage: StackHarness, dispatch: RunRef) -> bool:
    """Sweep as the reaper does at the ledger's time; whether it made the run ready."""
    stage.ledger.redis.zrem("ao:{00}:ready:" + dispatch.agent, dispatch.run)
    for run in stage.ledger.sweep.undispatched(0):
        stage.ledger.sweep.make_ready(run)
    return stage.ledger.redis.zscore("ao:{00}:ready:" + dispatch.agent, dispatch.run) is not None


def parks(stage: StackHarness) -> tuple[str, RunRef]:
    """A session of the lead whose first try has parked, and its run."""
    dispatch = stage.start(session := stage.submit("lead"))
    assert stage.execute(dispatch) == "parked"
    return session, dispatch


@pytest.mark.parametrize("how", ["sleep", "sleep_until"])
def test_a_run_sleeps_without_its_slot_and_goes_on_in_time(
    stage: StackHarness, calls: Calls, how: str
) -> None:
    stage.ledger.set_time(NOW)

    @stage.agent("lead")
    def lead(ctx: Context) -> str:
        ctx.step("plan", calls.of("plan"))
        if how == "sleep":
            ctx.sleep(86_400)
        else:
            # Another try reads another clock; what the first one said counts.
            ctx.sleep_until(datetime.fromtimestamp(NOW / 1000 + 86_400 * ctx.attempt, UTC))
        ctx.step("act", calls.of("act"))
        return "slept"

    session, dispatch = parks(stage)
    run = stage.ledger.run(dispatch.run)
    assert (run.state, run.claimable_ms, run.failures) == ("queued", NOW + 86_400_000, 0)
    assert "waits for 2027-01-16T08:00:00.000Z" in stage.ledger.session(session).trouble
    blocker = Doctor(stage.parts, audit=None, sleep=lambda _: None).why(session)[1]
    assert blocker.by == "2027-01-16T08:00:00.000Z"
    stage.ledger.set_time(NOW + 86_399_000)
    assert not sweep(stage, dispatch)
    assert stage.execute(dispatch) == "refused"
    stage.ledger.set_time(NOW + 86_400_000)
    assert sweep(stage, dispatch)
    assert stage.execute(dispatch) == "finished"
    assert calls.made == {"plan": 1, "act": 1}
    assert result(stage, session) == "slept"


def test_a_try_that_wakes_too_early_sleeps_on(stage: StackHarness) -> None:
    """Its worker was lost, or somebody made it ready by hand: the recorded moment counts."""
    stage.ledger.set_time(NOW)
    stage.agent("lead")(lambda ctx: ctx.sleep(60) or "slept")
    _, dispatch = parks(stage)
    stage.ledger.redis.hset(f"ao:{{00}}:run:{dispatch.run}", "not_before", 0)
    stage.ledger.set_time(NOW + 20_000)
    assert stage.execute(dispatch) == "parked"
    run = stage.ledger.run(dispatch.run)
    assert run.claimable_ms == NOW + 60_000


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
def test_a_clock_that_jumps_holds_no_sleep_of_a_duration(stage: StackHarness, jump_s: int) -> None:
    """Ahead: the time has come. Back: the ledger waits as long as it was told to, and no longer."""
    stage.ledger.set_time(NOW)
    stage.agent("lead")(lambda ctx: ctx.sleep(60) or "slept")
    session, dispatch = parks(stage)
    stage.ledger.set_time(NOW + jump_s * 1000)
    if jump_s < 0:
        assert not sweep(stage, dispatch)
        stage.ledger.set_time(NOW + jump_s * 1000 + 60_000)
    assert sweep(stage, dispatch)
    assert stage.execute(dispatch) == "finished"
    assert result(stage, session) == "slept"


def test_what_comes_meanwhile_waits_and_a_stop_ends_it(stage: StackHarness) -> None:
    stage.ledger.set_time(NOW)

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("quick", "a")
            ctx.sleep(60)
        return f"{ctx.cause}: {[c.result for c in ctx.callbacks]}"

    stage.agent("quick")(lambda _: "done")
    session, dispatch = parks(stage)
    (child,) = stage.children(session)
    assert stage.play(child.id) == "finished"
    assert stage.ledger.flush(session).outcome == "busy"
    stage.ledger.set_time(NOW + 60_000)
    assert stage.execute(dispatch) == "idle"
    assert [c.id for c in stage.children(session)] == [child.id]
    assert stage.resume(session) == "finished"
    assert result(stage, session) == "callbacks: ['done']"

    stopped, dispatch = parks(stage)
    assert stage.ledger.stop(stopped, "enough").outcome == "ended"
    assert stage.ledger.session(stopped).state is SessionState.STOPPED
    assert stage.execute(dispatch) == "refused"


def test_an_async_agent_sleeps_too_and_short_times_return_at_once(stage: StackHarness) -> None:
    stage.ledger.set_time(NOW)

    @stage.agent("lead")
    async def lead(ctx: Context) -> str:
        ctx.sleep(0)
        ctx.sleep_until(NOW / 1000 - 5)
        ctx.sleep(5)
        return "slept"

    _, dispatch = parks(stage)
    stage.ledger.set_time(NOW + 5_000)
    assert stage.execute(dispatch) == "finished"


def test_what_is_no_time_is_refused(stage: StackHarness) -> None:
    @stage.agent("lead")
    def lead(ctx: Context) -> str:
        for wrong in (-1, math.nan, math.inf, "5", True, 1e12):
            with pytest.raises(InputError, match="not a number of seconds from 0"):
                ctx.sleep(wrong)  # type: ignore[arg-type]
            with pytest.raises(InputError, match="deadline_s"):
                ctx.wait_for("any", deadline_s=wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="has no time zone"):
            ctx.sleep_until(datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(InputError, match="more than a century ahead"):
            ctx.sleep_until(NOW)
        with pytest.raises(InputError, match="neither a datetime nor"):
            ctx.sleep_until("tomorrow")  # type: ignore[arg-type]
        return "done"

    assert stage.play(stage.submit("lead")) == "finished"


def test_an_answer_in_a_call_may_sleep() -> None:
    """The run parks with the question in its hands, and answers it in the try that wakes up."""

    @agent("drowsy-lead", role="coordinator")
    def lead(ctx: Context) -> str:
        def answer(question: Callback) -> str:
            ctx.sleep(0.05)
            return f"{question.text} after a night"

        return ctx.call("curious-worker", "do it", answer=answer).result

    @agent("curious-worker")
    def worker(ctx: Context) -> str:
        return ctx.ask("which one?")

    with InProcessStack([lead, worker]) as stack:
        answer = stack.run("drowsy-lead", "go")
        assert answer.text == "which one? after a night"
        answer.tree.assert_settled()


# --- A run that waits for a provider's limits for long frees its slot, uses up no attempt, and repeats no step.


def limited(stage: StackHarness, wait_s: float = 0, **limit: int) -> None:
    changed = {"provider_limits": {"stub/*": limit}, "provider_wait_s": wait_s}
    stage.parts.settings = stage.settings.model_copy(update=changed)


def test_a_run_parks_and_goes_on_when_its_time_has_come(stage: StackHarness, calls: Calls) -> None:
    """The agent has one attempt; its first step is not executed again."""
    limited(stage)
    stage.ledger.set_time(NOW)

    @stage.agent("lead")
    def lead(ctx: Context) -> str:
        ctx.step("plan", calls.of("plan"))
        with ctx.limits.acquire("stub", "m"):
            if ctx.attempt == 1:
                ctx.limits.hold_back("stub", "m", after_s=20)

        def model() -> str:
            with ctx.limits.acquire("stub", "m"):
                calls.made["model"] += 1
                return "answer"

        return ctx.step("model", model)

    session, dispatch = parks(stage)
    run = stage.ledger.run(dispatch.run)
    assert (run.state, run.claimable_ms, run.failures) == ("queued", NOW + 20_000, 0)
    assert stage.ledger.session(session).trouble.startswith(
        "the limits of stub/m allow the next call in 20 s"
    )
    assert calls.made == {"plan": 1}
    assert stage.execute(dispatch) == "refused"
    stage.ledger.set_time(NOW + 20_000)
    assert stage.execute(dispatch) == "finished"
    assert calls.made == {"plan": 1, "model": 1}
    assert result(stage, session) == "answer"
    (parked,) = [event.text for event in history(stage.ledger, session) if event.what == "attempt"]
    assert "attempt 1 was parked after" in parked


def test_a_run_that_begins_again_does_not_wait_behind_itself(stage: StackHarness) -> None:
    """Found by seed 280: outside of steps its second call was given up in its place when the run was parked, and the next try
    asks for its first call again. Runs that do so stood behind places that nobody would come back for.
    """
    limited(stage, calls=1)
    stage.ledger.set_time(NOW)

    @stage.agent("lead")
    def lead(ctx: Context) -> str:
        with ctx.limits.acquire("stub", "m"):
            if ctx.attempt == 1:
                ctx.limits.hold_back("stub", "m", after_s=20)
        with ctx.limits.acquire("stub", "m"):
            return "answer"

    session, dispatch = parks(stage)
    stage.ledger.set_time(NOW + 20_000)
    assert stage.execute(dispatch) == "finished"
    assert result(stage, session) == "answer"


def test_calls_at_once_wait_in_places_of_their_own(stage: StackHarness) -> None:
    limited(stage, wait_s=20, calls=1)
    at_work: list[int] = []

    @stage.agent("lead")
    async def lead(ctx: Context) -> None:
        async def call(number: int) -> None:
            with await ctx.limits.aacquire("stub", "m"):
                at_work.append(number)
                await asyncio.sleep(0.02)
                at_work.append(number)

        await asyncio.gather(*map(call, range(4)))

    stage.begin("lead", ends="finished")
    assert (at_work[::2], sorted(at_work[::2])) == (at_work[1::2], [0, 1, 2, 3])


def test_a_short_wait_is_spent_in_the_slot(stage: StackHarness) -> None:
    limited(stage, wait_s=20)

    @stage.agent("lead")
    def lead(ctx: Context) -> str:
        ctx.limits.hold_back("stub", "m", after_s=0.2)
        began = time.monotonic()
        with ctx.limits.acquire("stub", "m"):
            return str(time.monotonic() - began >= 0.15)

    session = stage.begin("lead", ends="finished")
    assert result(stage, session) == "True"


def test_an_async_agent_waits_and_parks_too(stage: StackHarness) -> None:
    limited(stage, wait_s=0.3, calls=1)

    @stage.agent("lead")
    async def lead(ctx: Context) -> str:
        permit = await ctx.limits.aacquire("stub", "m", tokens=5)
        permit.release(tokens=4)
        await ctx.limits.aacquire("stub", "m")
        with pytest.raises(RunParked):
            await ctx.limits.aacquire("stub", "m")
        return "parked"

    stage.begin("lead", ends="finished")


def stop(stage: StackHarness, session: str) -> None:
    stage.ledger.stop(session, "by a test")


def fail(stage: StackHarness, session: str) -> None:
    stage.ledger.stop(session, "by a test", state="failed")


@pytest.mark.parametrize(("end", "state"), [(stop, "stopped"), (fail, "failed")])
def test_a_run_that_is_asked_to_stop_does_not_park(
    stage: StackHarness, end: Callable[[StackHarness, str], None], state: str
) -> None:
    limited(stage)

    @stage.agent("lead")
    def lead(ctx: Context) -> None:
        end(stage, ctx.session)
        raise RunParked("stub/m", "20")

    session = stage.begin("lead")
    assert stage.ledger.session(session).state == state
    assert stage.ledger.session(session).reason == "by a test"


def test_what_is_parked_can_be_stopped(stage: StackHarness) -> None:
    @stage.agent("lead")
    def lead(ctx: Context) -> None:
        ctx.limits.hold_back("stub", "m", after_s=1000)
        ctx.limits.acquire("stub", "m")

    session = stage.begin("lead", ends="parked")
    assert stage.ledger.stop(session, "by a test").outcome == "ended"
    assert stage.ledger.session(session).state == "stopped"


@pytest.mark.parametrize("end", ["lost", "finished"])
def test_the_place_of_a_call_ends_with_the_lease_that_took_it(stage: StackHarness, end: str) -> None:
    """A killed worker, or one that lost the word that the call is over, keeps nobody out: not even its own retry."""
    limited(stage, calls=1)

    @stage.agent("lead")
    def lead(ctx: Context) -> str:
        if ctx.attempt == 1:
            ctx.limits.acquire("stub", "m")
            if end == "lost":
                lose_worker(stage)
        else:
            with ctx.limits.acquire("stub", "m"):
                pass
        return "done"

    dispatch = stage.start(stage.submit("lead"))
    if end == "lost":
        assert (stage.execute(dispatch), stage.again(dispatch)) == ("lost", "finished")
    assert end == "lost" or stage.execute(dispatch) == "finished"
    with_place(stage)


def with_place(stage: StackHarness) -> None:
    """Another run gets the one place; while it has it, a third one waits."""
    verdicts: list[str] = []

    @stage.agent("other")
    def other(ctx: Context) -> str:
        with ctx.limits.acquire("stub", "m"):
            if not verdicts:
                verdicts.append("")
                verdicts.append(stage.play(stage.submit("other")))
        return "done"

    assert stage.play(stage.submit("other")) == "finished"
    assert verdicts[1:] == ["parked"]

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
from orchestrator.errors import InputError, RunParked
from orchestrator.ledger import RunRef, SessionState
from orchestrator.policy.callback import Callback
from orchestrator.testing.stack import InProcessStack
from orchestrator.worker.context.context import Context
from tests.examined import doctor_of
from tests.kit import Kit

from .conftest import Calls, made_ready

NOW = 1_800_000_000_000


def parks(kit: Kit) -> tuple[str, RunRef]:
    """A session of the lead whose first try has parked, and its run."""
    dispatch = kit.start(kit.submit("lead"))
    assert kit.execute(dispatch) == "parked"
    return dispatch.session, dispatch


@pytest.mark.parametrize("how", ["sleep", "sleep_until"])
def test_a_run_sleeps_without_its_slot_and_goes_on_in_time(kit: Kit, calls: Calls, how: str) -> None:
    kit.ledger.set_time(NOW)

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        ctx.step("plan", calls.of("plan"))
        if how == "sleep":
            ctx.sleep(86_400)
        else:
            # Another try reads another clock; what the first one said counts.
            ctx.sleep_until(datetime.fromtimestamp(NOW / 1000 + 86_400 * ctx.attempt, UTC))
        ctx.step("act", calls.of("act"))
        return "slept"

    session, dispatch = parks(kit)
    run = kit.ledger.run(dispatch.run)
    assert (run.state, run.claimable_ms, run.failures) == ("queued", NOW + 86_400_000, 0)
    assert "waits for 2027-01-16T08:00:00.000Z" in kit.ledger.session(session).trouble
    blocker = doctor_of(kit).why(session)[1]
    assert blocker.by == "2027-01-16T08:00:00.000Z"
    kit.ledger.set_time(NOW + 86_399_000)
    assert not made_ready(kit, dispatch)
    assert kit.execute(dispatch) == "refused"
    kit.ledger.set_time(NOW + 86_400_000)
    assert made_ready(kit, dispatch)
    assert kit.execute(dispatch) == "finished"
    assert calls.made == {"plan": 1, "act": 1}
    assert kit.answer(session) == "slept"


def test_a_try_that_wakes_too_early_sleeps_on(kit: Kit) -> None:
    """Its worker was lost, or somebody made it ready by hand: the recorded moment counts."""
    kit.ledger.set_time(NOW)
    kit.agent("lead")(lambda ctx: ctx.sleep(60) or "slept")
    _, dispatch = parks(kit)
    kit.ledger.redis.hset(f"ao:{{00}}:run:{dispatch.run}", "not_before", 0)
    kit.ledger.set_time(NOW + 20_000)
    assert kit.execute(dispatch) == "parked"
    run = kit.ledger.run(dispatch.run)
    assert run.claimable_ms == NOW + 60_000


@pytest.mark.parametrize("jump_s", [86_400, -86_400])
def test_a_clock_that_jumps_holds_no_sleep_of_a_duration(kit: Kit, jump_s: int) -> None:
    """Ahead: the time has come. Back: the ledger waits as long as it was told to, and no longer."""
    kit.ledger.set_time(NOW)
    kit.agent("lead")(lambda ctx: ctx.sleep(60) or "slept")
    session, dispatch = parks(kit)
    kit.ledger.set_time(NOW + jump_s * 1000)
    if jump_s < 0:
        assert not made_ready(kit, dispatch)
        kit.ledger.set_time(NOW + jump_s * 1000 + 60_000)
    assert made_ready(kit, dispatch)
    assert kit.execute(dispatch) == "finished"
    assert kit.answer(session) == "slept"


def test_what_comes_meanwhile_waits_and_a_stop_ends_it(kit: Kit) -> None:
    kit.ledger.set_time(NOW)

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("quick", "a")
            ctx.sleep(60)
        return f"{ctx.cause}: {[c.result for c in ctx.callbacks]}"

    kit.agent("quick")(lambda _: "done")
    session, dispatch = parks(kit)
    (child,) = kit.children(session)
    assert kit.play(child.id) == "finished"
    assert kit.ledger.flush(session).outcome == "busy"
    kit.ledger.set_time(NOW + 60_000)
    assert kit.execute(dispatch) == "idle"
    assert [c.id for c in kit.children(session)] == [child.id]
    assert kit.play(session) == "finished"
    assert kit.answer(session) == "callbacks: ['done']"

    stopped, dispatch = parks(kit)
    assert kit.ledger.stop(stopped, "enough").outcome == "ended"
    assert kit.ledger.session(stopped).state is SessionState.STOPPED
    assert kit.execute(dispatch) == "refused"


def test_an_async_agent_sleeps_too_and_short_times_return_at_once(kit: Kit) -> None:
    kit.ledger.set_time(NOW)

    @kit.agent("lead")
    async def lead(ctx: Context) -> str:
        ctx.sleep(0)
        ctx.sleep_until(NOW / 1000 - 5)
        ctx.sleep(5)
        return "slept"

    _, dispatch = parks(kit)
    kit.ledger.set_time(NOW + 5_000)
    assert kit.execute(dispatch) == "finished"


def test_what_is_no_time_is_refused(kit: Kit) -> None:
    @kit.agent("lead")
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

    kit.begin("lead", ends="finished")


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


def limited(kit: Kit, wait_s: float = 0, **limit: int) -> None:
    changed = {"provider_limits": {"stub/*": limit}, "provider_wait_s": wait_s}
    kit.parts.settings = kit.settings.model_copy(update=changed)


def test_a_run_parks_and_goes_on_when_its_time_has_come(kit: Kit, calls: Calls) -> None:
    """The agent has one attempt; its first step is not executed again."""
    limited(kit)
    kit.ledger.set_time(NOW)

    @kit.agent("lead")
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

    session, dispatch = parks(kit)
    run = kit.ledger.run(dispatch.run)
    assert (run.state, run.claimable_ms, run.failures) == ("queued", NOW + 20_000, 0)
    assert kit.ledger.session(session).trouble.startswith("the limits of stub/m allow the next call in 20 s")
    assert calls.made == {"plan": 1}
    assert kit.execute(dispatch) == "refused"
    kit.ledger.set_time(NOW + 20_000)
    assert kit.execute(dispatch) == "finished"
    assert calls.made == {"plan": 1, "model": 1}
    assert kit.answer(session) == "answer"
    (parked,) = [event.text for event in history(kit.ledger, session) if event.what == "attempt"]
    assert "attempt 1 was parked after" in parked


def test_a_run_that_begins_again_does_not_wait_behind_itself(kit: Kit) -> None:
    """Found by seed 280: outside of steps its second call was given up in its place when the run was parked, and the next try
    asks for its first call again. Runs that do so stood behind places that nobody would come back for.
    """
    limited(kit, calls=1)
    kit.ledger.set_time(NOW)

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        with ctx.limits.acquire("stub", "m"):
            if ctx.attempt == 1:
                ctx.limits.hold_back("stub", "m", after_s=20)
        with ctx.limits.acquire("stub", "m"):
            return "answer"

    session, dispatch = parks(kit)
    kit.ledger.set_time(NOW + 20_000)
    assert kit.execute(dispatch) == "finished"
    assert kit.answer(session) == "answer"


def test_calls_at_once_wait_in_places_of_their_own(kit: Kit) -> None:
    limited(kit, wait_s=20, calls=1)
    at_work: list[int] = []

    @kit.agent("lead")
    async def lead(ctx: Context) -> None:
        async def call(number: int) -> None:
            with await ctx.limits.aacquire("stub", "m"):
                at_work.append(number)
                await asyncio.sleep(0.02)
                at_work.append(number)

        await asyncio.gather(*map(call, range(4)))

    kit.begin("lead", ends="finished")
    assert (at_work[::2], sorted(at_work[::2])) == (at_work[1::2], [0, 1, 2, 3])


def test_a_short_wait_is_spent_in_the_slot(kit: Kit) -> None:
    limited(kit, wait_s=20)

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        ctx.limits.hold_back("stub", "m", after_s=0.2)
        began = time.monotonic()
        with ctx.limits.acquire("stub", "m"):
            return str(time.monotonic() - began >= 0.15)

    session = kit.begin("lead", ends="finished")
    assert kit.answer(session) == "True"


def test_an_async_agent_waits_and_parks_too(kit: Kit) -> None:
    limited(kit, wait_s=0.3, calls=1)

    @kit.agent("lead")
    async def lead(ctx: Context) -> str:
        permit = await ctx.limits.aacquire("stub", "m", tokens=5)
        permit.release(tokens=4)
        await ctx.limits.aacquire("stub", "m")
        with pytest.raises(RunParked):
            await ctx.limits.aacquire("stub", "m")
        return "parked"

    kit.begin("lead", ends="finished")


def stop(kit: Kit, session: str) -> None:
    kit.ledger.stop(session, "by a test")


def fail(kit: Kit, session: str) -> None:
    kit.ledger.stop(session, "by a test", state="failed")


@pytest.mark.parametrize(("end", "state"), [(stop, "stopped"), (fail, "failed")])
def test_a_run_that_is_asked_to_stop_does_not_park(
    kit: Kit, end: Callable[[Kit, str], None], state: str
) -> None:
    limited(kit)

    @kit.agent("lead")
    def lead(ctx: Context) -> None:
        end(kit, ctx.session)
        raise RunParked("stub/m", "20")

    session = kit.begin("lead")
    assert kit.ledger.session(session).state == state
    assert kit.ledger.session(session).reason == "by a test"


def test_what_is_parked_can_be_stopped(kit: Kit) -> None:
    @kit.agent("lead")
    def lead(ctx: Context) -> None:
        ctx.limits.hold_back("stub", "m", after_s=1000)
        ctx.limits.acquire("stub", "m")

    session = kit.begin("lead", ends="parked")
    assert kit.ledger.stop(session, "by a test").outcome == "ended"
    assert kit.ledger.session(session).state == "stopped"


@pytest.mark.parametrize("end", ["lost", "finished"])
def test_the_place_of_a_call_ends_with_the_lease_that_took_it(kit: Kit, end: str) -> None:
    """A killed worker, or one that lost the word that the call is over, keeps nobody out: not even its own retry."""
    limited(kit, calls=1)

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        if ctx.attempt == 1:
            ctx.limits.acquire("stub", "m")
            if end == "lost":
                kit.crash(ctx.session)
        else:
            with ctx.limits.acquire("stub", "m"):
                pass
        return "done"

    session = kit.begin("lead", ends=end)
    assert end == "finished" or kit.again(session) == "finished"
    # Another run gets the one place; while it has it, a third one waits.
    verdicts: list[str] = []

    @kit.agent("other")
    def other(ctx: Context) -> str:
        with ctx.limits.acquire("stub", "m"):
            if not verdicts:
                verdicts.append("")
                verdicts.append(kit.play(kit.submit("other")))
        return "done"

    kit.begin("other", ends="finished")
    assert verdicts[1:] == ["parked"]

"""A run that waits for a provider's limits for long frees its slot, uses up no attempt, and repeats no step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from orchestrator.client.history import history
from orchestrator.errors import RunParked
from orchestrator.worker.context.context import Context

from .conftest import StackHarness
from .test_steps import Calls, calls, lose_worker, result

__all__ = ["calls"]

NOW = 1_800_000_000_000


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

    session = stage.submit("lead")
    dispatch = stage.start(session)
    assert stage.execute(dispatch) == "parked"
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

    session = stage.submit("lead")
    dispatch = stage.start(session)
    assert stage.execute(dispatch) == "parked"
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

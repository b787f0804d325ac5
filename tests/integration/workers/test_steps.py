"""A run that is tried again gets what its steps gave before, and calls no function twice."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest
import redis as redis_py
from pydantic import BaseModel

from orchestrator import Retry, StepFailed
from orchestrator.client.history import history
from orchestrator.errors import ClaimLost, InputError
from orchestrator.ledger import StepHeader
from orchestrator.ledger.transitions import JournalLimits
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from tests.kit import Kit

from .conftest import Calls


class Plan(BaseModel):
    title: str
    at: datetime
    parts: list[int]


@dataclass
class Point:
    x: int
    y: int


PLAN = Plan(title="ä\n|#", at=datetime.fromisoformat("2026-11-22T10:00:00+00:00"), parts=[1, 2])


def tried_twice(kit: Kit, work: Callable[[Context], Any], *, ends: str = "finished", **options: Any) -> str:
    """A session whose first try does this work and fails after it, and whose second one ends so."""

    @kit.agent("lead", attempts=2, **options)
    def lead(ctx: Context) -> Any:
        done = work(ctx)
        if ctx.attempt == 1:
            raise ValueError("once more")
        return done

    session = kit.begin("lead", ends="retry")
    assert kit.again(session) == ends
    return session


@pytest.mark.parametrize(
    ("value", "type", "read"),
    [
        (None, None, None),
        ({"a": [1, 2.5, None, "ü\ud800"]}, None, {"a": [1, 2.5, None, "ü\ud800"]}),
        ((1, 2), None, [1, 2]),
        (b"\x00\xff\n", None, b"\x00\xff\n"),
        (b"", None, b""),
        ("", None, ""),
        (PLAN, None, PLAN),
        ([PLAN], list[Plan], [PLAN]),
        (Point(1, 2), Point, Point(1, 2)),
        ({"title": "t", "at": PLAN.at, "parts": []}, Plan, Plan(title="t", at=PLAN.at, parts=[])),
        ("x" * 100_000, None, "x" * 100_000),
        (bytes(range(256)) * 400, None, bytes(range(256)) * 400),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_the_second_try_gets_the_value_of_the_first(
    kit: Kit, calls: Calls, value: Any, type: Any, read: Any
) -> None:
    seen = []
    tried_twice(kit, lambda ctx: seen.append(ctx.step("value", calls.of("value", value), type=type)))
    assert seen == [read, read]
    assert calls.made == {"value": 1}


def test_the_annotation_of_a_function_says_what_its_value_is(kit: Kit, calls: Calls) -> None:
    seen = []

    def point() -> list[Point]:
        calls.made["point"] += 1
        return [Point(1, 2)]

    tried_twice(kit, lambda ctx: seen.append(ctx.step("point", point)))
    assert seen == [[Point(1, 2)]] * 2
    assert calls.made == {"point": 1}


@pytest.mark.parametrize("value", [Point(1, 2), {1, 2}, object()])
def test_a_value_without_a_form_is_refused_with_what_to_do(kit: Kit, value: Any) -> None:
    kit.agent("lead")(lambda ctx: ctx.step("value", lambda: value))
    session = kit.begin("lead", ends="failed")
    assert "step 'value#1' gave a " in kit.answer(session)
    assert "type=" in kit.answer(session)


def test_a_model_of_no_module_is_refused_before_it_is_recorded(kit: Kit) -> None:
    class Local(BaseModel):
        x: int

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        assert ctx.step("named", lambda: Local(x=1), type=Local) == Local(x=1)
        with pytest.raises(InputError, match="give the step type=Local"):
            ctx.step("nameless", lambda: Local(x=1))
        return "refused"

    kit.begin("lead", ends="finished")


def test_a_lost_worker_costs_only_the_step_that_was_not_recorded(kit: Kit, calls: Calls) -> None:
    """The second worker gets the first two steps and executes the third one again."""

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        text = ctx.step("model", calls.of("one", "1")) + ctx.step("model", calls.of("two", "2"))
        if ctx.attempt == 1:
            kit.crash(ctx.session)
        return text + ctx.step("model", calls.of("three", "3"))

    session = kit.begin("lead", ends="lost")
    assert kit.again(session) == "finished"
    assert kit.answer(session) == "123"
    assert calls.made == {"one": 1, "two": 1, "three": 2}


def test_a_stale_claim_records_nothing(kit: Kit) -> None:
    """Two holders of one run: what the first one does after it lost the run is refused and never read."""
    stale: list[Context] = []

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        stale.append(ctx)
        if ctx.attempt == 1:
            kit.crash(ctx.session)
            return "lost"
        with pytest.raises(ClaimLost):
            stale[0].step("late", lambda: "of the first")
        header = StepHeader(key="late#1", how="done", codec="json")
        with pytest.raises(ClaimLost):
            kit.ledger.journal.record(stale[0]._effects.held.claim, header, b'"of the first"')
        return ctx.step("late", lambda: "of the second")

    session = kit.begin("lead", ends="lost")
    assert kit.again(session) == "finished"
    assert kit.answer(session) == "of the second"


def test_what_is_recorded_twice_is_recorded_once(kit: Kit) -> None:
    """redis-py repeats a command whose answer was lost."""

    @kit.agent("lead")
    def lead(ctx: Context) -> None:
        journal, claim = kit.ledger.journal, ctx._effects.held.claim
        header = StepHeader(key="a#1", how="done", codec="json")
        for value in (b"1", b"1", b"2"):
            journal.record(claim, header, value)
        assert journal.usage(ctx.run) == (1, 1)
        assert {key: record.value for key, record in journal.read(ctx.run).items()} == {"a#1": b"1"}
        for tries in (1, 2, 1):
            journal.record(claim, StepHeader(key="b#1", how="retry", left=1, tries=tries), b"no")
        assert journal.read(ctx.run)["b#1"].header.tries == 2
        assert journal.usage(ctx.run) == (2, 5)

    kit.begin("lead", ends="finished")


def test_the_journal_goes_with_its_run_however_that_ends(kit: Kit, redis: redis_py.Redis) -> None:
    @kit.agent("lead", attempts=2)
    def lead(ctx: Context) -> str:
        ctx.step("small", lambda: 1)
        ctx.step("large", lambda: "x" * 200_000)
        if ctx.prompt == "fail":
            raise ValueError("no")
        if ctx.prompt == "stop":
            kit.ledger.stop(ctx.session, "by a test")
            kit.crash(ctx.session)
        return "done"

    def of_steps() -> list[bytes]:
        return [key for key in redis.scan_iter() if b":steps" in key]

    kit.begin("lead", ends="finished")
    assert of_steps() == []
    stopped = kit.begin("lead", "stop")
    assert kit.ledger.session(stopped).state == "stopped"
    assert of_steps() == []
    failing = kit.begin("lead", "fail", ends="retry")
    assert len(of_steps()) == 2
    assert all(redis.ttl(key) == -1 for key in of_steps())
    assert kit.again(failing) == "failed"
    assert of_steps() == []


# --- errors -------------------------------------------------------------------------------------


def test_an_error_that_the_agent_caught_is_raised_again_without_a_call(kit: Kit, calls: Calls) -> None:
    seen = []

    def fail() -> None:
        calls.made["fail"] += 1
        raise LookupError("nothing there")

    def look(ctx: Context) -> None:
        try:
            ctx.step("look", fail, retries=2, backoff_s=0)
        except StepFailed as error:
            seen.append((error.key, error.kind, error.message, str(error)))

    tried_twice(kit, look)
    assert calls.made == {"fail": 3}
    said = ("look#1", "LookupError", "nothing there", "step 'look#1' failed: LookupError: nothing there")
    assert seen == [said, said]


def test_a_step_whose_error_failed_the_try_is_executed_by_the_next_one(kit: Kit, calls: Calls) -> None:
    """And the others are not."""

    def shaky() -> str:
        calls.made["shaky"] += 1
        if calls.made["shaky"] == 1:
            raise ConnectionError("no answer")
        return "answer"

    @kit.agent("lead", attempts=2)
    def lead(ctx: Context) -> str:
        ctx.step("plan", calls.of("plan"))
        return ctx.step("shaky", shaky)

    session = kit.begin("lead", ends="retry")
    assert kit.again(session) == "finished"
    assert kit.answer(session) == "answer"
    assert calls.made == {"plan": 1, "shaky": 2}


@pytest.mark.parametrize("alone", [True, False])
def test_steps_whose_errors_failed_a_group_of_tasks_are_executed_by_the_next_try(
    kit: Kit, calls: Calls, *, alone: bool
) -> None:
    async def shaky(name: str) -> str:
        calls.made[name] += 1
        if calls.made[name] == 1:
            raise ConnectionError(f"no {name}")
        return name

    @kit.agent("lead", attempts=2)
    async def lead(ctx: Context) -> str:
        await ctx.astep("plan", calls.of("plan"))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.astep(n, shaky, n)) for n in (["a"] if alone else ["a", "b"])]
        return "".join(task.result() for task in tasks)

    session = kit.begin("lead", ends="retry")
    assert kit.again(session) == "finished"
    assert kit.answer(session) == ("a" if alone else "ab")
    assert calls.made.pop("plan") == 1
    assert max(calls.made.values()) == 2


def test_retries_that_were_used_up_are_not_given_again_to_a_new_worker(kit: Kit, calls: Calls) -> None:
    """Two of three calls were made when the worker was lost; the next one makes the last."""

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        def fail() -> None:
            calls.made["fail"] += 1
            if calls.made["fail"] == 3 and ctx.attempt == 1:
                kit.crash(ctx.session)
            raise LookupError(f"call {calls.made['fail']}")

        try:
            ctx.step("look", fail, retries=3, backoff_s=0)
        except StepFailed as error:
            return error.message
        return "never"

    session = kit.begin("lead", ends="lost")
    assert kit.again(session) == "finished"
    # The third call of the first worker was not recorded, and the second worker had two left.
    assert (kit.answer(session), calls.made["fail"]) == ("call 5", 5)


def test_a_step_may_ask_for_another_try_of_its_run(kit: Kit, calls: Calls) -> None:
    def busy(attempt: int) -> str:
        calls.made["busy"] += 1
        if attempt == 1:
            raise Retry("busy", after_s=0)
        return "answer"

    kit.agent("lead", attempts=2)(lambda ctx: ctx.step("busy", busy, ctx.attempt))
    session = kit.begin("lead", ends="retry")
    assert kit.again(session) == "finished"
    assert calls.made == {"busy": 2}


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_step_that_takes_too_long_fails(kit: Kit, *, asynchronous: bool) -> None:
    never = threading.Event()

    @kit.agent("sync")
    def sync(ctx: Context) -> str:
        with pytest.raises(StepFailed, match="TimeoutError"):
            ctx.step("slow", never.wait, 60, timeout_s=0.01)
        return ctx.step("quick", lambda: "done", timeout_s=30)

    @kit.agent("async")
    async def asynchronously(ctx: Context) -> str:
        with pytest.raises(StepFailed, match="TimeoutError"):
            await ctx.astep("slow", asyncio.sleep, 60, timeout_s=0.01)
        return await ctx.astep("quick", lambda: "done", timeout_s=30)

    kit.begin("async" if asynchronous else "sync", ends="finished")
    never.set()


# --- side by side -------------------------------------------------------------------------------


def test_tasks_may_ask_for_steps_at_the_same_time(kit: Kit, calls: Calls) -> None:
    """All wait for one another, so that none is done before the last has begun; the second try calls none."""

    @kit.agent("lead", attempts=2)
    async def lead(ctx: Context) -> str:
        everyone = asyncio.Barrier(20)

        async def part(number: int) -> int:
            calls.made[str(number)] += 1
            await everyone.wait()
            return number

        found = await asyncio.gather(*(ctx.astep(f"part {n}", part, n) for n in range(20)))
        last = await ctx.astep("sum", lambda: sum(found))
        if ctx.attempt == 1:
            raise ValueError("once more")
        return str(last)

    session = kit.begin("lead", ends="retry")
    assert kit.again(session) == "finished"
    assert kit.answer(session) == "190"
    assert set(calls.made.values()) == {1}
    assert len(calls.made) == 20


def test_threads_may_ask_for_steps_in_any_order(kit: Kit, calls: Calls) -> None:
    """The second try asks in the other order, and finds all of them."""

    def ask(ctx: Context) -> None:
        names = [f"part {n}" for n in range(16)]
        if ctx.attempt == 2:
            names.reverse()
        with ThreadPoolExecutor(8) as pool:
            found = dict(zip(names, pool.map(lambda n: ctx.step(n, calls.of(n, n)), names), strict=True))
        assert all(name == value for name, value in found.items())

    tried_twice(kit, ask)
    assert set(calls.made.values()) == {1}


def test_a_step_has_steps_of_its_own(kit: Kit, calls: Calls) -> None:
    """The second try executes the outer step, which was not recorded, and not what was recorded in it."""

    @kit.agent("lead", attempts=2)
    def lead(ctx: Context) -> str:
        def outer() -> str:
            calls.made["outer"] += 1
            text = ctx.step("inner", calls.of("inner", "in"))
            if ctx.attempt == 1:
                raise Retry("once more", after_s=0)
            return text

        text = ctx.step("outer", outer)
        return text + ctx.step("inner", calls.of("other", "other"))

    session = kit.begin("lead", ends="retry")
    assert kit.again(session) == "finished"
    assert kit.answer(session) == "inother"
    assert calls.made == {"outer": 2, "inner": 1, "other": 1}


# --- another version of the agent -----------------------------------------------------------------


def two_versions(kit: Kit, first: list[str], second: list[str], **options: Any) -> tuple[str, Calls]:
    """A session whose agent asks for other steps on its second and third try; its id, and what was called."""
    calls = Calls()

    @kit.agent("lead", attempts=3, **options)
    def lead(ctx: Context) -> str:
        asked = first if ctx.attempt == 1 else second
        found = [ctx.step(name, calls.of(name, f"{name}{ctx.attempt}")) for name in asked]
        if ctx.attempt < 3:
            raise ValueError("once more")
        return " ".join(found)

    session = kit.begin("lead", ends="retry")
    assert kit.again(session) == "retry"
    kit.again(session)
    return session, calls


@pytest.mark.parametrize(
    ("second", "asked", "recorded"),
    [
        (["a", "c", "b"], "c#1", "b#1"),
        (["b", "a"], "b#1", "a#1"),
        (["a"], "its end", "b#1"),
        (["a", "a"], "a#2", "b#1"),
    ],
)
def test_a_try_that_asks_for_other_steps_is_told_which_one_differs(
    kit: Kit, second: list[str], asked: str, recorded: str
) -> None:
    session, calls = two_versions(kit, ["a", "b"], second)
    reason = kit.answer(session)
    assert reason.startswith(f"StepMismatch: run {kit.ledger.runs(session)[0].id} asks for step {asked!r}")
    assert f"recorded {recorded!r}" in reason
    assert 'steps = "replace"' in reason
    assert calls.made == {"a": 1, "b": 1}


def test_an_agent_may_go_on_with_new_steps(kit: Kit) -> None:
    """From the first one that differs; what was recorded after that is dropped, also under the same name."""
    session, calls = two_versions(kit, ["a", "b", "d"], ["a", "c", "d"], steps="replace")
    assert kit.answer(session) == "a1 c2 d2"
    assert calls.made == {"a": 1, "b": 1, "c": 1, "d": 2}


def test_more_steps_after_the_recorded_ones_are_no_difference(kit: Kit) -> None:
    session, calls = two_versions(kit, ["a", "b"], ["a", "b", "c"])
    assert kit.answer(session) == "a1 b1 c2"
    assert calls.made == {"a": 1, "b": 1, "c": 1}


# --- effects --------------------------------------------------------------------------------------


def test_what_a_recorded_step_delegated_stays(kit: Kit) -> None:
    """The second try does not delegate; its commit stops nobody."""
    kit.agent("helper")(lambda _: "")

    def launch(ctx: Context) -> list[str]:
        return [ctx.delegate("helper", "x"), ctx.delegate("helper", "y", key="k")]

    session = tried_twice(kit, lambda ctx: ctx.step("launch", lambda: launch(ctx)), ends="idle")
    found = kit.ledger.session(session)
    assert (found.launched, found.owed, found.dead) == (2, 2, 0)


def test_a_step_that_is_executed_again_has_the_same_effects_whatever_it_says(kit: Kit) -> None:
    """A model that is asked again answers in other words; the child is the same one, and its key too."""
    kit.agent("helper")(lambda _: "")
    seen: list[str] = []

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        def launch() -> str:
            child = ctx.delegate("helper", f"in the words of attempt {ctx.attempt}")
            seen.extend([child, ctx.step_key])
            if ctx.attempt == 1:
                kit.crash(ctx.session)
            return child

        ctx.step("launch", launch)
        return "waits"

    session = kit.begin("lead", ends="lost")
    assert kit.again(session) == "idle"
    assert seen[:2] == seen[2:]
    assert seen[1] == f"{kit.ledger.runs(session)[0].id}:launch#1"
    assert kit.ledger.session(session).launched == 1


def test_what_a_replaced_step_delegated_is_stopped(kit: Kit) -> None:
    kit.agent("helper")(lambda _: "")

    def launch(ctx: Context) -> None:
        name = "old" if ctx.attempt == 1 else "new"
        ctx.step(name, lambda: ctx.delegate("helper", f"the {name} task"))

    session = tried_twice(kit, launch, steps="replace", ends="idle")
    found = kit.ledger.session(session)
    assert (found.launched, found.owed, found.dead) == (2, 1, 1)


def test_the_key_of_a_step_is_known_in_its_function_only(kit: Kit) -> None:
    @kit.agent("lead")
    async def lead(ctx: Context) -> str:
        with pytest.raises(InputError, match=r"ctx\.step_key"):
            _ = ctx.step_key
        keys_of_steps = await asyncio.gather(*(ctx.astep("s", lambda: ctx.step_key) for _ in range(3)))
        return " ".join(sorted(key.rpartition(":")[2] for key in keys_of_steps))

    session = kit.begin("lead", ends="finished")
    assert kit.answer(session) == "s#1 s#2 s#3"


# --- bounds, damage, what people see --------------------------------------------------------------


@pytest.mark.parametrize("limits", [JournalLimits(steps=3), JournalLimits(bytes=30)])
def test_the_journal_is_bounded(kit: Kit, limits: JournalLimits) -> None:
    kit.ledger.journal.limits = limits

    @kit.agent("lead")
    def lead(ctx: Context) -> None:
        for _ in range(4):
            ctx.step("eight", lambda: "12345678")

    session = kit.begin("lead", ends="failed")
    assert "LimitExceeded: limit max_step" in kit.answer(session)
    assert "step 'eight#4'" in kit.answer(session)


@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("how", ["type", "entry", "stored"])
def test_a_spoilt_journal_fails_its_run_or_is_begun_anew(
    kit: Kit, redis: redis_py.Redis, calls: Calls, how: str, *, replace: bool
) -> None:
    @kit.agent("lead", attempts=2, steps="replace" if replace else "strict")
    def lead(ctx: Context) -> str:
        text = ctx.step("large", calls.of("large", "x" * 50_000))
        if ctx.attempt == 1:
            raise ValueError("once more")
        return text[:3]

    session = kit.begin("lead", ends="retry")
    journal = ledger_keys.steps(kit.ledger.session(session).run)
    if how == "type":
        redis.delete(journal)
        redis.set(journal, "of another type")
    elif how == "entry":
        redis.hset(journal, "h:large#1", "{")
    else:
        (stored,) = redis.keys(f"{journal}:*")
        redis.delete(stored)
    verdict = kit.again(session)
    assert not redis.exists(journal)
    if replace and how == "entry":
        assert verdict == "finished"
        assert calls.made == {"large": 2}
    else:
        assert verdict == "failed"
        assert "DamagedRecord: the ledger's record of " in kit.answer(session)


def test_people_see_the_steps_of_a_run_while_it_lasts_and_afterwards(kit: Kit) -> None:
    shown: list[list[str]] = []

    def look(session: str) -> list[str]:
        return [event.text for event in history(kit.ledger, session) if event.what == "step"]

    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        ctx.step("plan", lambda: "secret words")
        with suppress(StepFailed):
            ctx.step("search", lambda: 1 / 0, retries=1, backoff_s=0)
        shown.append(look(ctx.session))
        assert kit.ledger.session(ctx.session).steps == 2
        assert kit.ledger.session(ctx.session).step == "search#1"
        return "done"

    session = kit.begin("lead", ends="finished")
    shown.append(look(session))
    assert shown[0] == shown[1]
    assert len(shown[0]) == 2
    assert shown[0][0].startswith("plan#1 done after 0")
    assert "search#1 failed after 2 calls" in shown[0][1]
    assert "ZeroDivisionError: division by zero" in shown[0][1]
    assert "secret words" not in "".join(shown[0])


@pytest.mark.parametrize("name", ["", " a", "a#b", "a|b", "a\nb", "x" * 201, 7])
def test_a_name_that_is_none_is_refused(kit: Kit, name: Any) -> None:
    @kit.agent("lead")
    def lead(ctx: Context) -> str:
        with pytest.raises(InputError, match="a name has 1 to 200 characters"):
            ctx.step(name, lambda: 1)
        with pytest.raises(InputError, match="retries"):
            ctx.step("a", lambda: 1, retries=-1)
        with pytest.raises(InputError, match="astep"):
            ctx.step("a", asyncio.sleep, 0)
        return "refused"

    kit.begin("lead", ends="finished")


def test_a_run_that_is_stopped_begins_no_step(kit: Kit, calls: Calls) -> None:
    @kit.agent("lead")
    def lead(ctx: Context) -> None:
        ctx.step("first", calls.of("first"))
        kit.ledger.stop(ctx.session, "by a test")
        while not ctx.stopping:
            time.sleep(0.005)
        ctx.step("second", calls.of("second"))

    kit.begin("lead", ends="stopped")
    assert calls.made == {"first": 1}

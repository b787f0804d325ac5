"""What `explore` finds in a tree of agents, and that it finds nothing in one that is right."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Context, agent, model_agent
from orchestrator.errors import InputError
from orchestrator.testing import ExplorationFailed, Script, explore, scripted_model

Body = Callable[[Context], str]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a schedule is made short is said in `test_shrinking`."""
    monkeypatch.setattr("orchestrator.testing.simulation.exploration._MOST_TRIES", 3)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    log = logging.getLogger("orchestra")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    yield
    log.setLevel(before)


def publish(text: str) -> None:
    raise RuntimeError("not in a test")


@agent("finder", attempts=2, backoff_s=1)
def finder(ctx: Context) -> str:
    return f"{ctx.prompt}: two"


def lead(end: Body, *, waits: str = "all") -> Any:
    """A lead that asks two finders, and ends as the function says."""

    @agent("lead", role="coordinator", attempts=2, backoff_s=1)
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            for part in ("leases", "claims"):
                ctx.delegate("finder", part)
            if waits:
                ctx.wait_for(waits)  # type: ignore[arg-type]
            return "waiting"
        return end(ctx)

    return lead


def told(ctx: Context) -> str:
    return "; ".join(sorted(c.result or f"failed: {c.error}" for c in ctx.all_results))


def right(ctx: Context) -> str:
    text = told(ctx)
    ctx.step("publish", publish, text)
    return text


def forgets(ctx: Context) -> str:
    return "; ".join(sorted(c.result for c in ctx.all_results))


def acts_again(ctx: Context) -> str:
    publish(told(ctx))
    return told(ctx)


def goes_by_order(ctx: Context) -> str:
    return "; ".join(c.result or c.error for c in ctx.all_results)


def acts_early(ctx: Context) -> str:
    ctx.step("publish", publish, told(ctx))
    return told(ctx)


def fails(ctx: Context) -> str:
    _first, _second = ctx.callbacks
    return "both are there"


numbers = itertools.count()


def differs(ctx: Context) -> str:
    return f"{next(numbers)} {told(ctx)}"


CALLS = [f"{__name__}.publish"]


def test_nothing_is_found_in_agents_that_are_right() -> None:
    found = explore([lead(right), finder], "go", 60, calls=CALLS)
    assert (found.schedules, found.answer) == (60, "claims: two; leases: two")
    assert found.runs > 240  # some were tried again


@pytest.mark.parametrize(
    ("end", "waits", "said"),
    [
        (forgets, "all", "a failure that nobody looks at: lead finishes, and has read neither"),
        (acts_again, "all", "an act outside of a step: lead calls publish('claims: "),
        (goes_by_order, "all", "two' under another schedule"),
        (acts_early, "", "an act before its wait: lead calls publish while 1 of its children are at work"),
        (
            fails,
            "any",
            "an agent that fails: lead fails although none of its children has: ValueError: not enough",
        ),
        (differs, "all", "another answer:"),
    ],
    ids=lambda given: getattr(given, "__name__", ""),
)
def test_what_an_agent_does_wrong_is_said_with_its_schedule(end: Body, waits: str, said: str) -> None:
    with pytest.raises(ExplorationFailed) as failed:
        explore([lead(end, waits=waits), finder], "go", 200, calls=CALLS)
    text = str(failed.value)
    assert said in text
    assert "To play it again: explore(…, schedules=" in text


def test_a_file_that_is_written_is_noticed_without_being_named(tmp_path: Path) -> None:
    def writes(ctx: Context) -> str:
        with (tmp_path / "report.txt").open("a") as file:
            file.write("x")
        return told(ctx)

    with pytest.raises(ExplorationFailed, match="an act outside of a step: lead writes a file"):
        explore([lead(writes), finder], "go", 200)


def test_a_child_that_never_answers_is_named() -> None:
    @agent("lead", role="coordinator")
    def asks_for_ever(ctx: Context) -> str:
        ctx.wait_for("any", deadline_s=10_000_000)
        return "waiting"

    with pytest.raises(ExplorationFailed, match=r"these sessions never end: lead \(idle\)"):
        explore([asks_for_ever], "go", 1)


@pytest.mark.parametrize(
    ("agents", "given", "said"),
    [
        ([finder], {"agent": "nobody"}, "there is no agent 'nobody' to explore: there are finder"),
        ([], {}, "there is no agent '' to explore: there are none"),
        (
            [model_agent("model", model=scripted_model(Script()), instructions="You answer.")],
            {},
            "agent 'model' is no plain function, and only those can be explored",
        ),
    ],
)
def test_what_cannot_be_explored_is_refused(agents: list[Any], given: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        explore(agents, "go", **given)  # type: ignore[arg-type]

"""Explores a tree of agents: the same prompt under many schedules, with workers that die, children that fail, any order.

    explore([lead, finder], "How many sources?")

plays it a thousand times, each with another order and other deaths, on a whole stack in one thread, and raises for what an
agent does wrong then, with the shortest schedule that shows it.
"""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from orchestrator.errors import ConfigurationError, InputError
from orchestrator.testing.stack import AgentSource, catalogue_of

if TYPE_CHECKING:
    from orchestrator.testing.simulation.shrinking import Failure

#: Schedules that are played unless told.
_SCHEDULES: Final = 1000


@dataclass(frozen=True)
class Explored:
    """Result of an exploration that found no fault."""

    #: How many schedules were played.
    schedules: int
    #: The answer of the root where no child failed: it is the same under each.
    answer: str
    #: How many runs began, in all of them.
    runs: int = field(compare=False)


class ExplorationFailed(AssertionError):
    """A schedule under which an agent does something wrong; the message says what, and prints the schedule."""


def explore(
    agents: Iterable[AgentSource],
    prompt: str,
    schedules: int = _SCHEDULES,
    *,
    agent: str = "",
    calls: Mapping[str, Any] | Sequence[str] = (),
    failures: bool = True,
    seed: int = 0,
    **settings: Any,
) -> Explored:
    """Run a tree of agents under so many schedules, and see that it does the same under each.

    An agent does something wrong if, under one of them,

    - a run that is tried again, because its worker died or Redis was away, gives another answer than before;
    - it acts twice on the world outside: what is to happen once belongs into `ctx.step`;
    - it acts while children are still at work, and again when they have ended;
    - it finishes without having looked at the failure of a child;
    - the tree's answer is another one where nothing has failed, because its children ended in another order;
    - it fails although no child of it has, or never ends.

    Args:
        agents: definitions, functions with `@agent`, modules or files; functions that are not async.
        prompt: what the first one is given.
        schedules: how many orders are tried; the same numbers give the same orders.
        agent: the name of the agent that is given the prompt; by default the first one.
        calls: functions by which agents act on the world outside, as dotted names such as `my_agents.send_mail`. They are not
            called; each gives what stands beside its name, or None. Files that are written, connections and processes are
            noticed without being named.
        failures: whether children fail in some schedules.
        seed: the number of the first schedule.
        settings: settings of the stack by name.

    Raises:
        ExplorationFailed: an agent does something wrong.
        InputError: an agent is no plain function, or there is none of that name.
        ConfigurationError: the extra `testing` is not installed.
    """
    try:
        from orchestrator.testing.simulation.exploration import Exploration
    except ImportError as error:
        raise ConfigurationError(
            f"explore needs {error.name}: pip install 'agent-orchestra[testing]'"
        ) from None

    catalogue = catalogue_of(agents)
    first = agent or next(iter(catalogue), "")
    if first not in catalogue:
        raise InputError(
            f"there is no agent {first!r} to explore: there are {', '.join(catalogue) or 'none'}"
        )
    for one in catalogue.values():
        if one.function is None or inspect.iscoroutinefunction(one.function):
            raise InputError(f"agent {one.name!r} is no plain function, and only those can be explored")
    stands_in = dict(calls) if isinstance(calls, Mapping) else dict.fromkeys(calls)
    with ExitStack() as leaving:
        folder = leaving.enter_context(tempfile.TemporaryDirectory(prefix="orchestra-explore-"))
        exploration = Exploration(
            catalogue, first, prompt, calls=stands_in, failures=failures, data=Path(folder), settings=settings
        )
        leaving.enter_context(exploration)
        for number in range(seed, seed + schedules):
            if failure := exploration.play(number):
                again = f"schedules={number - seed + 1}, seed={seed}"
                raise ExplorationFailed(_report(exploration.shrink(number, failure), again))
        return Explored(schedules, exploration.answer, exploration.runs)


def _report(shortest: Failure[None], again: str) -> str:
    """Return what was wrong, the shortest schedule that shows it, and how to play it again."""
    wrong, *more = shortest.wrong.splitlines()
    lines = ["  " + line for line in shortest.story]
    return "\n".join(
        [wrong, *more, "", "The schedule:", *lines, "", f"To play it again: explore(…, {again})."]
    )

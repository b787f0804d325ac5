"""Trees in which some agents are models, on a provider that speaks over the wire, while processes are killed at random.

The knobs are those of `test_chaos`; CHAOS_MODEL_SHAPE says how many children the models have at each level.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.policy.callback_text import parse_callbacks
from orchestrator.testing import ByInstructions, Call, Request, Say, Script, WireServer

from .stack import HERE, Stack, Zygote
from .test_chaos import KILLS, LONG, PAUSE_S, TALK, TALKERS, TREES, Monkey, all_over, new_dice, start

SHAPE = os.environ.get("CHAOS_MODEL_SHAPE", "4,4,4" if LONG else "3,3")
#: Model requests of each session of a model: what it does, and what it answers.
REQUESTS = 2

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800 if LONG else 480)]


def branch(request: Request) -> Say:
    """Task ``3,2``: three models below it, each with two leaves; every second leaf is a function."""
    width, _, below = request.last.strip().partition(",")
    leaves = ("model-leaf", "leaf")
    return Say(
        calls=[
            Call("delegate", agent="model-branch" if below else leaves[n % 2], task=below or "1", wait=True)
            for n in range(int(width))
        ]
    )


def total(request: Request) -> Say:
    """The sum of what the children answered; a callback that came twice would count twice."""
    callbacks = parse_callbacks(request.last)
    found = sum(int(one.text) if one.status == "completed" else 0 for one in callbacks)
    return Say(f"These are {len(callbacks)}. <response>{found}</response>")


SCRIPT = ByInstructions(
    {
        "You branch": Script(branch, total),
        "You count": Script(Say(calls=[Call("note", text="one")]), Say("<response>1</response>")),
    }
)


@pytest.fixture(scope="module")
def wire() -> Iterator[WireServer]:
    with WireServer(SCRIPT) as server:
        yield server


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote(preload="orchestrator.worker.executors.llm pydantic_ai.models.anthropic")
    yield zygote
    zygote.close()


@pytest.fixture
def make_stack(
    zygote: Zygote,
    wire: WireServer,
    start_valkey: Callable[..., ValkeyProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., Stack]]:
    """Make stacks with the model agents beside the others, whose provider is the scripted one."""
    with ExitStack() as leaving:

        def make(**settings: str) -> Stack:
            server = start_valkey(durable=True)
            folder = tmp_path_factory.mktemp("stack")
            crew = (str(HERE / "crew.py"), str(HERE / "model_crew.py"))
            stack = leaving.enter_context(Stack(zygote, server, folder / "stack", settings, agents=crew))
            stack.env |= wire.environment()
            return stack

        yield make


@pytest.mark.parametrize(
    ("victims", "shards"),
    [
        (["worker", "process of a worker", "process of a worker", "router", "callbacks", "reaper"], 1),
        (["server", "worker", "process of a worker", "router", "callbacks"], 2),
    ],
    ids=["processes", "processes-and-server"],
)
def test_models_pay_once_and_their_trees_add_up(
    victims: list[str], shards: int, make_stack: Callable[..., Stack], wire: WireServer
) -> None:
    """Each answer is right, each callback comes once, and a lost try costs one model call at most."""
    before = len(wire.answered)
    dice = new_dice()
    stack = start(make_stack, shards=str(shards))
    with stack.client() as client:
        trees = [
            client.submit("mixture", f"model-branch {SHAPE} branch 2,2 {TALK}", key=f"tree {n}")
            for n in range(TREES)
        ]
        monkey = Monkey(stack, dice, victims)
        while monkey.killed.total() < KILLS and not all_over(stack, [tree.id for tree in trees]):
            time.sleep(dice.uniform(*PAUSE_S))
            monkey.strike()
        monkey.rest()
        expected = str(math.prod(int(width) for width in SHAPE.split(",")) + 4 + TALKERS)
        for tree in trees:
            assert stack.answer(tree, timeout_s=600 if LONG else 90) == expected
    stack.assert_settled(timeout_s=150)
    sessions = [one for tree in trees for one in stack.ledger.tree(tree.id)]
    models = [one for one in sessions if one.agent in ("model-branch", "model-leaf")]
    runs = [run for one in models for run in stack.ledger.runs(one.id)]
    lost = sum(run.attempt - 1 for run in runs)
    paid = len(wire.answered) - before
    print(f"{len(models)} models, {len(runs)} runs, {lost} tries lost, {paid} model calls paid")
    assert REQUESTS * len(models) <= paid <= REQUESTS * len(models) + lost
    assert sum(one.used.requests for one in models) <= paid
    leaves = [run for one in models if one.agent == "model-leaf" for run in stack.ledger.runs(one.id)]
    for run in leaves:
        assert len(list(stack.marks.glob(f"note-{run.id}*"))) == 1

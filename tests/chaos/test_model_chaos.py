"""Trees in which some agents are models, on a provider that speaks over the wire, while processes are killed at random.

The knobs are those of `test_chaos`; CHAOS_MODEL_SHAPE says how many children the models have at each level.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.deployment.forks import ForkServer
from orchestrator.ledger import SessionState
from orchestrator.policy.callback_text import parse_callbacks
from orchestrator.testing import ByInstructions, Call, Fail, Request, Say, Script, WireServer

from .stack import MODELS, MakeStack, Stack, children_of, long
from .test_chaos import KILLS, LONG, PAUSE_S, TALK, TALKERS, TREES, Monkey, all_over, new_dice, start

SHAPE = os.environ.get("CHAOS_MODEL_SHAPE", "4,4,4" if LONG else "3,3")
#: Children under a budget of tokens that allows fewer: each takes about 600.
CHILDREN, TOKENS = (200, 80_000) if LONG else (40, 15_000)
#: Trees that ask a provider which is busy, models in each, slots of the worker, and seconds that the provider asks for.
ASKING_TREES, ASKERS, SLOTS, BUSY_S = 4, 20, 64, 20.0 if LONG else 8.0
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


class Provider:
    """Says 429 to the first request, with a time, and to each that comes before that time."""

    def __init__(self) -> None:
        self.busy_until = 0.0
        self.refused = 0

    def __call__(self, request: Request) -> Say | Fail:
        now = time.time()
        self.busy_until = self.busy_until or now + max(BUSY_S, 15)
        if now >= self.busy_until - 0.05:
            return Say("<response>answered</response>")
        self.refused += 1
        return Fail(429, retry_after_s=self.busy_until - now)


class Greedy:
    """Answers as long as it may, or 128,000 tokens, and remembers how many tokens it has taken."""

    def __init__(self) -> None:
        self.took: dict[int, int] = {}

    def __call__(self, request: Request) -> Say:
        sent, answered = request.size // 4, int(request.body.get("max_tokens") or 128_000)
        self.took[request.number] = sent + answered
        return Say("<response>1</response>", input_tokens=sent, output_tokens=answered)


PROVIDER, GREEDY = Provider(), Greedy()
SCRIPT = ByInstructions(
    {
        "You know": PROVIDER,
        "You help": GREEDY,
        "You branch": Script(branch, total),
        "You count": Script(Say(calls=[Call("note", text="one")]), Say("<response>1</response>")),
    }
)


def kill_pool_processes(stack: Stack, over: Callable[[], bool]) -> int:
    """Kill one process of the worker's pool after the other while there is work; how many were killed."""
    (worker,) = (process for process in stack.running if process.name == "worker")
    killed = 0
    while killed < 20 and not over():
        for pid in children_of(worker)[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(0.05)
    return killed


@pytest.fixture(scope="module")
def wire() -> Iterator[WireServer]:
    with WireServer(SCRIPT) as server:
        yield server


@pytest.fixture
def make_stack(
    model_forks: ForkServer,
    wire: WireServer,
    start_valkey: Callable[..., ValkeyProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MakeStack]:
    """Make stacks with the model agents beside the others, whose provider is the scripted one."""
    with ExitStack() as leaving:

        def make(**settings: str) -> Stack:
            server = start_valkey(durable=True)
            folder = tmp_path_factory.mktemp("stack")
            stack = leaving.enter_context(
                Stack(model_forks, server, folder / "stack", settings, agents=MODELS)
            )
            stack.env |= wire.environment()
            return stack

        yield make


@pytest.mark.parametrize(
    ("victims", "shards"),
    [
        long(["worker", "process of a worker", "process of a worker", "router", "callbacks", "reaper"], 1),
        (["server", "worker", "process of a worker", "router", "callbacks"], 2),
    ],
    ids=["processes", "processes-and-server"],
)
def test_models_pay_once_and_their_trees_add_up(
    victims: list[str], shards: int, make_stack: MakeStack, wire: WireServer
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
    # What a try had set aside when its worker was killed counts as spent: the call may have been made.
    assert sum(one.used.requests for one in models) <= paid + lost
    leaves = [run for one in models if one.agent == "model-leaf" for run in stack.ledger.runs(one.id)]
    for run in leaves:
        assert len(list(stack.marks.glob(f"note-{run.id}*"))) == 1


@pytest.mark.long
def test_models_wait_for_their_provider_together(make_stack: MakeStack) -> None:
    """One run is told 429 and a time. No other calls before that; none fails; the slots are free; then all are answered."""
    stack = make_stack(concurrency=str(SLOTS), provider_wait_s="0.2", registration_patience_s="20")
    stack.start_all("--pool", "threads")

    def tries(session: str) -> list[str]:
        return [tried.how for run in stack.ledger.runs(session) for tried in run.tries]

    with stack.client() as client:
        first = client.submit("model-expert", "first")
        stack.wait(lambda: "parked" in tries(first.id), "the run that was told")
        assert PROVIDER.refused == 1
        trees = [client.submit("model-treasurer", f"{ASKERS} model-expert") for _ in range(ASKING_TREES)]
        other = client.submit("branch", "2,2")
        assert stack.answer(other) == "4"
        assert time.time() < PROVIDER.busy_until, "the other tree had to wait for the slots"
        expected = [f"{ASKERS} completed, 0 failed"] * ASKING_TREES
        assert [stack.answer(tree) for tree in trees] == expected
        assert stack.answer(first) == "<response>answered</response>"
    stack.assert_settled()
    assert PROVIDER.refused == 1
    runs = [run for tree in trees for s in stack.ledger.tree(tree.id) for run in stack.ledger.runs(s.id)]
    assert {run.failures for run in runs} == {0}
    assert any(tried.how == "parked" for run in runs for tried in run.tries)


@pytest.mark.long
def test_models_together_never_spend_more_than_their_budget(make_stack: MakeStack, wire: WireServer) -> None:
    """What the provider itself has counted is within the budget, and each child has its one terminal callback, after kills."""
    stack = make_stack(max_process_deaths="100", concurrency="2")
    stack.start_all()
    before = len(wire.requests)
    with stack.client() as client:
        session = client.submit("model-treasurer", f"{CHILDREN} model-helper", budget={"tokens": TOKENS})
        stack.wait(lambda: stack.ledger.session(session.id).children >= CHILDREN // 2, "children")
        killed = kill_pool_processes(stack, lambda: stack.ledger.session(session.id).ended_ms > 0)
        answer = stack.answer(session, timeout_s=240)
    stack.assert_settled()
    tree = stack.ledger.tree(session.id)
    completed = sum(s.state == SessionState.FINISHED for s in tree[1:])
    failed = [s for s in tree[1:] if s.state == SessionState.FAILED]
    assert answer == f"{completed} completed, {len(failed)} failed"
    assert completed + len(failed) == CHILDREN
    budget = stack.ledger.spending.budget(session.id)
    took = sum(tokens for number, tokens in GREEDY.took.items() if number >= before)
    spent, calls = budget.spent["tokens"], sum(s.used.requests for s in tree)
    print(
        f"{killed} kills, {spent} of {TOKENS} tokens spent, the provider counted {took}, {completed} completed"
    )
    assert 0.9 * TOKENS < spent <= TOKENS
    assert took <= spent == sum(s.used.tokens for s in tree)
    assert set(budget.reserved.values()) == {0}
    # A kill costs one call that gave no child an answer, whether or not it was made.
    assert completed <= calls <= completed + killed
    assert all("the budget of tree" in s.reason for s in failed)

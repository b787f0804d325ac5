"""Workers, routers, callback services and Redis itself are killed at random; every callback comes exactly once.

Knobs, as environment variables: CHAOS=long for the long form, CHAOS_SEED for the very dice of an earlier play,
CHAOS_SHAPE (children at each level), CHAOS_TREES, CHAOS_KILLS (how often something is killed at most).
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

import pytest
import redis as redis_py

from orchestrator.client.client import SessionHandle
from orchestrator.client.waiting import is_over
from orchestrator.errors import ServerUnavailable

from .stack import MakeStack, Stack, children_of, long

LONG = os.environ.get("CHAOS") == "long"
SHAPE = os.environ.get("CHAOS_SHAPE", "6,7,6" if LONG else "3,3,2")
TREES = int(os.environ.get("CHAOS_TREES", "2" if LONG else "1"))
KILLS = int(os.environ.get("CHAOS_KILLS", "150" if LONG else "12"))
#: Beside the tree of branches: agents that call others and wait, ask, and are resumed with replies.
TALK = "caller 2 patient 1 patient 1 stumbler 1"
TALKERS = 5
#: Seconds between two kills, at least and at most.
PAUSE_S = (0.1, 1.0)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800 if LONG else 480)]

T = TypeVar("T")


class Monkey:
    """Kills something now and then, and starts another one in its place."""

    def __init__(self, stack: Stack, dice: random.Random, victims: list[str]) -> None:
        self.stack = stack
        self.dice = dice
        self.victims = victims
        self.killed: Counter[str] = Counter()
        self.ended_alone: list[str] = []

    def strike(self) -> None:
        """Kill one thing."""
        self.see_to_the_dead()
        victim = self.dice.choice(self.victims)
        self.killed[victim] += 1
        if victim == "server":
            self.stack.server.kill()
            self.stack.server.start()
        elif victim == "process of a worker":
            self._kill_pool_process()
        else:
            process = self.dice.choice([p for p in self.stack.running if p.name == victim and p.alive])
            process.kill()
            self.stack.running.remove(process)
            self.stack.start(victim)

    def rest(self) -> None:
        """Leave it at that, and say what was done."""
        self.see_to_the_dead()
        print(f"killed: {dict(self.killed)}; ended by themselves: {self.ended_alone}")

    def see_to_the_dead(self) -> None:
        """Start again what ended by itself."""
        self.ended_alone += self.stack.replace_the_dead()

    def _kill_pool_process(self) -> None:
        worker = self.dice.choice([p for p in self.stack.running if p.name == "worker"])
        children = children_of(worker)
        if children:
            with suppress(ProcessLookupError):
                os.kill(self.dice.choice(children), signal.SIGKILL)


def new_dice() -> random.Random:
    """Dice whose seed is printed, or given."""
    seed = int(os.environ.get("CHAOS_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 32)
    print(f"CHAOS_SEED={seed} CHAOS_SHAPE={SHAPE} CHAOS_TREES={TREES} CHAOS_KILLS={KILLS}")
    return random.Random(seed)


def start(make_stack: MakeStack, **settings: str) -> Stack:
    """A stack with two of whatever is killed."""
    stack = make_stack(max_lost_workers="1000", max_process_deaths="1000", **settings)
    stack.env |= {"CHAOS_LEAF_S": "0.05", "CHAOS_WINDOW_S": "0.02"}
    for name in ("worker", "worker", "router", "router", "callbacks", "callbacks", "reaper", "audit"):
        stack.start(name)
    stack.wait_ready()
    return stack


def retrying(call: Callable[[], T]) -> T:
    """What a call returns, tried again while the server is away."""
    deadline = time.monotonic() + 150
    while True:
        try:
            return call()
        except (ServerUnavailable, redis_py.ConnectionError, redis_py.TimeoutError):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("victims", "shards"),
    [
        long(["worker", "process of a worker", "router", "callbacks", "reaper", "audit"], 1),
        (["server", "server", "worker", "process of a worker", "router", "callbacks", "reaper", "audit"], 3),
        long(["server"], 1),
    ],
    ids=["processes", "processes-and-server", "server"],
)
def test_every_parent_has_every_callback_exactly_once(
    victims: list[str], shards: int, make_stack: MakeStack
) -> None:
    """Trees of many children over three levels, while whatever works on them is killed."""
    dice = new_dice()
    stack = start(make_stack, shards=str(shards))
    with stack.client() as client:
        trees = [client.submit("mixture", f"branch {SHAPE} {TALK}").id for _ in range(TREES)]
    monkey = Monkey(stack, dice, victims)
    while monkey.killed.total() < KILLS and not all_over(stack, trees):
        time.sleep(dice.uniform(*PAUSE_S))
        monkey.strike()
    monkey.rest()
    expected = str(math.prod(int(width) for width in SHAPE.split(",")) + TALKERS)
    with stack.client() as client:
        for tree in trees:
            assert stack.answer(SessionHandle(tree, client), timeout_s=600 if LONG else 240) == expected
    stack.assert_settled(timeout_s=150)


@pytest.mark.parametrize("end", [long("stop"), "delete"])
def test_a_tree_that_is_ended_while_everything_dies_ends_entirely(end: str, make_stack: MakeStack) -> None:
    """Every session below it ends, too, and nothing is left to do for anybody."""
    dice = new_dice()
    stack = start(make_stack)
    stack.env["CHAOS_LEAF_S"] = "0.3"
    monkey = Monkey(stack, dice, ["server", "worker", "router", "callbacks", "reaper"])
    with stack.client() as client:
        tree = client.submit("mixture", f"branch {SHAPE} {TALK}").id
        for _ in range(3):
            time.sleep(dice.uniform(*PAUSE_S))
            monkey.strike()
        retrying(lambda: getattr(client, end)(tree))
        for _ in range(3):
            monkey.strike()
            time.sleep(dice.uniform(*PAUSE_S))
        monkey.rest()
    stack.assert_settled(timeout_s=150)
    states = {session.state for session in stack.ledger.tree(tree)}
    assert states <= ({"deleted"} if end == "delete" else {"stopped", "finished", "failed"})


def test_each_word_of_a_user_is_heard_once(make_stack: MakeStack) -> None:
    """Said again and again under one key while the server dies, each is in exactly one run, in order."""
    dice = new_dice()
    stack = start(make_stack)
    monkey = Monkey(stack, dice, ["server", "worker", "callbacks"])
    words = [f"word {number}" for number in range(8)]
    with stack.client() as client:
        session = client.submit("listener", "listen")
        for number, word in enumerate(words):
            if number % 2:
                monkey.strike()
            item = retrying(partial(client.resume, session.id, word, key=word))
            assert retrying(partial(client.resume, session.id, word, key=word)) == item
        monkey.rest()
        client.wait(session.id, item=item, timeout_s=150)
        assert session.result(timeout_s=150).split(", ") == words
    stack.assert_settled(timeout_s=150)


def all_over(stack: Stack, trees: list[str]) -> bool:
    """Whether every tree has its answer; not while the server is away."""
    try:
        return all(is_over(stack.ledger.session(tree)) for tree in trees)
    except (redis_py.RedisError, ServerUnavailable, OSError):
        return False

"""A run that is blocked, because its tree has as many runs at work as it may, is so until it is taken or ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.bootstrap import Container
from orchestrator.ids import new_claim_id
from orchestrator.ledger import Concurrency, Ledger, PollRequest, RunRef, Slot
from orchestrator.redisdb import ledger_keys
from tests.kit import Kit


class Tree(Kit):
    """A root at work that is all its tree may have at work, and a child whose run is blocked."""

    def __init__(self, parts: Container, **options: Any) -> None:
        super().__init__(parts, **options)
        self.root, held = self.given_run()
        waiting = self.start(self.delegate(held, "a"))
        assert waiting is not None
        self.waiting: RunRef = waiting
        Concurrency(self.redis).limit_tree(self.root, 1)
        assert not self.take_next()
        assert self.blocked() == [waiting.run]

    def take_next(self) -> bool:
        slot = Slot(name="s1", worker="w1", agents=(self.waiting.agent,))
        poll = PollRequest(slot=slot, claim=new_claim_id())
        self.ledger.claim_next(0, poll)
        return poll.held is not None

    def no_limit(self) -> None:
        """As another process does it that dies before it unblocks anything."""
        self.redis.delete(ledger_keys.run_limits(0))

    def blocked(self) -> list[str]:
        trees = self.redis.smembers(ledger_keys.blocked_trees(0))
        runs = [run.decode() for run in self.redis.zrange(ledger_keys.blocked(self.root), 0, -1)]
        assert trees == ({self.root.encode()} if runs else set())
        return runs


@pytest.fixture
def tree(ledger: Ledger) -> Tree:
    return Tree.of(ledger)


def _sweep_and_take_next(tree: Tree) -> bool:
    assert tree.ledger.sweep.make_ready(tree.waiting.run) is not None
    return tree.take_next()


@pytest.mark.parametrize(
    "take",
    [
        lambda tree: tree.claim(tree.waiting),
        lambda tree: tree.ledger.take_external(tree.waiting),
        _sweep_and_take_next,
    ],
    ids=["by its name", "by a program", "after the sweep"],
)
def test_a_blocked_run_that_is_taken_is_blocked_no_longer(tree: Tree, take: Callable[[Tree], object]) -> None:
    tree.no_limit()
    take(tree)
    assert tree.ledger.run(tree.waiting.run).state == "running"  # type: ignore[union-attr]
    assert tree.blocked() == []


def test_a_spoilt_index_of_blocked_runs_hinders_no_end(tree: Tree) -> None:
    tree.redis.delete(ledger_keys.blocked(tree.root))
    tree.redis.set(ledger_keys.blocked(tree.root), "spoilt")
    assert tree.ledger.stop(tree.waiting.session, "not needed").outcome == "ended"

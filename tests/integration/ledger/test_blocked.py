"""A run that is blocked, because its tree has as many runs at work as it may, is so until it is taken or ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis as redis_py

from orchestrator.ids import new_claim_id
from orchestrator.ledger import Concurrency, Ledger, PollRequest, RunRef, Slot
from orchestrator.redisdb import ledger_keys
from tests.kit import Kit


class Tree:
    """A root at work that is all its tree may have at work, and a child whose run is blocked."""

    def __init__(self, kit: Kit) -> None:
        self.ledger = kit.ledger
        self.redis = kit.ledger.redis
        self.root = kit.given()
        self.held = kit.run(self.root)
        child = kit.delegate(self.held, "a")
        run = kit.start(child)
        assert run is not None
        self.run: RunRef = run
        Concurrency(self.redis).limit_tree(self.root, 1)
        assert not self.take_next()
        assert self.blocked() == [run.run]

    def take_next(self) -> bool:
        slot = Slot(name="s1", worker="w1", agents=(self.run.agent,))
        poll = PollRequest(slot=slot, claim=new_claim_id())
        self.ledger.claim_next(0, poll)
        return poll.held is not None

    def take_by_name(self) -> bool:
        held = self.ledger.claim(self.run.run, new_claim_id(), session_id=self.run.session, worker="w1")
        return held is not None

    def no_limit(self) -> None:
        """As another process does it that dies before it unblocks anything."""
        self.redis.delete(ledger_keys.run_limits(0))

    def blocked(self) -> list[str]:
        trees = self.redis.smembers(ledger_keys.blocked_trees(0))
        runs = [run.decode() for run in self.redis.zrange(ledger_keys.blocked(self.root), 0, -1)]
        assert trees == ({self.root.encode()} if runs else set())
        return runs


@pytest.fixture
def tree(kit: Kit) -> Tree:
    return Tree(kit)


def _sweep_and_take_next(tree: Tree) -> bool:
    assert tree.ledger.sweep.make_ready(tree.run.run) is not None
    return tree.take_next()


@pytest.mark.parametrize(
    "take",
    [Tree.take_by_name, lambda tree: tree.ledger.take_external(tree.run), _sweep_and_take_next],
    ids=["by its name", "by a program", "after the sweep"],
)
def test_a_blocked_run_that_is_taken_is_blocked_no_longer(tree: Tree, take: Callable[[Tree], bool]) -> None:
    tree.no_limit()
    take(tree)
    assert tree.ledger.run(tree.run.run).state == "running"  # type: ignore[union-attr]
    assert tree.blocked() == []


def test_a_spoilt_index_of_blocked_runs_hinders_no_end(
    tree: Tree, ledger: Ledger, redis: redis_py.Redis
) -> None:
    redis.delete(ledger_keys.blocked(tree.root))
    redis.set(ledger_keys.blocked(tree.root), "spoilt")
    assert ledger.stop(tree.run.session, "not needed").outcome == "ended"

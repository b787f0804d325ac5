"""Damage done behind the ledger's back, one key each: it is found, and put right where the ledger knows the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis as redis_py
from click.testing import Result

from orchestrator.bootstrap import Container
from orchestrator.config.settings import load_settings
from orchestrator.doctor import Doctor, Problem, Severity
from orchestrator.ids import callback_id, child_session_id, question_id, root_session_id
from orchestrator.ledger import ClaimedRun, Lease, SessionState
from orchestrator.redisdb import ledger_keys
from tests.kit import Kit

#: No service is alive in these tests, so that nothing moves: the promise holds, and things are stuck.
STUCK = 3


class Family(Kit):
    """A root that waits for all of its children: one has ended and its callback queued, one is queued, one at work."""

    def __init__(self, parts: Container) -> None:
        super().__init__(parts)
        self.root, held = self.given_run()
        self.done, self.queued, self.running = (
            self.delegate(held, name, group="g") for name in ("done", "queued", "running")
        )
        self.commit(held.claim, "wait", waiting={"g": {"mode": "all"}})
        self.finish(self.done, "the answer")
        dispatch = self.start(self.queued)
        self.queued_run = dispatch.run
        self.at_work: ClaimedRun = self.run(self.running)

    def examine(self, *words: str) -> Result:
        """Have the doctor look at everything."""
        return self.orchestra("doctor", "--full", "--quick", *words)

    def broken(self) -> str:
        """What the doctor says of what is broken."""
        found = self.examine()
        assert found.exit_code == 1, found.output
        return found.stdout

    def fixed(self) -> Result:
        """Have everything put right; nothing is broken then."""
        fixed = self.examine("--fix")
        assert fixed.exit_code == STUCK, fixed.output
        return fixed

    def end(self) -> None:
        """Do what router, workers, reaper and callback service do, by what they find in the indexes only."""
        ledger = self.ledger
        for _ in range(20):
            for lease in ledger.sweep.leases(0):
                self._end(lease)
            later = ledger.server_ms() + 3_600_000
            ledger.set_time(later)
            for run in ledger.sweep.undispatched(0):
                dispatch = ledger.sweep.make_ready(run)
                if dispatch is not None:
                    self.commit(self.claim(dispatch).claim, "the answer")
            for session in ledger.sweep.waiting(0):
                ledger.flush(session)
            for root in ledger.sweep.unpublished_results(0):
                self.parts.settle(root)

    def _end(self, lease: Lease) -> None:
        if lease.run == self.at_work.run.id and lease.claim == self.at_work.claim.claim:
            self.commit(self.at_work.claim, "the answer")


@pytest.fixture
def family(
    redis: redis_py.Redis,
    redis_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    impatient_doctor: None,
) -> Family:
    for name, value in {"LEASE_S": "0.1", "HEARTBEAT_S": "0.02"}.items():
        monkeypatch.setenv(f"ORCHESTRA_{name}", value)
    return Family.on(redis, load_settings(redis_url=redis_url, data=tmp_path / "data"))


def _off_by_one(field: str, by: int = 1) -> Callable[[Family], object]:
    return lambda f: f.redis.hincrby(ledger_keys.session(f.root), field, by)


def _ask_nobody(family: Family) -> None:
    """A question that the records of whoever was asked do not have."""
    question = question_id(family.queued, "q")
    family.redis.hset(ledger_keys.session(family.queued), f"question:{question}", family.root)
    family.redis.hincrby(ledger_keys.session(family.queued), "questions", 1)


#: What is done → what the doctor says of it.
DAMAGE: dict[str, tuple[Callable[[Family], object], str]] = {
    "queued run in no index": (
        lambda f: f.redis.zrem(ledger_keys.queued(0), f.queued_run),
        "[run-unindexed]",
    ),
    "running run in no index": (
        lambda f: f.redis.zrem(ledger_keys.running(0), f.at_work.run.id),
        "[run-unindexed]",
    ),
    "group counter too high": (_off_by_one("group:g:owed"), "says 3 callbacks of group 'g' are owed"),
    "group counter too low": (_off_by_one("group:g:owed", -1), "says 1 callbacks of group 'g' are owed"),
    "group's launches": (_off_by_one("group:g:launched"), "says 4 callbacks of group 'g' are launched"),
    "group's dead": (_off_by_one("group:g:dead"), "says 1 callbacks of group 'g' are dead"),
    "counter of a group that is none": (_off_by_one("group::owed"), "says 1 callbacks without a group"),
    "launched": (_off_by_one("launched"), "says 4 callbacks are launched; its records hold 3"),
    "owed": (_off_by_one("owed", -1), "says 1 callbacks are owed; its records hold 2"),
    "delivered": (_off_by_one("delivered"), "says 1 callbacks are delivered"),
    "dead": (_off_by_one("dead"), "says 1 callbacks are dead"),
    "child in no tree": (lambda f: f.redis.zrem(ledger_keys.tree(f.root), f.queued), "[session-unindexed]"),
    "root in no tree": (lambda f: f.redis.zrem(ledger_keys.tree(f.root), f.root), "[session-unindexed]"),
    "tree without its index": (lambda f: f.redis.delete(ledger_keys.tree(f.root)), "[session-unindexed]"),
    "root in no index": (lambda f: f.redis.zrem(ledger_keys.roots(0), f.root), "[session-unindexed]"),
    "no index of roots": (lambda f: f.redis.delete(ledger_keys.roots(0)), "[session-unindexed]"),
    "session that waits in no index": (
        lambda f: f.redis.zrem(ledger_keys.waiting(0), f.root),
        "[session-unindexed]",
    ),
    "callback in no queue": (
        lambda f: f.redis.zrem(ledger_keys.queue(f.root), callback_id(f.done)),
        "[queue-lost]",
    ),
    "stray in the queue": (
        lambda f: f.redis.zadd(ledger_keys.queue(f.root), {callback_id(f.queued): 1}),
        "[queue-stray]",
    ),
    "question counted": (
        lambda f: f.redis.hincrby(ledger_keys.session(f.queued), "questions", 1),
        "says 1 questions are open; its record names 0",
    ),
    "question of nobody": (_ask_nobody, "[question-lost]"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_the_ledger_still_knows_is_put_right_and_the_tree_goes_on(family: Family, damage: str) -> None:
    harm, said = DAMAGE[damage]
    harm(family)
    assert said in family.broken()
    fixed = family.fixed()
    (line, *_) = [line for line in fixed.stderr.splitlines() if said in line]
    assert line.startswith("fixed: ")
    assert "BREAK" not in fixed.stdout
    family.end()
    assert {s.state for s in family.ledger.tree(family.root)} == {SessionState.FINISHED}
    assert family.ledger.result(family.root) == (SessionState.FINISHED, "the answer")
    assert family.balance(family.root) == (3, 3, 0, 0)
    assert family.examine().exit_code == STUCK


def test_a_leftover_that_cannot_be_taken_away_keeps_nobody_from_the_rest(family: Family) -> None:
    """Somebody overwrote a budget between the look and the repair."""
    family.redis.zrem(ledger_keys.queued(0), family.queued_run)
    family.redis.set("ao:{00}:budget", "of another type")
    doctor = Doctor(family.parts, audit=None)
    found = doctor.examine(watch_leases=False)
    left = Problem(Severity.BREAK, "reserved-wrong", "ao:{00}:budget", "is left")
    doctor.repair(replace(found, findings=(left, *found.findings)))
    assert family.redis.zscore(ledger_keys.queued(0), family.queued_run) is not None


def contents(redis: redis_py.Redis) -> dict[bytes, object]:
    """Every key with what is in it: of a large hash the dump has no fixed order."""
    return {
        key: redis.hgetall(key) if redis.type(key) == b"hash" else redis.dump(key)
        for key in redis.scan_iter("ao:*")
    }


def test_without_damage_nothing_is_changed(family: Family) -> None:
    before = contents(family.redis)
    assert family.examine().exit_code == STUCK
    for session in (family.root, family.done, family.queued, family.running):
        assert family.ledger.sweep.reindex(session, recount=True) == []
    assert contents(family.redis) == before
    assert "fixed" not in family.examine("--fix").stderr


OVER: dict[str, tuple[Callable[[Family], object], str]] = {
    "expiry": (lambda f: f.redis.zrem(ledger_keys.timers(0), f"expire|{f.root}"), "[expiry-lost]"),
    "root in no index": (lambda f: f.redis.zrem(ledger_keys.roots(0), f.root), "[session-unindexed]"),
}


@pytest.mark.parametrize("damage", OVER)
def test_a_finished_tree_expires_all_the_same(family: Family, damage: str) -> None:
    harm, said = OVER[damage]
    family.end()
    harm(family)
    assert said in family.broken()
    family.fixed()
    due = family.redis.zscore(ledger_keys.timers(0), f"expire|{family.root}")
    ended = family.ledger.session(family.root).ended_ms
    assert due is not None
    assert due >= ended + family.ledger.limits.tree_ttl_ms


def test_a_result_that_left_the_index_is_stored_for_its_caller(family: Family) -> None:
    family.end()
    family.redis.hdel(ledger_keys.session(family.root), "settled_ms")
    assert "[result-unindexed]" in family.examine().stdout
    fixed = family.fixed()
    assert "1 settled" in fixed.stderr
    assert family.redis.hget(ledger_keys.session(family.root), "settled_ms")


@pytest.mark.parametrize("who", ["nobody", "child"])
def test_a_result_that_is_owed_to_nobody_is_named_and_taken_off(family: Family, who: str) -> None:
    """Nor does a child that stood there get a lifetime of its own, after which it would be removed alone."""
    stray = family.done if who == "child" else root_session_id("nobody")
    family.redis.zadd(ledger_keys.results(0), {stray: 1})
    assert "[result-owed-to-nobody]" in family.examine().stdout
    fixed = family.fixed()
    assert "[result-owed-to-nobody]" not in fixed.stdout
    assert family.ledger.sweep.unpublished_results(0) == []
    assert family.redis.zscore(ledger_keys.timers(0), f"expire|{stray}") is None


def test_an_answer_that_nobody_has_is_named_and_not_taken_for_an_empty_one(family: Family) -> None:
    family.end()
    family.redis.hdel(ledger_keys.bodies(family.root), "result")
    fixed = family.examine("--fix")
    assert fixed.exit_code == 1
    assert f"not fixed: {family.root}: has finished, and the text of its answer is gone" in fixed.stderr
    assert "[result-gone]" in fixed.stdout
    asked = family.orchestra("result", family.root)
    assert asked.exit_code == 1, asked.output
    assert "its answer is gone" in asked.stderr


def test_a_task_whose_text_is_gone_is_named(family: Family) -> None:
    family.redis.hdel(ledger_keys.bodies(family.queued), "prompt")
    fixed = family.examine("--fix")
    assert fixed.exit_code == 1
    assert f"not fixed: {family.queued}: the text of its task is gone" in fixed.stderr


def test_counters_are_not_taken_from_records_that_lack_a_launch(family: Family) -> None:
    """The records would be made to agree with each other, and the loss would not show any more."""
    family.redis.hdel(ledger_keys.items(family.root), callback_id(family.queued))
    fixed = family.examine("--fix")
    assert fixed.exit_code == 1
    assert "[unbooked-child]" in fixed.stdout
    assert family.ledger.session(family.root).launched == 3


def test_what_is_repaired_twice_is_repaired_once(family: Family) -> None:
    family.redis.zrem(ledger_keys.queued(0), family.queued_run)
    family.redis.hincrby(ledger_keys.session(family.root), "group:g:owed", 1)
    assert family.ledger.sweep.reindex(family.queued, recount=True) == ["dispatch"]
    assert family.ledger.sweep.reindex(family.queued, recount=True) == []
    assert family.ledger.sweep.reindex(family.root, recount=False) == []
    assert family.ledger.sweep.reindex(family.root, recount=True) == ["group:g:owed"]
    assert family.ledger.sweep.reindex(family.root, recount=True) == []
    assert family.ledger.sweep.reindex(child_session_id(family.root, "nobody"), recount=True) == []
    assert not family.ledger.sweep.restore_text(family.done, "the answer")

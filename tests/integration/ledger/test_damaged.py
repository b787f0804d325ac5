"""What is damaged in one session is a finding of its own line, and keeps nobody from looking at the others."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redis as redis_py
from click.testing import CliRunner, Result

from orchestrator.bootstrap import Container, build_container
from orchestrator.cli import main
from orchestrator.config.settings import load_settings
from orchestrator.doctor import examination
from orchestrator.ids import callback_id
from orchestrator.ledger import ClaimedRun, ItemState, RunState, SessionState
from orchestrator.redisdb import keys, ledger_keys

from .conftest import Play


class Two:
    """Two parents that wait for children; what is done to the first one must not matter to the second."""

    def __init__(self, redis: redis_py.Redis, url: str, data: Path) -> None:
        self.redis = redis
        self.options = ["--redis-url", url, "--data", str(data)]
        self.parts: Container = build_container(redis, load_settings(redis_url=url, data=data))
        self.play = Play(self.parts.ledger)
        self.ill, self.ill_child = self._parent("ill")
        self.well, self.well_child = self._parent("well")

    def _parent(self, seed: str) -> tuple[str, str]:
        held = self.play.run(self.play.submit(seed))
        child = self.play.delegate(held, "a")
        self.play.delegate(held, "b")
        self.play.commit(held.claim, waiting={"": {"mode": "all"}})
        return held.session.id, child

    @property
    def run(self) -> str:
        return self.redis.lindex(ledger_keys.runs(self.ill), 0).decode()

    def orchestra(self, *words: str) -> Result:
        return CliRunner().invoke(main, [*words, *self.options])


@pytest.fixture
def two(redis: redis_py.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Two:
    monkeypatch.setattr(examination, "SECOND_LOOKS", (0.0,))
    return Two(redis, redis_url, tmp_path / "data")


def _retype(redis: redis_py.Redis, key: str) -> None:
    redis.delete(key)
    redis.set(key, "x")


DAMAGE: dict[str, tuple[Callable[[Two], object], str]] = {
    "waiting policy": (lambda t: t.redis.hset(ledger_keys.session(t.ill), "waiting", "{x"), "its field 'waiting'"),
    "policy of another form": (
        lambda t: t.redis.hset(ledger_keys.session(t.ill), "waiting", '{"": 7}'),
        "its field 'waiting'",
    ),
    "policy with a number of another form": (
        lambda t: t.redis.hset(
            ledger_keys.session(t.ill), "waiting", '{"": {"mode": "quorum", "k": 1, "base": {"": "x"}}}'
        ),
        "its field 'waiting'",
    ),
    "policy without an end": (
        lambda t: t.redis.hset(ledger_keys.session(t.ill), "waiting", '{"": {"deadline_ms": 1e999}}'),
        "its field 'waiting'",
    ),
    "chain": (lambda t: t.redis.hset(ledger_keys.session(t.ill), "chain", "7"), "its field 'chain'"),
    "state": (lambda t: t.redis.hset(ledger_keys.session(t.ill), "state", "asleep"), "its field 'state'"),
    "counter": (lambda t: t.redis.hset(ledger_keys.session(t.ill), "owed", "many"), "its field 'owed' is not a number"),
    "no id": (lambda t: t.redis.hdel(ledger_keys.session(t.ill), "id"), "its field 'id'"),
    "item": (
        lambda t: t.redis.hset(ledger_keys.items(t.ill), callback_id(t.ill_child), "{x"),
        "its record cannot be read: '{x'",
    ),
    "item that is no object": (lambda t: t.redis.hset(ledger_keys.items(t.ill), callback_id(t.ill_child), "7"), "item cb_"),
    "item in no state": (
        lambda t: t.redis.hset(
            ledger_keys.items(t.ill),
            callback_id(t.ill_child),
            t.redis.hget(ledger_keys.items(t.ill), callback_id(t.ill_child)).replace(b'"owed"', b'"lent"'),
        ),
        "item cb_",
    ),
    "run's items": (lambda t: t.redis.hset(ledger_keys.run(t.run), "items", "{x"), "its field 'items'"),
    "run's state": (lambda t: t.redis.hset(ledger_keys.run(t.run), "state", "walking"), "its field 'state'"),
    "run's number": (lambda t: t.redis.hdel(ledger_keys.run(t.run), "number"), "its field 'number' is missing"),
    "session of another type": (lambda t: _retype(t.redis, ledger_keys.session(t.ill)), "WRONGTYPE"),
    "items of another type": (lambda t: _retype(t.redis, ledger_keys.items(t.ill)), "its items cannot be read"),
    "queue of another type": (lambda t: _retype(t.redis, ledger_keys.queue(t.ill)), "its queue"),
    "texts of another type": (lambda t: _retype(t.redis, ledger_keys.bodies(t.ill)), "its texts"),
    "runs of another type": (lambda t: _retype(t.redis, ledger_keys.runs(t.ill)), "its list of runs"),
    "run of another type": (lambda t: _retype(t.redis, ledger_keys.run(t.run)), "run run_"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_is_damaged_has_its_line_and_stops_nothing_else(two: Two, damage: str) -> None:
    harm, named = DAMAGE[damage]
    harm(two)
    doctor = two.orchestra("doctor", "--full", "--quick")
    assert doctor.exit_code == 1, doctor.output
    (line,) = [line for line in doctor.stdout.splitlines() if "[damaged]" in line]
    assert two.ill in line
    assert named in line
    assert two.well not in "".join(x for x in doctor.stdout.splitlines() if x.startswith("BREAK"))
    assert f"pending  {callback_id(two.well_child)}: " in doctor.stdout

    why = two.orchestra("why", two.ill)
    assert why.exit_code == 1, why.output
    assert "[damaged]" in why.stdout
    assert named in why.stdout
    well = two.orchestra("why", two.well)
    assert well.exit_code == 0, well.output

    found = json.loads(two.orchestra("sessions", "--json").stdout)["sessions"]
    assert {one["session"] for one in found} == {two.ill, two.well}
    assert two.orchestra("sessions").exit_code == 0
    assert two.orchestra("tree", two.well).exit_code == 0

    for child in two.parts.ledger.tree(two.well)[1:]:
        two.play.finish(child.id)
    assert two.play.resume(two.well).items


def test_sessions_and_tree_say_what_is_damaged(two: Two) -> None:
    two.redis.hset(ledger_keys.session(two.ill), "waiting", "{x")
    for command in ("sessions", "tree"):
        done = two.orchestra(command, *([two.ill] if command == "tree" else []))
        assert done.exit_code == 0, done.output
        assert "damaged: its field 'waiting' cannot be read" in done.stdout


def test_an_outline_shows_what_is_damaged_and_passes_over_what_is_gone(two: Two) -> None:
    _, ill, gone = (one.id for one in two.parts.ledger.tree(two.ill))
    _retype(two.redis, ledger_keys.session(ill))
    two.redis.delete(ledger_keys.session(gone))
    found = [(one.id, one.parent, one.state, one.launched) for one in two.parts.reader.outline(two.ill)]
    assert found == [(two.ill, "", "idle", 2), (ill, two.ill, "damaged", 0)]


@pytest.mark.parametrize("index", [ledger_keys.roots(0), "tree"])
def test_an_index_of_another_type_is_a_finding_too(two: Two, index: str) -> None:
    _retype(two.redis, ledger_keys.tree(two.ill) if index == "tree" else index)
    doctor = two.orchestra("doctor", "--full", "--quick")
    assert doctor.exit_code == 1, doctor.output
    assert "[damaged]" in doctor.stdout


@pytest.mark.parametrize("key", [keys.totals(0), keys.dead_usage(0), keys.agents(), ledger_keys.results(0)])
def test_a_part_of_the_stack_that_cannot_be_read_hides_no_other(two: Two, key: str) -> None:
    _retype(two.redis, key)
    found = two.orchestra("doctor", "--full", "--quick").stdout
    assert f"{key} is a string and has to be" in found
    for rule in ("service-silent", "no-audit-trail"):
        assert f"[{rule}]" in found, found


@pytest.mark.parametrize(
    "damage", ["waiting policy", "policy of another form", "chain", "item", "run's items"]
)
def test_what_is_damaged_can_be_stopped(two: Two, damage: str) -> None:
    """It ends in one step, with all that it can be said of."""
    for child in two.parts.ledger.tree(two.ill)[1:]:
        two.play.finish(child.id)
    if damage == "run's items":
        run = two.play.resume(two.ill).run.id
        two.redis.hset(ledger_keys.run(run), "items", "{x")
    else:
        DAMAGE[damage][0](two)
    assert two.parts.ledger.stop(two.ill, "enough", force=True).outcome == "ended"
    found = two.parts.ledger.session(two.ill)
    assert (found.state, found.run, found.reason) == (SessionState.STOPPED, "", "enough")
    assert two.redis.zscore(ledger_keys.results(0), two.ill) is not None


@pytest.mark.parametrize("damage", ["waiting policy", "policy of another form"])
def test_a_child_ends_whatever_its_parent_waits_for(two: Two, damage: str) -> None:
    """The callback service is told, and says what is wrong with the policy."""
    DAMAGE[damage][0](two)
    before = two.redis.xlen(keys.session_events(0))
    two.play.finish(two.ill_child)
    assert two.parts.ledger.session(two.ill_child).state is SessionState.FINISHED
    assert two.redis.xlen(keys.session_events(0)) == before + 1


@pytest.mark.parametrize(
    "end",
    [
        lambda two, child: two.play.commit(child.claim),
        lambda two, _: two.parts.ledger.stop(two.ill_child, "enough", force=True),
    ],
)
def test_a_child_whose_end_its_parent_cannot_be_told_of_does_not_end(
    two: Two, end: Callable[[Two, ClaimedRun], object]
) -> None:
    """Nothing is written before the parent's record is readable, and nothing is lost then."""
    ledger, name = two.parts.ledger, callback_id(two.ill_child)
    child = two.play.run(two.ill_child)
    record = two.redis.hget(ledger_keys.items(two.ill), name)
    two.redis.hset(ledger_keys.items(two.ill), name, "{x")
    with pytest.raises(redis_py.ResponseError, match=f"the record {name} of session {two.ill} is damaged"):
        end(two, child)
    assert ledger.session(two.ill_child).run == child.run.id
    assert ledger.run(child.run.id).state is RunState.RUNNING  # type: ignore[union-attr]
    two.redis.hset(ledger_keys.items(two.ill), name, record)
    two.play.commit(child.claim)
    assert [item.id for item in ledger.items(two.ill) if item.state is ItemState.QUEUED] == [name]

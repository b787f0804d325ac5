"""What is damaged in one session is a finding of its own line, and keeps nobody from looking at the others."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.bootstrap import Container
from orchestrator.config.settings import load_settings
from orchestrator.ids import callback_id, root_session_id
from orchestrator.ledger import ClaimedRun, Committed, ItemState, Ledger, RunState, SessionState
from orchestrator.policy.approval import ApprovalRequest
from orchestrator.redisdb import keys, ledger_keys
from tests.kit import Kit, carried
from tests.services import Services
from tests.waiting import wait_until


class Two(Kit):
    """Two parents that wait for children; what is done to the first one must not matter to the second."""

    def __init__(self, parts: Container) -> None:
        super().__init__(parts)
        self.ill, self.ill_child, _ = self.parent_of("a", "b", seed="ill", waiting={"": {"mode": "all"}})
        self.well, self.well_child, _ = self.parent_of("a", "b", seed="well", waiting={"": {"mode": "all"}})

    @property
    def ill_run(self) -> str:
        return self.redis.lindex(ledger_keys.runs(self.ill), 0).decode()


@pytest.fixture
def two(redis: redis_py.Redis, redis_url: str, tmp_path: Path, impatient_doctor: None) -> Two:
    return Two.on(redis, load_settings(redis_url=redis_url, data=tmp_path / "data"))


def spoil(redis: redis_py.Redis, key: str) -> None:
    redis.delete(key)
    redis.set(key, "of another type")


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
    "run's items": (lambda t: t.redis.hset(ledger_keys.run(t.ill_run), "items", "{x"), "its field 'items'"),
    "run's state": (lambda t: t.redis.hset(ledger_keys.run(t.ill_run), "state", "walking"), "its field 'state'"),
    "run's number": (lambda t: t.redis.hdel(ledger_keys.run(t.ill_run), "number"), "its field 'number' is missing"),
    "session of another type": (lambda t: spoil(t.redis, ledger_keys.session(t.ill)), "WRONGTYPE"),
    "items of another type": (lambda t: spoil(t.redis, ledger_keys.items(t.ill)), "its items cannot be read"),
    "queue of another type": (lambda t: spoil(t.redis, ledger_keys.queue(t.ill)), "its queue"),
    "texts of another type": (lambda t: spoil(t.redis, ledger_keys.bodies(t.ill)), "its texts"),
    "runs of another type": (lambda t: spoil(t.redis, ledger_keys.runs(t.ill)), "its list of runs"),
    "run of another type": (lambda t: spoil(t.redis, ledger_keys.run(t.ill_run)), "run run_"),
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

    for child in two.ledger.tree(two.well)[1:]:
        two.finish(child.id)
    assert two.resume(two.well).items


def test_sessions_and_tree_say_what_is_damaged(two: Two) -> None:
    two.redis.hset(ledger_keys.session(two.ill), "waiting", "{x")
    for command in ("sessions", "tree"):
        done = two.orchestra(command, *([two.ill] if command == "tree" else []))
        assert done.exit_code == 0, done.output
        assert "damaged: its field 'waiting' cannot be read" in done.stdout


def test_an_outline_shows_what_is_damaged_and_passes_over_what_is_gone(two: Two) -> None:
    _, ill, gone = (one.id for one in two.ledger.tree(two.ill))
    spoil(two.redis, ledger_keys.session(ill))
    two.redis.delete(ledger_keys.session(gone))
    found = [(one.id, one.parent, one.state, one.launched) for one in two.parts.reader.outline(two.ill)]
    assert found == [(two.ill, "", "idle", 2), (ill, two.ill, "damaged", 0)]


@pytest.mark.parametrize("index", [ledger_keys.roots(0), "tree"])
def test_an_index_of_another_type_is_a_finding_too(two: Two, index: str) -> None:
    spoil(two.redis, ledger_keys.tree(two.ill) if index == "tree" else index)
    doctor = two.orchestra("doctor", "--full", "--quick")
    assert doctor.exit_code == 1, doctor.output
    assert "[damaged]" in doctor.stdout


@pytest.mark.parametrize("key", [keys.totals(0), keys.dead_usage(0), keys.agents(), ledger_keys.results(0)])
def test_a_part_of_the_stack_that_cannot_be_read_hides_no_other(two: Two, key: str) -> None:
    spoil(two.redis, key)
    found = two.orchestra("doctor", "--full", "--quick").stdout
    assert f"{key} is a string and has to be" in found
    for rule in ("service-silent", "no-audit-trail"):
        assert f"[{rule}]" in found, found


@pytest.mark.parametrize(
    "damage", ["waiting policy", "policy of another form", "chain", "item", "run's items"]
)
def test_what_is_damaged_can_be_stopped(two: Two, damage: str) -> None:
    """It ends in one step, with all that it can be said of."""
    for child in two.ledger.tree(two.ill)[1:]:
        two.finish(child.id)
    if damage == "run's items":
        run = two.resume(two.ill).run.id
        two.redis.hset(ledger_keys.run(run), "items", "{x")
    else:
        DAMAGE[damage][0](two)
    assert two.ledger.stop(two.ill, "enough", force=True).outcome == "ended"
    found = two.ledger.session(two.ill)
    assert (found.state, found.run, found.reason) == (SessionState.STOPPED, "", "enough")
    assert two.redis.zscore(ledger_keys.results(0), two.ill) is not None


@pytest.mark.parametrize("damage", ["waiting policy", "policy of another form"])
def test_a_child_ends_whatever_its_parent_waits_for(two: Two, damage: str) -> None:
    """The callback service is told, and says what is wrong with the policy."""
    DAMAGE[damage][0](two)
    before = two.redis.xlen(keys.session_events(0))
    two.finish(two.ill_child)
    assert two.ledger.session(two.ill_child).state is SessionState.FINISHED
    assert two.redis.xlen(keys.session_events(0)) == before + 1


@pytest.mark.parametrize(
    "end",
    [
        lambda two, child: two.commit(child.claim),
        lambda two, _: two.ledger.stop(two.ill_child, "enough", force=True),
    ],
)
def test_a_child_whose_end_its_parent_cannot_be_told_of_does_not_end(
    two: Two, end: Callable[[Two, ClaimedRun], object]
) -> None:
    """Nothing is written before the parent's record is readable, and nothing is lost then."""
    ledger, name = two.ledger, callback_id(two.ill_child)
    child = two.run(two.ill_child)
    record = two.redis.hget(ledger_keys.items(two.ill), name)
    two.redis.hset(ledger_keys.items(two.ill), name, "{x")
    with pytest.raises(redis_py.ResponseError, match=f"the record {name} of session {two.ill} is damaged"):
        end(two, child)
    assert ledger.session(two.ill_child).run == child.run.id
    assert ledger.run(child.run.id).state is RunState.RUNNING  # type: ignore[union-attr]
    two.redis.hset(ledger_keys.items(two.ill), name, record)
    two.commit(child.claim)
    assert [item.id for item in ledger.items(two.ill) if item.state is ItemState.QUEUED] == [name]


# --- A key that somebody overwrote with another type: named once in a while, and nobody else waits for it.


def waiting_parent(kit: Kit, seed: str) -> str:
    """A session that waits for its one child, which has just ended."""
    root, child = kit.parent_of("a", seed=seed)
    kit.finish(child)
    return root


def test_spoilt_ready_runs_hinder_no_end(kit: Kit, ledger: Ledger, redis: redis_py.Redis) -> None:
    root = kit.given()
    kit.start(root)
    spoil(redis, ledger_keys.ready(0, "lead"))
    assert ledger.stop(root, "why").outcome == "ended"


@pytest.mark.parametrize("key", [ledger_keys.session, ledger_keys.items, ledger_keys.queue, ledger_keys.runs])
def test_one_spoilt_session_keeps_nobody_from_his_callbacks(
    services: Services,
    kit: Kit,
    ledger: Ledger,
    redis: redis_py.Redis,
    caplog: pytest.LogCaptureFixture,
    key: Callable[[str], str],
) -> None:
    """Neither in one round trip of the ledger, nor in the service, nor in the sweep."""
    spoilt, fine = waiting_parent(kit, "spoilt"), waiting_parent(kit, "fine")
    later = waiting_parent(kit, "later")
    spoil(redis, key(spoilt))
    verdicts = ledger.flush_all([spoilt, fine])
    assert [v.outcome for v in verdicts] == ["damaged", "run"]
    with caplog.at_level(logging.ERROR):
        services.drain()
        for _ in range(3):
            services.reaper.run_once()
    assert [d.session for d in services.sent] == [later]
    assert redis.xlen(keys.session_events(0)) == 0
    named = [r for r in caplog.records if "flush-failed" in r.getMessage()]
    assert len(named) <= 1


def test_a_service_outlives_indexes_of_another_type(
    services: Services, kit: Kit, redis: redis_py.Redis
) -> None:
    """What they would have named is seen to when they are what they were."""
    root = kit.given()
    stop = threading.Event()
    service = threading.Thread(target=services.service.run, args=(stop,))
    service.start()
    try:
        indexes = (ledger_keys.timers, ledger_keys.waiting, ledger_keys.closing, ledger_keys.results)
        for spoilt in (*(key(0) for key in indexes), keys.session_events(0)):
            with while_spoilt(redis, spoilt):
                for _ in range(2):
                    services.reaper.run_once()
                    services.clock.advance(1)
        parent = kit.run(root)
        child = kit.delegate(parent, "a")
        kit.commit(parent.claim)
        kit.finish(child)
        wait_until(lambda: [d.session for d in services.sent] == [root])
        assert service.is_alive()
    finally:
        stop.set()
        service.join(60)


def test_a_run_that_cannot_be_counted_is_not_taken(kit: Kit, redis: redis_py.Redis) -> None:
    """The sweep comes to it again, once the key is what it was."""
    dispatch = kit.start(kit.given())
    spoil(redis, ledger_keys.at_work(0))
    with pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        kit.claim(dispatch)
    assert redis.zscore(ledger_keys.queued(0), dispatch.run) is not None
    assert redis.zscore(ledger_keys.running(0), dispatch.run) is None
    redis.delete(ledger_keys.at_work(0))
    assert kit.claim(dispatch).run.attempt == 1


def test_a_group_that_was_removed_is_made_again_and_no_event_is_lost(
    services: Services, kit: Kit, redis: redis_py.Redis
) -> None:
    """Those that it had not handled are handled then; the stream may be gone with it."""
    root = waiting_parent(kit, "one")
    redis.xgroup_destroy(keys.session_events(0), "callbacks")
    wait_until(lambda: services.drain() or services.sent)
    assert [d.session for d in services.sent] == [root]
    redis.delete(keys.session_events(0))
    services.drain()
    another = waiting_parent(kit, "two")
    wait_until(lambda: services.drain() or len(services.sent) == 2)
    assert services.sent[1].session == another


@pytest.mark.parametrize(
    "key",
    [ledger_keys.timers(0), keys.totals(0), keys.messages(0, "query", "high"), ledger_keys.approvals(0)],
)
def test_a_question_that_cannot_be_asked_is_open_once_when_it_is_asked_again(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis, key: str
) -> None:
    """One that was counted twice would keep its session from ever ending."""
    root = kit.given()
    claim = kit.run(root).claim
    request = ApprovalRequest(
        tool="t", arguments="{}", digest="d", agent="lead", session=root, run=claim.run, expires_ms=1 << 45
    )

    def ask() -> object:
        if key == ledger_keys.approvals(0):
            return ledger.approvals.request(
                claim, request, approval="apr_1", effect="e", title="", envelope=carried("query")
            )
        return ledger.send(
            claim,
            root,
            "which?",
            opens=True,
            effect="e",
            item_id="q",
            kind="query",
            priority="high",
            envelope=carried("query"),
            conversation="c",
            open_ms=1000,
            extra={"agent": "lead"},
        )

    with refused_while_spoilt(redis, key):
        ask()
    ask()
    assert redis.hget(ledger_keys.session(root), "questions") == b"1"
    assert len(ledger.session(root).questions) == 1


def test_a_result_that_cannot_be_marked_as_published_still_is_outstanding(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis
) -> None:
    root = kit.given()
    kit.finish(root)
    with refused_while_spoilt(redis, ledger_keys.timers(0)):
        ledger.sweep.mark_result_published(root)
    assert ledger.sweep.unpublished_results(0) == [root]


SHARED = (
    *(key(0) for key in (ledger_keys.running, ledger_keys.queued, ledger_keys.waiting, ledger_keys.timers)),
    keys.session_events(0),
    keys.totals(0),
)
QUEUES = (ledger_keys.queued(0), ledger_keys.ready(0, "lead"), ledger_keys.turns(0, "lead"))


@contextmanager
def while_spoilt(redis: redis_py.Redis, key: str) -> Iterator[None]:
    """The key is of another type for a while."""
    whole = redis.dump(key)
    spoil(redis, key)
    yield
    # In one step: the callback service makes its stream anew as soon as the key is gone.
    if whole is None:
        redis.delete(key)
    else:
        redis.restore(key, 0, whole, replace=True)


@contextmanager
def refused_while_spoilt(redis: redis_py.Redis, key: str) -> Iterator[None]:
    """The transition refuses to do anything meanwhile."""
    with while_spoilt(redis, key), pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        yield


@pytest.mark.parametrize("key", [*SHARED, ledger_keys.queue(root_session_id("root"))])
def test_a_commit_that_cannot_be_written_whole_is_not_written_at_all(
    services: Services, kit: Kit, redis: redis_py.Redis, key: str
) -> None:
    """The worker commits again later, and the parent hears of its child."""
    root, child = kit.parent_of("a")
    held = kit.run(child)
    with refused_while_spoilt(redis, key):
        kit.commit(held.claim)
    committed = kit.commit(held.claim)
    assert isinstance(committed, Committed)
    assert (committed.first, committed.over) == (True, True)
    services.drain()
    assert [d.session for d in services.sent] == [root]
    assert [item.state for item in kit.ledger.items(root)] == [ItemState.CLAIMED]


@pytest.mark.parametrize("key", [*QUEUES, ledger_keys.timers(0)])
def test_a_resume_that_cannot_be_written_whole_leaves_the_queue_as_it_is(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis, key: str
) -> None:
    root = waiting_parent(kit, "root")
    with while_spoilt(redis, key):
        assert ledger.flush(root).outcome == "damaged"
    assert [item.state for item in ledger.items(root)] == [ItemState.QUEUED]
    assert ledger.flush(root).outcome == "run"


@pytest.mark.parametrize("key", [ledger_keys.waiting(0), keys.session_events(0), keys.totals(0)])
def test_a_prompt_that_cannot_be_queued_is_queued_when_it_is_sent_again(
    kit: Kit, ledger: Ledger, redis: redis_py.Redis, key: str
) -> None:
    root = kit.given()
    kit.finish(root)
    with refused_while_spoilt(redis, key):
        ledger.enqueue(root, "more", item_id="one")
    assert ledger.enqueue(root, "more", item_id="one")
    assert ledger.flush(root).outcome == "run"


@pytest.mark.parametrize("key", [ledger_keys.roots(0), ledger_keys.timers(0), keys.totals(0)])
def test_a_submission_that_cannot_be_written_whole_makes_no_session(
    kit: Kit, redis: redis_py.Redis, key: str
) -> None:
    with refused_while_spoilt(redis, key):
        kit.given()
    assert kit.ledger.find([root_session_id("root")]) == []
    assert not redis.exists(keys.messages(0, "task-delegation", "high"))
    assert kit.start(kit.given()) is not None


@pytest.mark.parametrize("key", QUEUES)
def test_a_first_run_that_cannot_be_made_ready_is_not_made(kit: Kit, redis: redis_py.Redis, key: str) -> None:
    root = kit.given()
    spoil(redis, key)
    try:
        assert kit.start(root) is None
    except redis_py.ResponseError as error:
        assert "WRONGTYPE" in str(error)  # noqa: PT017  (of what all launches share)
    redis.delete(key)
    started = kit.start(root)
    assert redis.zrange(ledger_keys.ready(0, "lead"), 0, -1) == [started.run.encode()]

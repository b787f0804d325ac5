"""A key that somebody overwrote with another type: named once in a while, and nobody else waits for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis as redis_py

from orchestrator.ids import root_session_id
from orchestrator.ledger import Committed, ItemState, Ledger
from orchestrator.policy.approval import ApprovalRequest
from orchestrator.redisdb import keys, ledger_keys
from tests.waiting import wait_until

from .conftest import Play, Stack, envelope


def spoil(redis: redis_py.Redis, key: str) -> None:
    redis.delete(key)
    redis.set(key, "of another type")


def waiting_parent(play: Play, seed: str) -> str:
    """A session that waits for its one child, which has just ended."""
    root, parent = play.begin(seed)
    child = play.delegate(parent, "a")
    play.commit(parent.claim)
    play.finish(child)
    return root


def test_spoilt_ready_runs_hinder_no_end(play: Play, ledger: Ledger, redis: redis_py.Redis) -> None:
    root = play.submit()
    play.start(root)
    spoil(redis, ledger_keys.ready(0, "lead"))
    assert ledger.stop(root, "why").outcome == "ended"


@pytest.mark.parametrize("key", [ledger_keys.session, ledger_keys.items, ledger_keys.queue, ledger_keys.runs])
def test_one_spoilt_session_keeps_nobody_from_his_callbacks(
    stack: Stack,
    play: Play,
    ledger: Ledger,
    redis: redis_py.Redis,
    caplog: pytest.LogCaptureFixture,
    key: Callable[[str], str],
) -> None:
    """Neither in one round trip of the ledger, nor in the service, nor in the sweep."""
    spoilt, fine = waiting_parent(play, "spoilt"), waiting_parent(play, "fine")
    later = waiting_parent(play, "later")
    spoil(redis, key(spoilt))
    verdicts = ledger.flush_all([spoilt, fine])
    assert [v.outcome for v in verdicts] == ["damaged", "run"]
    with caplog.at_level(logging.ERROR):
        stack.drain()
        for _ in range(3):
            stack.reaper.run_once()
    assert [d.session for d in stack.sent] == [later]
    assert redis.xlen(keys.session_events(0)) == 0
    named = [r for r in caplog.records if "flush-failed" in r.getMessage()]
    assert len(named) <= 1


def test_a_service_outlives_indexes_of_another_type(
    stack: Stack, play: Play, ledger: Ledger, redis: redis_py.Redis
) -> None:
    """What they would have named is seen to when they are what they were."""
    root = play.submit()
    stop = threading.Event()
    service = threading.Thread(target=stack.service.run, args=(stop,))
    service.start()
    try:
        indexes = (ledger_keys.timers, ledger_keys.waiting, ledger_keys.closing, ledger_keys.results)
        for spoilt in (*(key(0) for key in indexes), keys.session_events(0)):
            with while_spoilt(redis, spoilt):
                for _ in range(2):
                    stack.reaper.run_once()
                    stack.clock.advance(1)
        parent = play.run(root)
        child = play.delegate(parent, "a")
        play.commit(parent.claim)
        play.finish(child)
        wait_until(lambda: [d.session for d in stack.sent] == [root])
        assert service.is_alive()
    finally:
        stop.set()
        service.join(60)


def test_a_run_that_cannot_be_counted_is_not_taken(play: Play, redis: redis_py.Redis) -> None:
    """The sweep comes to it again, once the key is what it was."""
    dispatch = play.start(play.submit())
    spoil(redis, ledger_keys.at_work(0))
    with pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        play.claim(dispatch)
    assert redis.zscore(ledger_keys.queued(0), dispatch.run) is not None
    assert redis.zscore(ledger_keys.running(0), dispatch.run) is None
    redis.delete(ledger_keys.at_work(0))
    assert play.claim(dispatch).run.attempt == 1


def test_a_group_that_was_removed_is_made_again_and_no_event_is_lost(
    stack: Stack, play: Play, redis: redis_py.Redis
) -> None:
    """Those that it had not handled are handled then; the stream may be gone with it."""
    root = waiting_parent(play, "one")
    redis.xgroup_destroy(keys.session_events(0), "callbacks")
    wait_until(lambda: stack.drain() or stack.sent)
    assert [d.session for d in stack.sent] == [root]
    redis.delete(keys.session_events(0))
    stack.drain()
    another = waiting_parent(play, "two")
    wait_until(lambda: stack.drain() or len(stack.sent) == 2)
    assert stack.sent[1].session == another


@pytest.mark.parametrize(
    "key",
    [ledger_keys.timers(0), keys.totals(0), keys.messages(0, "query", "high"), ledger_keys.approvals(0)],
)
def test_a_question_that_cannot_be_asked_is_open_once_when_it_is_asked_again(
    play: Play, ledger: Ledger, redis: redis_py.Redis, key: str
) -> None:
    """One that was counted twice would keep its session from ever ending."""
    root = play.submit()
    claim = play.run(root).claim
    request = ApprovalRequest(
        tool="t", arguments="{}", digest="d", agent="lead", session=root, run=claim.run, expires_ms=1 << 45
    )

    def ask() -> object:
        if key == ledger_keys.approvals(0):
            return ledger.approvals.request(
                claim, request, approval="apr_1", effect="e", title="", envelope=envelope("query")
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
            envelope=envelope("query"),
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
    play: Play, ledger: Ledger, redis: redis_py.Redis
) -> None:
    root = play.submit()
    play.finish(root)
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
    stack: Stack, play: Play, redis: redis_py.Redis, key: str
) -> None:
    """The worker commits again later, and the parent hears of its child."""
    root, parent = play.begin()
    child = play.delegate(parent, "a")
    play.commit(parent.claim)
    held = play.run(child)
    with refused_while_spoilt(redis, key):
        play.commit(held.claim)
    committed = play.commit(held.claim)
    assert isinstance(committed, Committed)
    assert (committed.first, committed.over) == (True, True)
    stack.drain()
    assert [d.session for d in stack.sent] == [root]
    assert [item.state for item in play.ledger.items(root)] == [ItemState.CLAIMED]


@pytest.mark.parametrize("key", [*QUEUES, ledger_keys.timers(0)])
def test_a_resume_that_cannot_be_written_whole_leaves_the_queue_as_it_is(
    stack: Stack, play: Play, ledger: Ledger, redis: redis_py.Redis, key: str
) -> None:
    root = waiting_parent(play, "root")
    with while_spoilt(redis, key):
        assert ledger.flush(root).outcome == "damaged"
    assert [item.state for item in ledger.items(root)] == [ItemState.QUEUED]
    assert ledger.flush(root).outcome == "run"


@pytest.mark.parametrize("key", [ledger_keys.waiting(0), keys.session_events(0), keys.totals(0)])
def test_a_prompt_that_cannot_be_queued_is_queued_when_it_is_sent_again(
    play: Play, ledger: Ledger, redis: redis_py.Redis, key: str
) -> None:
    root = play.submit()
    play.finish(root)
    with refused_while_spoilt(redis, key):
        ledger.enqueue(root, "more", item_id="one")
    assert ledger.enqueue(root, "more", item_id="one")
    assert ledger.flush(root).outcome == "run"


@pytest.mark.parametrize("key", [ledger_keys.roots(0), ledger_keys.timers(0), keys.totals(0)])
def test_a_submission_that_cannot_be_written_whole_makes_no_session(
    play: Play, redis: redis_py.Redis, key: str
) -> None:
    with refused_while_spoilt(redis, key):
        play.submit()
    assert play.ledger.find([root_session_id("root")]) == []
    assert not redis.exists(keys.messages(0, "task-delegation", "high"))
    assert play.start(play.submit()) is not None


@pytest.mark.parametrize("key", QUEUES)
def test_a_first_run_that_cannot_be_made_ready_is_not_made(
    play: Play, redis: redis_py.Redis, key: str
) -> None:
    root = play.submit()
    spoil(redis, key)
    try:
        assert play.start(root) is None
    except redis_py.ResponseError as error:
        assert "WRONGTYPE" in str(error)  # noqa: PT017  (of what all launches share)
    redis.delete(key)
    started = play.start(root)
    assert redis.zrange(ledger_keys.ready(0, "lead"), 0, -1) == [started.run.encode()]

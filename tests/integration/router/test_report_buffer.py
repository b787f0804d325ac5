"""Reports whose effect the ledger has already: they are routed together, and hold up nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from orchestrator.envelope.bodies import Dependency, StatusUpdate, TaskCompletion
from orchestrator.envelope.model_values import Timestamp
from orchestrator.ids import new_message_id
from orchestrator.ledger import Committed
from orchestrator.redisdb import keys
from orchestrator.router.batching import MANY
from orchestrator.streams import ROUTER_GROUP, all_streams, consumer_name, stream_key
from tests.integration.router.conftest import end_run, task
from tests.kit import Kit
from tests.waiting import until

NOTED = {"already_applied": "1"}


def all_routed(kit: Kit) -> bool:
    """Whether the router has been given everything that there is, and holds nothing of it."""
    rows = kit.streams.backlog(ROUTER_GROUP, all_streams())
    return not any(row.unread or row.pending for row in rows)


class AtWork:
    """A session whose run a worker holds."""

    def __init__(self, kit: Kit, seed: str) -> None:
        self._kit, session = kit, kit.send(seed)
        kit.route()
        self._held = kit.claim(session)

    def finish(self) -> None:
        """Its worker reports that it is done."""
        done = end_run(self._kit, self._held, "42")
        assert isinstance(done, Committed)
        assert done.over


def test_the_ledger_says_of_a_report_that_it_has_its_effect(kit: Kit) -> None:
    """The report of a session's end does; the launch of one does not, as the router has to start it."""
    AtWork(kit, "a").finish()
    said = {
        stream.type: [b"already_applied" in fields for _, fields in kit.redis.xrange(stream_key(stream))]
        for stream in all_streams()
        if kit.redis.xlen(stream_key(stream))
    }
    assert said == {"task-delegation": [False], "task-completion": [True]}


@pytest.fixture
def aside_s(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets for how long such reports are buffered."""
    return lambda seconds: monkeypatch.setattr("orchestrator.router.batching.REPORT_BUFFER_S", seconds)


@contextmanager
def routing(kit: Kit) -> Iterator[threading.Event]:
    """A router at work, until the event is set."""
    stop, router = threading.Event(), kit.router()
    router.run_once()
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(router.run, stop)
        try:
            yield stop
        finally:
            stop.set()
            work.result(10)


def test_they_let_others_of_their_kind_come_and_what_is_urgent_pass(
    kit: Kit, aside_s: Callable[[float], None]
) -> None:
    """A launch that comes later is carried out first; a second report is routed with the first one."""
    aside_s(1.5)
    first, second = AtWork(kit, "first"), AtWork(kit, "second")
    kit.sent.clear()
    with routing(kit):
        first.finish()
        until(lambda: kit.pending() == 1)
        urgent = kit.send("urgent")
        until(lambda: bool(kit.sent.runs))
        second.finish()
        until(lambda: kit.pending() == 2)
        until(lambda: kit.pending() == 0)
    assert [dispatch.session for dispatch, _ in kit.sent.runs] == [urgent]
    assert kit.dead() == []


def test_what_others_write_into_the_same_stream_is_not_put_aside(
    kit: Kit, aside_s: Callable[[float], None]
) -> None:
    """The report of an external program is all that the ledger hears of its session."""
    aside_s(30)
    session = AtWork(kit, "ours")
    with routing(kit):
        session.finish()
        until(lambda: kit.pending() == 1)
        done = TaskCompletion(task_id="theirs", status="success", summary="ok", result="42")
        message_id = new_message_id()
        kit.post(done, message_id=message_id)
        until(lambda: bool(kit.redis.exists(keys.seen(0, "lead", message_id))))
        assert kit.pending() == 1


def test_while_a_task_waits_for_others_every_report_is_heard_at_once(
    kit: Kit, aside_s: Callable[[float], None]
) -> None:
    """It may be what the task waits for."""
    aside_s(30)
    session = AtWork(kit, "ours")
    waiting = task(dependencies=(Dependency(task_id="u", type="blocks-on"),))
    kit.post(waiting, sender="partner", recipient="reviewer")
    with routing(kit):
        until(lambda: kit.pending() == 0)
        session.finish()
        until(lambda: all_routed(kit))


def test_one_that_is_alone_is_routed_when_its_time_is_up(kit: Kit) -> None:
    """Without any other to come."""
    session = AtWork(kit, "ours")
    with routing(kit):
        session.finish()
        until(lambda: all_routed(kit))


def test_many_do_not_wait_for_that(kit: Kit, aside_s: Callable[[float], None]) -> None:
    """They are a round's worth."""
    aside_s(30)
    sessions = [AtWork(kit, str(number)) for number in range(MANY)]
    with routing(kit):
        for session in sessions:
            session.finish()
        until(lambda: all_routed(kit))


def test_a_router_that_is_stopped_leaves_none_behind(kit: Kit, aside_s: Callable[[float], None]) -> None:
    """What it has buffered it routes before it goes."""
    aside_s(30)
    session = AtWork(kit, "ours")
    with routing(kit) as stop:
        session.finish()
        until(lambda: kit.pending() == 1)
        stop.set()
    assert (kit.pending(), kit.dead()) == (0, [])


def test_a_router_that_is_made_anew_after_an_outage_routes_what_the_one_before_had_read(
    kit: Kit, aside_s: Callable[[float], None]
) -> None:
    """The entries do not wait until they count as left behind: the router before was of the same process."""
    aside_s(30)
    session, before = AtWork(kit, "ours"), kit.router(consumer_name("router"))
    before.run_once()
    session.finish()
    before.run_once(block_ms=500)
    assert kit.pending() == 1
    after = kit.router(consumer_name("router"))
    until(lambda: bool(after.run_once().done))
    assert (kit.pending(), kit.dead()) == (0, [])


def test_who_says_so_of_a_message_gains_nothing(kit: Kit, aside_s: Callable[[float], None]) -> None:
    """Anybody who may append can write the field: the message is judged like any other."""
    aside_s(0)
    update = StatusUpdate(task_id="task-1", status="in-progress", progress_percentage=40)
    old = kit.envelope(update, timestamp=Timestamp("2020-01-01T00:00:00Z"))
    forged = kit.envelope(update, signer="partner")
    for data in (old, forged, kit.envelope(update)):
        kit.publish(data, "status-update", extra=NOTED)
    with routing(kit):
        until(lambda: all_routed(kit))
    assert sorted(letter.rule for letter in kit.dead()) == ["signer-sender", "too-old"]

"""Bad moments of a router: a server without memory, a clock that was set back, a step that another one is just taking."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis as redis_py

from orchestrator.envelope.bodies import (
    Dependency,
    ErrorReport,
    Message,
    StatusUpdate,
    TaskCompletion,
)
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.validate import check
from orchestrator.ids import new_message_id, run_id
from orchestrator.ledger import SessionState
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.router.deadletters.replay import Replays
from orchestrator.router.delayed.parked import Wait
from orchestrator.streams import OUTBOX, ROUTER_GROUP, Portion, StreamId, stream_key
from tests.clock import At
from tests.integration.router.conftest import LATER, ONCE, Family, rounds, task
from tests.kit import Kit

DAY_MS = 86_400_000


def waiting(kit: Kit) -> int:
    """How many messages wait outside of the streams."""
    return len(kit.delayed.all())


def test_a_server_without_memory_condemns_no_message(kit: Kit) -> None:
    """However often it is tried meanwhile, all is carried out when there is memory again."""
    session = kit.send()
    for number in range(5):
        kit.post(StatusUpdate(task_id=f"t{number}", status="in-progress"))
    routers = [kit.router(str(number), reclaim_idle_ms=0) for number in range(8)]
    kit.redis.config_set("maxmemory", 1)
    try:
        for router in routers:
            with contextlib.suppress(redis_py.exceptions.OutOfMemoryError):
                router.run_once()
    finally:
        kit.redis.config_set("maxmemory", 0)
    assert kit.dead() == []
    done = sum(kit.route(f"later {n}", reclaim_idle_ms=0).done for n in range(2))
    assert (done, kit.dead(), kit.pending(), waiting(kit)) == (6, [], 0, 0)
    assert kit.ledger.session(session).busy


def test_a_message_that_the_server_refuses_each_router_is_poison(kit: Kit) -> None:
    """What is refused for what it is about, and not for the state of the server, must not end routers for ever."""
    conversation = new_message_id()
    kit.redis.set(keys.conversation(0, conversation), "not a book")
    kit.post(StatusUpdate(task_id="T-1", status="in-progress"), sender="partner", correlation=conversation)
    for number in range(5):
        with contextlib.suppress(redis_py.ResponseError):
            kit.route(str(number), reclaim_idle_ms=0)
    assert [letter.rule for letter in kit.dead()] == ["poison"]


def test_a_session_with_damaged_books_holds_up_no_other(kit: Kit) -> None:
    """They are launched in one step, and are one task each all the same."""
    damaged, fine = kit.send("damaged"), kit.send("fine")
    kit.redis.set(ledger_keys.runs(damaged), "no list")
    handled = kit.route()
    assert handled.dispatched == [run_id(fine, 1)]
    assert (kit.pending(), waiting(kit), kit.dead()) == (0, 1, [])  # its further attempts are to come


@pytest.fixture
def family(kit: Kit) -> Family:
    """No router has seen the task of the child yet."""
    return Family(kit)


def report(family: Family) -> None:
    """The external program, which reads the stream like a router does, says that it is done."""
    family.post(TaskCompletion(task_id=family.child, status="success", summary="found", result="it is 42"))


def test_a_program_that_is_quicker_than_the_router_is_heard(kit: Kit, family: Family) -> None:
    """Its report came before its task was routed: it waits for that, for as long as a report may take."""
    report(family)
    began = kit.now_ms
    for waited_ms in (0, 15_000):
        kit.route(f"r{waited_ms}", types=["task-completion"], clock=At(began + waited_ms))
        assert (waiting(kit), kit.dead()) == (1, [])
        kit.wake()
    kit.route("tasks", types=["task-delegation"])
    kit.route("reports")
    assert kit.ledger.result(family.child) == (SessionState.FINISHED, "it is 42")
    assert [i.status for i in kit.ledger.items(family.lead.session.id)] == ["completed"]


def test_a_word_about_a_task_that_was_stopped_before_it_was_routed_is_understood(
    kit: Kit, family: Family
) -> None:
    """Its program read the task in the stream, and does not know that it is not wanted any more."""
    kit.ledger.stop(family.child, "no more")
    kit.route("tasks")
    failed = ErrorReport(
        error_id=new_message_id(), error_type="task-failed", severity="critical", message="no"
    )
    family.post(failed)
    assert kit.route("words").done == 1
    assert (waiting(kit), kit.dead()) == (0, [])


def test_a_copy_of_a_launch_in_another_shards_stream_begins_nothing(kit: Kit) -> None:
    kit = kit.beside(shards=2)
    session = kit.send()
    stream = StreamId(0, "task-delegation", "high")
    ((_, fields),) = kit.redis.xrange(stream_key(stream))
    kit.streams.publish(stream._replace(shard=1), fields[b"envelope"])
    handled = kit.route()
    assert handled.dispatched == [run_id(session, 1)]
    assert (handled.done, kit.redis.exists(ledger_keys.queued(1)), kit.dead()) == (1, 0, [])


def test_a_report_on_a_task_that_never_begins_is_given_up_and_says_why(kit: Kit, family: Family) -> None:
    """Its timeout is the table's."""
    report(family)
    began = kit.now_ms
    for waited_ms in (0, 61_000):
        kit.route(str(waited_ms), types=["task-completion"], clock=At(began + waited_ms))
        if waited_ms == 0:
            kit.wake()
    (letter,) = kit.dead()
    assert (letter.rule, letter.type) == ("session-pending", "task-completion")
    assert f"session {family.child} has not begun" in letter.reason


def test_a_program_is_heard_of_a_task_whose_router_died_on_the_way(kit: Kit, family: Family) -> None:
    """The task is begun and the router died before it wrote down that the program is at it."""

    class Died(Exception):
        pass

    def die(_: object) -> bool:
        raise Died

    router = kit.router("tasks")
    router._ledger.take_external = die  # type: ignore[method-assign]
    with contextlib.suppress(Died):
        router.run_once()
    del router._ledger.take_external  # type: ignore[method-assign]
    report(family)
    kit.route("other")
    assert kit.dead() == []
    assert kit.ledger.result(family.child) == (SessionState.FINISHED, "it is 42")
    assert not kit.ledger.session(family.child).busy


def test_a_task_that_expires_while_it_is_held_is_given_up_then(kit: Kit) -> None:
    """Not when what it waits for is over, which may be never."""
    conversation, launch = new_message_id(), new_message_id()
    about = {"sender": "partner", "recipient": "reviewer", "correlation": conversation}
    kit.post(task("other"), message_id=launch, **about)
    kit.route("first")
    began = kit.now_ms
    soon = Timestamp.from_ms(began + 30_000)
    waits = task("t", dependencies=(Dependency(task_id="other"),))
    kit.post(waits, chain=(launch,), expiration=soon, **about)
    rule = {}
    for second in (0, 5, 15, 29, 31):
        rounds(kit.router(str(second), clock=At(began + second * 1000)))
        rule[second] = [letter.rule for letter in kit.dead()]
    assert rule == {0: [], 5: [], 15: [], 29: [], 31: ["expired"]}


def test_a_clock_that_was_set_back_keeps_no_message_waiting(kit: Kit) -> None:
    """What was parked while the clock ran a day ahead is looked at as soon as it is right again."""
    session = kit.send(agent="later")
    assert kit.route("ahead", clock=At(kit.now_ms + DAY_MS // 2)).parked == 1
    kit.parts.agents.announce([LATER])
    assert rounds(kit.router("right")) == 1
    assert kit.ledger.session(session).busy


def test_a_clock_that_was_set_back_does_not_lengthen_the_wait_for_an_agent(kit: Kit) -> None:
    """From when the clock is right, the agent has as long as ever to be registered, and no longer."""
    kit = kit.beside(registration_patience_s=20)
    kit.send(agent="later")
    kit.route("ahead", clock=At(kit.now_ms + DAY_MS // 2))
    moment = kit.now_ms
    rounds(kit.router("right", clock=At(moment)))
    (parked,) = kit.delayed.all()
    assert (parked.agent, parked.until_ms) == ("later", moment + 20_000)


def test_a_wait_that_began_in_the_future_ends_all_the_same(kit: Kit) -> None:
    """Whether a clock was wrong or a program wrote it beside its envelope: it began no later than now."""
    data = kit.envelope(
        Message(content="x"), sender="partner", recipient="lead", correlation=new_message_id()
    )
    kit.publish(data, "message", extra={"since": "999999999999999", "attempt": "2"})
    began = kit.now_ms
    for second in (0, 5, 11):
        rounds(kit.router(str(second), clock=At(began + second * 1000)))
    assert [letter.rule for letter in kit.dead()] == ["recipient-session"]


@pytest.mark.parametrize("name", ["router", "reaper", "operator"])
def test_a_task_for_a_part_of_the_stack_is_refused(kit: Kit, name: str) -> None:
    """No worker serves it: a session of it would wait for ever."""
    kit.post(task(), sender="operator", recipient=name)
    kit.route()
    (letter,) = kit.dead()
    assert letter.rule == "unauthorised"
    assert f"'{name}' is a part of the stack and takes no tasks" in letter.reason
    assert kit.ledger.roots(0) == []


def test_a_conversation_is_remembered_while_a_program_speaks_in_it(kit: Kit) -> None:
    """A task that takes days is known by its id and its chain for as long as something is heard of it."""
    conversation, launch = new_message_id(), new_message_id()
    book = keys.conversation(0, conversation)
    about: dict[str, Any] = {"sender": "partner", "correlation": conversation}
    kit.post(task(), recipient="partner", message_id=launch, **about)
    kit.route("one")
    for said in (
        StatusUpdate(task_id="T-1", status="in-progress"),
        Message(content="how is it going?"),
        TaskCompletion(task_id="T-1", status="success", summary="done"),
    ):
        kit.redis.pexpire(book, 60_000)
        kit.post(said, recipient="partner", chain=(launch,), **about)
        assert kit.route(said.type).done == 1
        assert kit.redis.pttl(book) > DAY_MS - 60_000


def test_a_task_that_waits_for_an_unknown_one_is_given_up_in_time_and_leaves_no_trail_until_then(
    kit: Kit,
) -> None:
    """It is looked at where it waits: it comes back into its stream once for each attempt, at the timeout."""
    waits = task("t", dependencies=(Dependency(task_id="nobody"),))
    kit.post(waits, sender="partner", recipient="reviewer", retry=ONCE)
    began = kit.now_ms
    came = {}
    for second in (0, 1, 6, 20, 40, 59, 61):
        rounds(kit.router(str(second), clock=At(began + second * 1000)))
        came[second] = len(kit.published("task-delegation")), [letter.rule for letter in kit.dead()]
    assert came == {second: (1, []) for second in (0, 1, 6, 20, 40, 59)} | {61: (2, ["timeout"])}


# --- A key that somebody has overwritten with another type: the router loses no message by it.


BOX = StreamId(0, OUTBOX, "partner")
MESSAGES = StreamId(0, "message", "normal")
HELLO = Message(content="hello")


@contextmanager
def overwritten(redis: redis_py.Redis, key: str) -> Iterator[None]:
    """The key holds a text; afterwards what it held before."""
    whole = redis.dump(key)
    redis.set(key, "of another type")
    yield
    redis.delete(key)
    if whole is not None:
        redis.restore(key, 0, whole)


@pytest.mark.parametrize("kind", ["text", "hash", "text that never expires"])
def test_a_counter_of_another_type_ends_no_router(kit: Kit, kind: str) -> None:
    """It counts for a minute only, so that it begins again."""
    quota = keys.quota(0, "partner")
    if kind == "hash":
        kit.redis.hset(quota, "x", "1")
    else:
        kit.redis.set(quota, "5" if kind == "text that never expires" else "many")
    kit.redis.xadd(stream_key(BOX), {"envelope": kit.envelope(HELLO, sender="partner")})
    kit.route()
    assert kit.redis.xlen(stream_key(MESSAGES)) == 1
    assert int(kit.redis.get(quota) or 0) in (1, 6)
    assert 0 < kit.redis.pttl(quota) <= 60_000


@pytest.mark.parametrize("key", [stream_key(MESSAGES), keys.totals(0)])
def test_an_outbox_keeps_what_cannot_be_moved(kit: Kit, key: str) -> None:
    router = kit.router("one")
    router.run_once()
    kit.redis.xadd(stream_key(BOX), {"envelope": kit.envelope(HELLO, sender="partner")})
    with overwritten(kit.redis, key):
        rounds(router, 3)
        assert kit.redis.xlen(stream_key(BOX)) == 1
    kit.route("two", reclaim_idle_ms=0)
    assert kit.redis.xlen(stream_key(BOX)) == 0


@pytest.mark.parametrize("key", [keys.dead(0), keys.dead_index(0), keys.dead_usage(0), keys.totals(0)])
def test_an_entry_that_cannot_become_a_dead_letter_stays_pending(kit: Kit, key: str) -> None:
    router = kit.router("one")
    kit.publish(b"<junk/>", "message")
    with overwritten(kit.redis, key):
        rounds(router, 3)
    assert kit.redis.xpending(stream_key(MESSAGES), ROUTER_GROUP)["pending"] == 1
    kit.route("two", reclaim_idle_ms=0)
    assert len(kit.dead()) == 1


def test_an_entry_that_cannot_be_parked_stays_pending(kit: Kit) -> None:
    kit.streams.ensure_groups([ROUTER_GROUP], [MESSAGES])
    kit.post(HELLO)
    (entry,) = kit.streams.read(ROUTER_GROUP, "one", [Portion([MESSAGES], 1)])
    message = check(entry.data or b"").message
    assert message is not None
    waiting = kit.delayed

    def park() -> bool:
        return waiting.park(entry, message, Wait(due_ms=0), attempt=2, now_ms=0, rule="r", reason="later")

    with overwritten(kit.redis, keys.parked(0)), pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        park()
    assert park()


@pytest.mark.parametrize("key", [stream_key(MESSAGES), keys.totals(0)])
def test_a_message_that_cannot_be_put_back_stays_parked(kit: Kit, key: str) -> None:
    test_an_entry_that_cannot_be_parked_stays_pending(kit)
    waiting = kit.delayed
    parked = waiting.all()
    with overwritten(kit.redis, key), pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        waiting.release(parked)
    assert waiting.release(parked) == 1
    assert kit.redis.xlen(stream_key(MESSAGES)) == 2


@pytest.mark.parametrize("key", [stream_key(MESSAGES), keys.totals(0), keys.dead_usage(0)])
def test_a_dead_letter_whose_drop_cannot_be_recorded_stays(kit: Kit, key: str) -> None:
    kit.publish(b"<junk/>", "message")
    kit.route()
    (dead,) = kit.dead()
    with overwritten(kit.redis, key), pytest.raises(redis_py.ResponseError, match="WRONGTYPE"):
        Replays(kit.parts).drop(dead)
    assert kit.dead() == [dead]
    assert Replays(kit.parts).drop(dead)

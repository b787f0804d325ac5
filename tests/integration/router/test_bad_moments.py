"""Bad moments of a router: a server without memory, a clock that was set back, a step that another one is just taking."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis as redis_py

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.bodies import (
    Dependency,
    ErrorReport,
    Message,
    StatusUpdate,
    Task,
    TaskCompletion,
    TaskDelegation,
)
from orchestrator.envelope.model import RetryPolicy
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.validate import check
from orchestrator.ids import new_message_id, run_id
from orchestrator.ledger import ClaimedRun, SessionState
from orchestrator.redisdb import keys, ledger_keys
from orchestrator.router.deadletters.replay import Replays
from orchestrator.router.delayed.parked import Wait
from orchestrator.router.router import Router
from orchestrator.streams import OUTBOX, ROUTER_GROUP, Portion, StreamId, stream_key
from tests.clock import At
from tests.kit import Kit

DAY_MS = 86_400_000


def now_ms(kit: Kit) -> int:
    """The server's time."""
    return int(kit.redis.time()[0]) * 1000


def waiting(kit: Kit) -> int:
    """How many messages wait outside of the streams."""
    return len(kit.delayed.all())


def test_a_server_without_memory_condemns_no_message(kit: Kit) -> None:
    """However often it is tried meanwhile, all is carried out when there is memory again."""
    session = kit.send()
    for number in range(5):
        update = StatusUpdate(task_id=f"t{number}", status="in-progress")
        kit.publish(kit.envelope(update), "status-update")
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
    assert kit.parts.ledger.session(session).busy


def test_a_message_that_the_server_refuses_each_router_is_poison(kit: Kit) -> None:
    """What is refused for what it is about, and not for the state of the server, must not end routers for ever."""
    conversation = new_message_id()
    kit.redis.set(keys.conversation(0, conversation), "not a book")
    update = StatusUpdate(task_id="T-1", status="in-progress")
    kit.publish(kit.envelope(update, sender="partner", correlation=conversation), "status-update")
    for number in range(5):
        with contextlib.suppress(redis_py.ResponseError):
            kit.router(str(number), reclaim_idle_ms=0).run_once()
    assert [letter.rule for letter in kit.dead()] == ["poison"]


def test_a_session_with_damaged_books_holds_up_no_other(kit: Kit) -> None:
    """They are launched in one step, and are one task each all the same."""
    damaged, fine = kit.send("damaged"), kit.send("fine")
    kit.redis.set(ledger_keys.runs(damaged), "no list")
    handled = kit.route()
    assert handled.dispatched == [run_id(fine, 1)]
    assert (kit.pending(), waiting(kit), kit.dead()) == (0, 1, [])  # its further attempts are to come


def delegated(kit: Kit) -> tuple[ClaimedRun, str, tuple[str, ...]]:
    """`lead` at work, the child that it has just given to the external program `partner`, and the child's chain."""
    root = kit.send()
    kit.route("first")
    lead = kit.claim(root)
    launch = kit.assign(lead, "partner")
    return lead, launch.child_id, (launch.envelope.message_id, *lead.session.chain)


def report(kit: Kit, lead: ClaimedRun, child: str, chain: tuple[str, ...]) -> None:
    """The external program, which reads the stream like a router does, says that it is done."""
    done = TaskCompletion(task_id=child, status="success", summary="found", result="it is 42")
    data = kit.envelope(
        done, sender="partner", recipient="lead", correlation=lead.session.correlation, chain=chain
    )
    kit.publish(data, "task-completion", "high")


def test_a_program_that_is_quicker_than_the_router_is_heard(kit: Kit) -> None:
    """Its report came before its task was routed: it waits for that, for as long as a report may take."""
    lead, child, chain = delegated(kit)
    report(kit, lead, child, chain)
    began = now_ms(kit)
    for waited_ms in (0, 15_000):
        reports = kit.router(f"r{waited_ms}", types=["task-completion"], clock=At(began + waited_ms))
        reports.run_once()
        assert (waiting(kit), kit.dead()) == (1, [])
        kit.wake()
    kit.route("tasks", types=["task-delegation"])
    kit.route("reports")
    assert kit.parts.ledger.result(child) == (SessionState.FINISHED, "it is 42")
    assert [i.status for i in kit.parts.ledger.items(lead.session.id)] == ["completed"]


def test_a_word_about_a_task_that_was_stopped_before_it_was_routed_is_understood(kit: Kit) -> None:
    """Its program read the task in the stream, and does not know that it is not wanted any more."""
    lead, child, chain = delegated(kit)
    kit.parts.ledger.stop(child, "no more")
    kit.route("tasks")
    failed = ErrorReport(
        error_id=new_message_id(), error_type="task-failed", severity="critical", message="no"
    )
    data = kit.envelope(
        failed, sender="partner", recipient="lead", correlation=lead.session.correlation, chain=chain
    )
    kit.publish(data, "error", "critical")
    assert kit.route("words").done == 1
    assert (waiting(kit), kit.dead()) == (0, [])


def test_a_copy_of_a_launch_in_another_shards_stream_begins_nothing(redis: Any, kit: Kit) -> None:
    kit.settings = kit.settings.model_copy(update={"shards": 2})
    session = kit.send()
    stream = StreamId(0, "task-delegation", "high")
    ((_, fields),) = redis.xrange(stream_key(stream))
    kit.streams.publish(stream._replace(shard=1), fields[b"envelope"])
    handled = kit.route()
    assert handled.dispatched == [run_id(session, 1)]
    assert (handled.done, redis.exists(ledger_keys.queued(1)), kit.dead()) == (1, 0, [])


def test_a_report_on_a_task_that_never_begins_is_given_up_and_says_why(kit: Kit) -> None:
    """Its timeout is the table's."""
    lead, child, chain = delegated(kit)
    report(kit, lead, child, chain)
    began = now_ms(kit)
    for waited_ms in (0, 61_000):
        kit.router(str(waited_ms), types=["task-completion"], clock=At(began + waited_ms)).run_once()
        if waited_ms == 0:
            kit.wake()
    (letter,) = kit.dead()
    assert (letter.rule, letter.type) == ("session-pending", "task-completion")
    assert f"session {child} has not begun" in letter.reason


def test_a_program_is_heard_of_a_task_whose_router_died_on_the_way(kit: Kit) -> None:
    """The task is begun and the router died before it wrote down that the program is at it."""
    lead, child, chain = delegated(kit)

    class Died(Exception):
        pass

    def die(_: object) -> bool:
        raise Died

    router = kit.router("tasks")
    router._ledger.take_external = die  # type: ignore[method-assign]
    with contextlib.suppress(Died):
        router.run_once()
    del router._ledger.take_external  # type: ignore[method-assign]
    report(kit, lead, child, chain)
    kit.route("other")
    assert kit.dead() == []
    assert kit.parts.ledger.result(child) == (SessionState.FINISHED, "it is 42")
    assert not kit.parts.ledger.session(child).busy


def test_a_task_that_expires_while_it_is_held_is_given_up_then(kit: Kit) -> None:
    """Not when what it waits for is over, which may be never."""
    conversation, launch = new_message_id(), new_message_id()
    about = {"sender": "partner", "recipient": "reviewer", "correlation": conversation}
    other = TaskDelegation(task=Task(task_id="other", title="other", description="d"))
    kit.publish(kit.envelope(other, message_id=launch, **about), "task-delegation", "high")  # type: ignore[arg-type]
    kit.route("first")
    body = TaskDelegation(
        task=Task(task_id="t", title="t", description="d", dependencies=(Dependency(task_id="other"),))
    )
    began = now_ms(kit)
    soon = Timestamp.from_ms(began + 30_000)
    data = kit.envelope(body, chain=(launch,), expiration=soon, **about)  # type: ignore[arg-type]
    kit.publish(data, "task-delegation", "high")
    rule = {}
    for second in (0, 5, 15, 29, 31):
        router = kit.router(str(second), clock=At(began + second * 1000))
        for _ in range(2):
            router.run_once()
        rule[second] = [letter.rule for letter in kit.dead()]
    assert rule == {0: [], 5: [], 15: [], 29: [], 31: ["expired"]}


def both(router: Router) -> int:
    """Two rounds: one may put back what waited, the other handles it."""
    return router.run_once().done + router.run_once().done


def test_a_clock_that_was_set_back_keeps_no_message_waiting(kit: Kit) -> None:
    """What was parked while the clock ran a day ahead is looked at as soon as it is right again."""
    session = kit.send(agent="later")
    ahead = kit.router("ahead", clock=At(now_ms(kit) + DAY_MS // 2))
    assert ahead.run_once().parked == 1
    kit.parts.agents.announce([AgentRecord(name="later", role="specialist")])
    assert both(kit.router("right")) == 1
    assert kit.parts.ledger.session(session).busy


def test_a_clock_that_was_set_back_does_not_lengthen_the_wait_for_an_agent(kit: Kit) -> None:
    """From when the clock is right, the agent has as long as ever to be registered, and no longer."""
    kit.settings = kit.settings.model_copy(update={"registration_patience_s": 20})
    kit.send(agent="later")
    kit.router("ahead", clock=At(now_ms(kit) + DAY_MS // 2)).run_once()
    moment = now_ms(kit)
    both(kit.router("right", clock=At(moment)))
    (parked,) = kit.delayed.all()
    assert (parked.agent, parked.until_ms) == ("later", moment + 20_000)


def test_a_wait_that_began_in_the_future_ends_all_the_same(kit: Kit) -> None:
    """Whether a clock was wrong or a program wrote it beside its envelope: it began no later than now."""
    data = kit.envelope(
        Message(content="x"), sender="partner", recipient="lead", correlation=new_message_id()
    )
    kit.publish(data, "message", extra={"since": "999999999999999", "attempt": "2"})
    began = now_ms(kit)
    for second in (0, 5, 11):
        router = kit.router(str(second), clock=At(began + second * 1000))
        for _ in range(2):
            router.run_once()
    assert [letter.rule for letter in kit.dead()] == ["recipient-session"]


@pytest.mark.parametrize("name", ["router", "reaper", "operator"])
def test_a_task_for_a_part_of_the_stack_is_refused(kit: Kit, name: str) -> None:
    """No worker serves it: a session of it would wait for ever."""
    body = TaskDelegation(task=Task(task_id="t", title="t", description="d"))
    kit.publish(kit.envelope(body, sender="operator", recipient=name), "task-delegation", "high")
    kit.route()
    (letter,) = kit.dead()
    assert letter.rule == "unauthorised"
    assert f"'{name}' is a part of the stack and takes no tasks" in letter.reason
    assert kit.parts.ledger.roots(0) == []


def test_a_conversation_is_remembered_while_a_program_speaks_in_it(kit: Kit) -> None:
    """A task that takes days is known by its id and its chain for as long as something is heard of it."""
    conversation, launch = new_message_id(), new_message_id()
    book = keys.conversation(0, conversation)
    about = {"sender": "partner", "correlation": conversation}
    body = TaskDelegation(task=Task(task_id="T-1", title="t", description="d"))
    task = kit.envelope(body, recipient="partner", message_id=launch, **about)  # type: ignore[arg-type]
    kit.publish(task, "task-delegation", "high")
    kit.route("one")
    words = (
        ("status-update", StatusUpdate(task_id="T-1", status="in-progress")),
        ("message", Message(content="how is it going?")),
        ("task-completion", TaskCompletion(task_id="T-1", status="success", summary="done")),
    )
    for message_type, said in words:
        kit.redis.pexpire(book, 60_000)
        data = kit.envelope(said, recipient="partner", chain=(launch,), **about)  # type: ignore[arg-type]
        kit.publish(data, message_type)
        assert kit.route(message_type).done == 1
        assert kit.redis.pttl(book) > DAY_MS - 60_000


def wait_for_nobody(kit: Kit) -> int:
    """Publish a task with one attempt of a minute that waits for a task which nobody has; when that was."""
    body = TaskDelegation(
        task=Task(task_id="t", title="t", description="d", dependencies=(Dependency(task_id="nobody"),))
    )
    policy = RetryPolicy(max_attempts=1, backoff_strategy="linear", timeout_seconds=60)
    data = kit.envelope(body, sender="partner", recipient="reviewer", retry=policy)
    kit.publish(data, "task-delegation", "high")
    return now_ms(kit)


def test_a_task_that_waits_for_an_unknown_one_is_given_up_in_time_and_leaves_no_trail_until_then(
    kit: Kit,
) -> None:
    """It is looked at where it waits: it comes back into its stream once for each attempt, at the timeout."""
    began = wait_for_nobody(kit)
    came = {}
    for second in (0, 1, 6, 20, 40, 59, 61):
        both(kit.router(str(second), clock=At(began + second * 1000)))
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


def rounds(router: Router) -> None:
    for _ in range(3):
        router.run_once()


@pytest.mark.parametrize("kind", ["text", "hash", "text that never expires"])
def test_a_counter_of_another_type_ends_no_router(kit: Kit, kind: str) -> None:
    """It counts for a minute only, so that it begins again."""
    quota = keys.quota(0, "partner")
    if kind == "hash":
        kit.redis.hset(quota, "x", "1")
    else:
        kit.redis.set(quota, "5" if kind == "text that never expires" else "many")
    kit.redis.xadd(stream_key(BOX), {"envelope": kit.envelope(HELLO, sender="partner")})
    router = kit.router()
    router.run_once()
    assert kit.redis.xlen(stream_key(MESSAGES)) == 1
    assert int(kit.redis.get(quota) or 0) in (1, 6)
    assert 0 < kit.redis.pttl(quota) <= 60_000


@pytest.mark.parametrize("key", [stream_key(MESSAGES), keys.totals(0)])
def test_an_outbox_keeps_what_cannot_be_moved(kit: Kit, key: str) -> None:
    router = kit.router("one")
    router.run_once()
    kit.redis.xadd(stream_key(BOX), {"envelope": kit.envelope(HELLO, sender="partner")})
    with overwritten(kit.redis, key):
        rounds(router)
        assert kit.redis.xlen(stream_key(BOX)) == 1
    kit.route("two", reclaim_idle_ms=0)
    assert kit.redis.xlen(stream_key(BOX)) == 0


@pytest.mark.parametrize("key", [keys.dead(0), keys.dead_index(0), keys.dead_usage(0), keys.totals(0)])
def test_an_entry_that_cannot_become_a_dead_letter_stays_pending(kit: Kit, key: str) -> None:
    router = kit.router("one")
    kit.publish(b"<junk/>", "message")
    with overwritten(kit.redis, key):
        rounds(router)
    assert kit.redis.xpending(stream_key(MESSAGES), ROUTER_GROUP)["pending"] == 1
    kit.route("two", reclaim_idle_ms=0)
    assert len(kit.dead()) == 1


def test_an_entry_that_cannot_be_parked_stays_pending(kit: Kit) -> None:
    kit.streams.ensure_groups([ROUTER_GROUP], [MESSAGES])
    kit.publish(kit.envelope(HELLO), "message")
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

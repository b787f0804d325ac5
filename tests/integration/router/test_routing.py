"""What the router does with good and bad entries."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import pytest

from orchestrator.envelope.bodies import (
    Escalation,
    EscalationMatter,
    Message,
    StatusUpdate,
    TaskCompletion,
)
from orchestrator.envelope.codec import decode
from orchestrator.envelope.model_values import Timestamp
from orchestrator.ids import new_message_id, shard_of
from orchestrator.ledger import SessionState
from orchestrator.machine import run_on
from orchestrator.redisdb import keys
from orchestrator.streams import Portion, StreamId, all_streams
from orchestrator.streams.priority import SHARES
from tests.clock import SteppedMachine
from tests.integration.router.conftest import ONCE, errors, task, unsigned
from tests.kit import Kit

UPDATE = StatusUpdate(task_id="task-1", status="in-progress", progress_percentage=40)


def test_a_task_delegation_starts_the_sessions_first_run(kit: Kit) -> None:
    """The run is queued in the ledger and sent to the queue of its agent."""
    session = kit.send(agent="reviewer")
    handled = kit.route()
    (run,) = kit.ledger.runs(session)
    assert (handled.done, handled.dead) == (1, 0)
    assert [(d.run, d.session, d.cause, q) for d, q in kit.sent.runs] == [
        (run.id, session, "start", "reviews")
    ]
    assert kit.pending() == 0


def test_a_delegation_that_comes_twice_starts_one_run(kit: Kit) -> None:
    """A second copy of a message has no second effect."""
    session = kit.send()
    (copy,) = kit.published("task-delegation")
    kit.publish(copy, "task-delegation", "high")
    handled = kit.route()
    assert (handled.done, handled.duplicates, len(kit.sent.runs)) == (1, 1, 1)
    assert len(kit.ledger.runs(session)) == 1


def test_reports_are_acknowledged_after_validation(kit: Kit) -> None:
    """A status-update, a task-completion and an error leave the stream without a dead letter."""
    kit.post(UPDATE)
    done = TaskCompletion(task_id="task-1", status="success", summary="ok", result="42")
    kit.post(done)
    handled = kit.route()
    assert (handled.done, kit.dead(), kit.pending()) == (2, [], 0)


def test_the_same_message_is_handled_once_whatever_its_stream_entries(kit: Kit) -> None:
    """Duplicates are told by the message-id."""
    data = kit.envelope(UPDATE)
    for _ in range(3):
        kit.publish(data, "status-update")
    handled = kit.route()
    assert (handled.done, handled.duplicates, kit.pending()) == (1, 2, 0)


PAST, LATER = Timestamp("2020-01-01T00:00:00Z"), Timestamp("2020-01-02T00:00:00Z")
#: Case → the rule, the type of the stream, and what stands in it.
REFUSED: dict[str, tuple[str, str, Callable[[Kit], bytes]]] = {
    "empty": ("empty", "message", lambda _: b""),
    "binary": ("encoding", "message", lambda _: bytes(range(256))),
    "doctype": ("dtd", "message", lambda kit: b"<!DOCTYPE a []>" + kit.envelope(UPDATE)),
    "truncated": ("malformed", "status-update", lambda kit: kit.envelope(UPDATE)[:500]),
    "unsigned": ("signature-missing", "status-update", lambda kit: unsigned(kit, UPDATE)),
    "changed": (
        "signature-invalid",
        "status-update",
        lambda kit: kit.envelope(UPDATE).replace(b">40<", b">90<"),
    ),
    "forged": ("signer-sender", "status-update", lambda kit: kit.envelope(UPDATE, signer="partner")),
    "wrong stream": ("stream-mismatch", "query", lambda kit: kit.envelope(UPDATE)),
    "wrong priority": ("stream-mismatch", "status-update", lambda kit: kit.envelope(UPDATE, priority="low")),
    "expired": (
        "expired",
        "status-update",
        lambda kit: kit.envelope(UPDATE, timestamp=PAST, expiration=LATER),
    ),
    "old": ("too-old", "status-update", lambda kit: kit.envelope(UPDATE, timestamp=PAST)),
    "future": (
        "from-the-future",
        "status-update",
        lambda kit: kit.envelope(UPDATE, timestamp=Timestamp("2100-01-01T00:00:00Z")),
    ),
    "role": ("sender-role", "status-update", lambda kit: kit.envelope(UPDATE, role="orchestrator")),
    "upwards": (
        "unauthorised",
        "task-delegation",
        lambda kit: kit.envelope(task(), sender="reviewer", recipient="lead"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_accepted_is_a_dead_letter_with_its_rule(kit: Kit, case: str) -> None:
    """The original bytes are kept, nothing stays pending, and the loop goes on."""
    rule, message_type, make = REFUSED[case]
    data = make(kit)
    kit.publish(data, message_type)
    kit.post(UPDATE)
    handled = kit.route()
    (letter,) = kit.dead()
    assert (handled.done, handled.dead, kit.pending()) == (1, 1, 0)
    assert (letter.rule, letter.data, letter.type) == (rule, data, message_type)
    assert letter.reason


def test_a_refusal_is_reported_to_the_sender(kit: Kit) -> None:
    """The sender of a message that is refused gets an error in the same conversation, signed by the router."""
    message_id = new_message_id()
    kit.post(task(), sender="reviewer", recipient="lead", message_id=message_id)
    kit.route()
    (message,) = errors(kit)
    assert (message.header.sender.agent_name, message.header.recipient.agent_name) == ("router", "reviewer")
    assert message.header.conversation_chain == (message_id,)
    assert "equal or lower rank" in message.body.message


def test_a_forged_sender_is_told_nothing(kit: Kit) -> None:
    """A report to a name that nobody vouched for would be a way to make the router talk."""
    kit.post(UPDATE, signer="partner")
    kit.route()
    assert kit.published("error") == []


def test_a_message_outside_its_conversation_is_refused(kit: Kit) -> None:
    """The chain must end where the conversation began."""
    correlation, first = new_message_id(), new_message_id()
    said = Message(content="hello")
    kit.post(said, message_id=first, correlation=correlation)
    kit.post(said, correlation=correlation, chain=(first,))
    kit.post(said, correlation=correlation, chain=(new_message_id(),))
    handled = kit.route()
    assert (handled.done, [letter.rule for letter in kit.dead()]) == (2, ["conversation-chain"])


def test_a_broker_that_is_away_loses_no_run(kit: Kit) -> None:
    """The run stays queued in the ledger, for the sweep to send."""
    session = kit.send()
    kit.sent.down = True
    handled = kit.route()
    assert (handled.done, handled.dispatched, kit.dead()) == (1, [], [])
    assert kit.ledger.session(session).busy


def test_what_a_dead_router_held_is_taken_over(kit: Kit) -> None:
    """An entry that was handed out and never acknowledged is handled by the next router."""
    session = kit.send()
    kit.router("dead")
    kit.streams.read("router", "dead", [Portion(all_streams(), 10)])
    handled = kit.route("alive", reclaim_idle_ms=0)
    assert (handled.reclaimed, handled.done, len(kit.sent.runs)) == (1, 1, 1)
    assert kit.ledger.session(session).busy


def test_an_entry_that_kills_each_router_alone_ends_as_a_dead_letter(kit: Kit) -> None:
    """After its deliveries alone an entry is poison, its session fails, and its neighbours are handled."""
    poison, good = kit.send("poison"), kit.send("good")
    router = kit.router("alive", reclaim_idle_ms=0)
    stream = StreamId(0, "task-delegation", "high")
    entries = kit.streams.read("router", "dead", [Portion([stream], 10)])
    for _ in range(3):
        (first,) = kit.streams.reclaim("router", "dead", [stream], idle_ms=0, limit=1)
        assert first.id == entries[0].id
    handled = router.run_once()
    assert (handled.done, handled.dead) == (1, 1)
    assert [letter.rule for letter in kit.dead()] == ["poison"]
    assert kit.ledger.session(good).busy
    assert kit.ledger.session(poison).state == SessionState.FAILED


def test_what_is_new_does_not_wait_for_all_that_was_left_over(kit: Kit) -> None:
    """A router that died with hundreds of messages in its hands leaves work for several rounds."""
    for _ in range(150):
        kit.post(UPDATE)
    kit.router("dead")
    kit.streams.read("router", "dead", [Portion(all_streams(), 200)])
    router = kit.router("alive", reclaim_idle_ms=0)
    session = kit.send()
    first = router.run_once()
    assert (first.reclaimed, kit.ledger.session(session).busy) == (64, True)
    later = [router.run_once().reclaimed for _ in range(3)]
    assert (later, kit.pending(), kit.dead()) == ([64, 22, 0], 0, [])


def test_a_wrong_clock_of_a_routers_host_changes_nothing(kit: Kit) -> None:
    """A day ahead or behind: nothing is late, expired or from the future that is not so by the server's clock."""
    soon = Timestamp.from_ms(kit.now_ms + 60_000)
    host = SteppedMachine()
    for hours in (24, -24, 0):
        host.ahead_s = hours * 3600
        kit.post(task(f"T-{hours}"), sender="partner", recipient="reviewer", retry=ONCE)
        kit.post(UPDATE, expiration=soon)
        with run_on(host):
            handled = kit.route(f"r{hours}")
        assert (handled.done, kit.dead()) == (2, [])


def test_low_messages_come_through_a_flood_of_all_others_in_the_rounds_they_are_promised(
    kit: Kit,
) -> None:
    """A whole router on a real server: eight of a stream in each round, while the rest never runs dry."""
    router = kit.router()
    copy = kit.envelope(Message(content="flood"))

    def flood() -> None:
        for priority in ("critical", "high", "normal"):
            for _ in range(SHARES[priority] * 2):
                kit.publish(copy, "message", priority)

    flood()
    router.run_once()
    low = [new_message_id() for _ in range(20)]
    for message_id in low:
        kit.publish(kit.envelope(Message(content="x"), message_id=message_id), "message", "low")
    taken = []
    for _ in range(3):
        flood()
        router.run_once()
        taken.append(sum(kit.redis.exists(keys.seen(0, "lead", message_id)) for message_id in low))
    assert taken == [8, 16, 20]


@pytest.mark.parametrize("types", ["status-update", "message,query"])
def test_a_router_consumes_only_its_types(kit: Kit, types: str) -> None:
    """Messages of other types stay for routers that want them."""
    wanted = types.split(",")
    router = kit.router(types=wanted)
    kit.post(Message(content="x"))
    handled = router.run_once()
    assert handled.done == (1 if "message" in wanted else 0)
    assert kit.route("all").done == 1 - handled.done


# --- A stack of several shards: a message belongs to one of them.


SHARDS = 4
TASK = task()


@pytest.fixture
def sharded(kit: Kit) -> Kit:
    """A stack of four shards."""
    return kit.beside(shards=SHARDS)


def everywhere(kit: Kit, data: bytes, message_type: str) -> None:
    for shard in range(SHARDS):
        kit.streams.publish(StreamId(shard, message_type, "normal"), data)


def test_a_message_begins_one_session_however_many_shards_it_is_put_into(sharded: Kit) -> None:
    """In its own it is taken; in the others it is a dead letter that says where it belongs."""
    data = sharded.envelope(TASK, sender="partner", recipient="reviewer")
    home = zlib.crc32(decode(data).conversation_id.encode()) % SHARDS
    everywhere(sharded, data, "task-delegation")
    handled = sharded.route()
    assert (handled.done, handled.dead) == (1, SHARDS - 1)
    ((dispatch, _),) = sharded.sent.runs
    assert shard_of(dispatch.session) == home
    assert {letter.rule for letter in sharded.dead()} == {"shard"}
    assert {letter.stream.shard for letter in sharded.dead()} == set(range(SHARDS)) - {home}
    assert f"belongs to shard {home:02x}" in sharded.dead()[0].reason


@pytest.mark.parametrize("kind", ["task-delegation", "escalation"])
def test_what_a_chain_names_decides_the_shard(sharded: Kit, kind: str) -> None:
    """Work that a program gives from within a session belongs to the shard of that session's tree, and to no other."""
    conversation, first = new_message_id(), new_message_id()
    options = {"sender": "partner", "correlation": conversation}
    data = sharded.envelope(TASK, message_id=first, recipient="reviewer", **options)  # type: ignore[arg-type]
    everywhere(sharded, data, "task-delegation")
    assert sharded.route().done == 1
    ((dispatch, _),) = sharded.sent.runs
    more = {
        "task-delegation": task("T-2"),
        "escalation": Escalation(escalation=EscalationMatter(task_id="T-2", title="t", description="d")),
    }[kind]
    data = sharded.envelope(more, chain=(first,), recipient="tech-lead", **options)  # type: ignore[arg-type]
    everywhere(sharded, data, kind)
    before = len(sharded.dead())
    sharded.route("two")
    assert (len(sharded.sent.runs), len(sharded.dead()) - before) == (2, SHARDS - 1)
    assert {shard_of(run.session) for run, _ in sharded.sent.runs} == {shard_of(dispatch.session)}

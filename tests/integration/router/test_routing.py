"""What the router does with good and bad entries."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.config.settings import load_settings
from orchestrator.envelope.bodies import (
    Escalation,
    EscalationMatter,
    Message,
    StatusUpdate,
    Task,
    TaskCompletion,
    TaskDelegation,
)
from orchestrator.envelope.codec import decode
from orchestrator.envelope.model import RetryPolicy
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.validate import check
from orchestrator.ids import new_message_id, shard_of
from orchestrator.ledger import SessionState
from orchestrator.machine import run_on
from orchestrator.redisdb import keys
from orchestrator.router.deadletters.store import DeadLetter, DeadLetters
from orchestrator.streams import Portion, StreamId, all_streams
from orchestrator.streams.priority import SHARES
from tests.clock import SteppedMachine
from tests.integration.router.conftest import AGENTS
from tests.kit import Kit

UPDATE = StatusUpdate(task_id="task-1", status="in-progress", progress_percentage=40)


def test_a_task_delegation_starts_the_sessions_first_run(kit: Kit) -> None:
    """The run is queued in the ledger and sent to the queue of its agent."""
    session = kit.send(agent="reviewer")
    handled = kit.route()
    (run,) = kit.parts.ledger.runs(session)
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
    assert len(kit.parts.ledger.runs(session)) == 1


def test_reports_are_acknowledged_after_validation(kit: Kit) -> None:
    """A status-update, a task-completion and an error leave the stream without a dead letter."""
    kit.publish(kit.envelope(UPDATE), "status-update")
    done = TaskCompletion(task_id="task-1", status="success", summary="ok", result="42")
    kit.publish(kit.envelope(done), "task-completion", "high")
    handled = kit.route()
    assert (handled.done, kit.dead(), kit.pending()) == (2, [], 0)


def test_the_same_message_is_handled_once_whatever_its_stream_entries(kit: Kit) -> None:
    """Duplicates are told by the message-id."""
    data = kit.envelope(UPDATE)
    for _ in range(3):
        kit.publish(data, "status-update")
    handled = kit.route()
    assert (handled.done, handled.duplicates, kit.pending()) == (1, 2, 0)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("empty", "empty"),
        ("binary", "encoding"),
        ("doctype", "dtd"),
        ("truncated", "malformed"),
        ("unsigned", "signature-missing"),
        ("changed", "signature-invalid"),
        ("forged", "signer-sender"),
        ("wrong stream", "stream-mismatch"),
        ("wrong priority", "stream-mismatch"),
        ("expired", "expired"),
        ("old", "too-old"),
        ("future", "from-the-future"),
        ("role", "sender-role"),
        ("upwards", "unauthorised"),
    ],
)
def test_what_cannot_be_accepted_is_a_dead_letter_with_its_rule(kit: Kit, name: str, rule: str) -> None:
    """The original bytes are kept, nothing stays pending, and the loop goes on."""
    past, now = Timestamp("2020-01-01T00:00:00Z"), Timestamp("2020-01-02T00:00:00Z")
    upwards = TaskDelegation(task=Task(task_id="t", title="t", description="d"))
    good = kit.envelope(UPDATE)
    message_type, data = {
        "empty": ("message", b""),
        "binary": ("message", bytes(range(256))),
        "doctype": ("message", b"<!DOCTYPE a []>" + good),
        "truncated": ("status-update", good[: len(good) // 2]),
        "unsigned": ("status-update", good[: good.index(b"<signature>")] + b"</agent-message>"),
        "changed": ("status-update", good.replace(b">40<", b">90<")),
        "forged": ("status-update", kit.envelope(UPDATE, signer="partner")),
        "wrong stream": ("query", good),
        "wrong priority": ("status-update", kit.envelope(UPDATE, priority="low")),
        "expired": ("status-update", kit.envelope(UPDATE, timestamp=past, expiration=now)),
        "old": ("status-update", kit.envelope(UPDATE, timestamp=past)),
        "future": ("status-update", kit.envelope(UPDATE, timestamp=Timestamp("2100-01-01T00:00:00Z"))),
        "role": ("status-update", kit.envelope(UPDATE, role="orchestrator")),
        "upwards": ("task-delegation", kit.envelope(upwards, sender="reviewer", recipient="lead")),
    }[name]
    kit.publish(data, message_type)
    kit.publish(kit.envelope(UPDATE), "status-update")
    router = kit.router()
    handled = router.run_once()
    (letter,) = kit.dead()
    assert (handled.done, handled.dead, kit.pending()) == (1, 1, 0)
    assert (letter.rule, letter.data, letter.type) == (rule, data, message_type)
    assert letter.reason


def test_a_refusal_is_reported_to_the_sender(kit: Kit) -> None:
    """The sender of a message that is refused gets an error in the same conversation, signed by the router."""
    message_id = new_message_id()
    upwards = TaskDelegation(task=Task(task_id="t", title="t", description="d"))
    data = kit.envelope(upwards, sender="reviewer", recipient="lead", message_id=message_id)
    kit.publish(data, "task-delegation", "high")
    kit.route()
    (report,) = kit.published("error")
    message = check(report).message
    assert (message.header.sender.agent_name, message.header.recipient.agent_name) == ("router", "reviewer")
    assert message.header.conversation_chain == (message_id,)
    assert "equal or lower rank" in message.body.message


def test_a_forged_sender_is_told_nothing(kit: Kit) -> None:
    """A report to a name that nobody vouched for would be a way to make the router talk."""
    kit.publish(kit.envelope(UPDATE, signer="partner"), "status-update")
    kit.route()
    assert kit.published("error") == []


def test_a_message_outside_its_conversation_is_refused(kit: Kit) -> None:
    """The chain must end where the conversation began."""
    correlation, first = new_message_id(), new_message_id()
    said = Message(content="hello")
    kit.publish(kit.envelope(said, message_id=first, correlation=correlation), "message")
    kit.publish(kit.envelope(said, correlation=correlation, chain=(first,)), "message")
    kit.publish(kit.envelope(said, correlation=correlation, chain=(new_message_id(),)), "message")
    handled = kit.route()
    assert (handled.done, [letter.rule for letter in kit.dead()]) == (2, ["conversation-chain"])


def test_a_broker_that_is_away_loses_no_run(kit: Kit) -> None:
    """The run stays queued in the ledger, for the sweep to send."""
    session = kit.send()
    kit.sent.down = True
    handled = kit.route()
    assert (handled.done, handled.dispatched, kit.dead()) == (1, [], [])
    assert kit.parts.ledger.session(session).busy


def test_what_a_dead_router_held_is_taken_over(kit: Kit) -> None:
    """An entry that was handed out and never acknowledged is handled by the next router."""
    session = kit.send()
    kit.router("dead")
    kit.streams.read("router", "dead", [Portion(all_streams(), 10)])
    handled = kit.route("alive", reclaim_idle_ms=0)
    assert (handled.reclaimed, handled.done, len(kit.sent.runs)) == (1, 1, 1)
    assert kit.parts.ledger.session(session).busy


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
    assert kit.parts.ledger.session(good).busy
    assert kit.parts.ledger.session(poison).state == SessionState.FAILED


def test_what_is_new_does_not_wait_for_all_that_was_left_over(kit: Kit) -> None:
    """A router that died with hundreds of messages in its hands leaves work for several rounds."""
    for _ in range(150):
        kit.publish(kit.envelope(UPDATE), "status-update")
    kit.router("dead")
    kit.streams.read("router", "dead", [Portion(all_streams(), 200)])
    router = kit.router("alive", reclaim_idle_ms=0)
    session = kit.send()
    first = router.run_once()
    assert (first.reclaimed, kit.parts.ledger.session(session).busy) == (64, True)
    later = [router.run_once().reclaimed for _ in range(3)]
    assert (later, kit.pending(), kit.dead()) == ([64, 22, 0], 0, [])


def test_a_wrong_clock_of_a_routers_host_changes_nothing(kit: Kit) -> None:
    """A day ahead or behind: nothing is late, expired or from the future that is not so by the server's clock."""
    soon = Timestamp.from_ms(int(kit.redis.time()[0]) * 1000 + 60_000)
    once = RetryPolicy(max_attempts=1, backoff_strategy="linear", timeout_seconds=60)
    message_factory = []
    for number in range(3):
        task = TaskDelegation(task=Task(task_id=f"T-{number}", title="t", description="d"))
        given = kit.envelope(task, sender="partner", recipient="reviewer", retry=once)
        message_factory.append((given, kit.envelope(UPDATE, expiration=soon)))
    host = SteppedMachine()
    for (given, update), hours in zip(message_factory, (24, -24, 0), strict=True):
        host.ahead_s = hours * 3600
        kit.publish(given, "task-delegation", "high")
        kit.publish(update, "status-update")
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
    kit.publish(kit.envelope(Message(content="x")), "message")
    handled = router.run_once()
    assert handled.done == (1 if "message" in wanted else 0)
    assert kit.route("all").done == 1 - handled.done


# --- A stack of several shards: a message belongs to one of them.


SHARDS = 4
TASK = TaskDelegation(task=Task(task_id="T-1", title="t", description="d"))


@pytest.fixture
def sharded(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Kit:
    """A stack of four shards."""
    settings = load_settings(redis_url=redis_url, data=tmp_path, registration_patience_s=0, shards=SHARDS)
    made = Kit.on(redis, settings)
    made.parts.agents.announce(AGENTS)
    return made


def everywhere(kit: Kit, data: bytes, message_type: str) -> None:
    for shard in range(SHARDS):
        kit.streams.publish(StreamId(shard, message_type, "normal"), data)


def dead(kit: Kit) -> list[DeadLetter]:
    return DeadLetters(kit.redis, shards=SHARDS).all()


def test_a_message_begins_one_session_however_many_shards_it_is_put_into(sharded: Kit) -> None:
    """In its own it is taken; in the others it is a dead letter that says where it belongs."""
    data = sharded.envelope(TASK, sender="partner", recipient="reviewer")
    home = zlib.crc32(decode(data).conversation_id.encode()) % SHARDS
    everywhere(sharded, data, "task-delegation")
    handled = sharded.route()
    assert (handled.done, handled.dead) == (1, SHARDS - 1)
    ((dispatch, _),) = sharded.sent.runs
    assert shard_of(dispatch.session) == home
    assert {letter.rule for letter in dead(sharded)} == {"shard"}
    assert {letter.stream.shard for letter in dead(sharded)} == set(range(SHARDS)) - {home}
    assert f"belongs to shard {home:02x}" in dead(sharded)[0].reason


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
        "task-delegation": TaskDelegation(task=Task(task_id="T-2", title="t", description="d")),
        "escalation": Escalation(escalation=EscalationMatter(task_id="T-2", title="t", description="d")),
    }[kind]
    data = sharded.envelope(more, chain=(first,), recipient="tech-lead", **options)  # type: ignore[arg-type]
    everywhere(sharded, data, kind)
    before = len(dead(sharded))
    sharded.route("two")
    assert (len(sharded.sent.runs), len(dead(sharded)) - before) == (2, SHARDS - 1)
    assert {shard_of(run.session) for run, _ in sharded.sent.runs} == {shard_of(dispatch.session)}

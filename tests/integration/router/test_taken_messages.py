"""The doctor names messages that somebody took from their streams unrouted, and accuses nobody of what routers do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_py
from sqlalchemy import select

from orchestrator.agents.registry import AgentRecord
from orchestrator.audit.database import DEAD_LETTERS
from orchestrator.audit.heads import EitherKeys, proof_of
from orchestrator.audit.reader import AuditReader
from orchestrator.audit.store import AuditStore
from orchestrator.doctor import examination
from orchestrator.doctor.authenticity import TakenMessages
from orchestrator.envelope.bodies import (
    ErrorReport,
    Message,
    Query,
    Reply,
    StatusUpdate,
    TaskCompletion,
)
from orchestrator.envelope.codec import decode
from orchestrator.envelope.model import Body, RetryPolicy
from orchestrator.envelope.signature import CLOCK_SKEW_MS
from orchestrator.ids import new_message_id
from orchestrator.ledger import Ledger
from orchestrator.redisdb import keys
from orchestrator.router.commands import MARK_MARGIN_MS
from orchestrator.streams import StreamId, stream_key
from tests.integration.router.conftest import forge, task, unsigned
from tests.integration.router.trail import write, writer
from tests.kit import Kit

SAID: dict[str, Body] = {
    "a task": task(),
    "a completion": TaskCompletion(task_id="T-1", status="success", summary="done"),
    "a status": StatusUpdate(task_id="T-1", status="in-progress"),
    "a question": Query(query_type="ask-for-help", subject="which one?"),
    "a reply": Reply(in_reply_to=new_message_id(), answer="that one"),
    "a message": Message(content="by the way"),
    "an error": ErrorReport(
        error_id=new_message_id(), error_type="task-failed", severity="critical", message="it broke"
    ),
}


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "SECOND_LOOKS", (0.0,))


@pytest.fixture
def thief(kit: Kit) -> Iterator[redis_py.Redis]:
    """Somebody who has the rights of a router."""
    client = kit.as_role("router")
    yield client
    client.close()


def found(kit: Kit) -> dict[str, tuple[str, str]]:
    """Rule and severity of what the doctor says of messages, by what it is about."""
    said = kit.document("doctor", "--quick")
    rules = ("message-taken", "messages-not-compared", "damaged")
    return {f["subject"]: (f["rule"], f["severity"]) for f in said["findings"] if f["rule"] in rules}


def where(data: bytes, kit: Kit) -> StreamId:
    """The stream in which an envelope belongs."""
    message = decode(data)
    kind = message.body.type
    return StreamId(0, kind, message.header.priority or kit.parts.routing[kind].priority)


def publish(kit: Kit, data: bytes) -> str:
    """Publish an envelope where it belongs; its message-id."""
    stream = where(data, kit)
    kit.publish(data, stream.type, stream.priority)
    return decode(data).header.message_id.lower()


def take(thief: redis_py.Redis, kit: Kit, data: bytes) -> str:
    """Read what is new in the stream of an envelope as a router; the last entry, which is not acknowledged."""
    ((_, entries),) = thief.xreadgroup("router", "thief", {stream_key(where(data, kit)): ">"})
    return str(entries[-1][0].decode())


def acknowledge(thief: redis_py.Redis, kit: Kit, data: bytes, entry: str) -> None:
    """Say as a router that an entry was handled."""
    assert thief.xack(stream_key(where(data, kit)), "router", entry) == 1


# --- what is found --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", SAID)
def test_what_a_program_said_and_a_thief_took_is_named(kit: Kit, thief: redis_py.Redis, what: str) -> None:
    """Not while it is unread or in somebody's hands, and not before the audit writer has it."""
    kit.router()
    data = kit.envelope(SAID[what], sender="partner", recipient="reviewer")
    message_id = publish(kit, data)
    write(kit)
    assert found(kit) == {}
    entry = take(thief, kit, data)
    assert found(kit) == {}
    acknowledge(thief, kit, data, entry)
    assert found(kit) == {message_id: ("message-taken", "break")}
    assert kit.orchestra("doctor", "--quick").exit_code == 1


def test_what_is_taken_and_removed_is_named_too(kit: Kit, thief: redis_py.Redis) -> None:
    """Unread entries as well; a thief leaves no trace by deleting."""
    kit.router()
    ids = set()
    for text in ("one", "two"):
        data = kit.envelope(Message(content=text), sender="partner", recipient="reviewer")
        ids.add(publish(kit, data))
    write(kit)
    (first, _), (second, _) = thief.xrange(stream_key(where(data, kit)))
    thief.xdel(stream_key(where(data, kit)), second)
    assert set(found(kit)) < ids
    take(thief, kit, data)
    acknowledge(thief, kit, data, first.decode())
    thief.xdel(stream_key(where(data, kit)), first)
    assert set(found(kit)) == ids


def test_what_a_program_never_reads_is_a_break_and_a_report_of_ours_is_a_warning(
    kit: Kit, thief: redis_py.Redis
) -> None:
    """The ledger has the effect of what our own agents say to each other."""
    kit.router()
    expected = {}
    for recipient, severity in (("partner", "break"), ("tech-lead", "warning")):
        data = kit.envelope(Message(content="x"), recipient=recipient)
        expected[publish(kit, data)] = ("message-taken", severity)
        acknowledge(thief, kit, data, take(thief, kit, data))
    write(kit)
    assert found(kit) == expected


def test_sending_it_again_as_the_doctor_says_puts_it_right(
    kit: Kit, thief: redis_py.Redis, tmp_path: Path
) -> None:
    """The same envelope is no duplicate, as nobody has routed it."""
    kit.router()
    data = kit.envelope(task(), sender="partner", recipient="reviewer")
    message_id = publish(kit, data)
    acknowledge(thief, kit, data, take(thief, kit, data))
    write(kit)
    assert set(found(kit)) == {message_id}
    file = tmp_path / "message.xml"
    file.write_bytes(kit.orchestra("audit", "show", message_id, "--xml").stdout_bytes)
    assert file.read_bytes() == data
    assert kit.orchestra("message", "send", str(file)).exit_code == 0
    write(kit)
    assert found(kit) == {}  # it is on its way
    assert kit.route("honest").done == 1
    write(kit)
    assert found(kit) == {}
    assert [session.agent for session in kit.ledger.roots(0)] == ["reviewer"]


def waiting(kit: Kit) -> bytes:
    """An envelope of a program that waits for its next attempt, its first one being audited."""
    policy = RetryPolicy(max_attempts=3, backoff_strategy="linear", timeout_seconds=60)
    data = kit.post(task(), sender="partner", recipient="nobody-yet", retry=policy)
    assert kit.route("waits").parked == 1
    write(kit)
    return data


def test_what_waited_and_was_taken_when_it_came_back_is_named(kit: Kit, thief: redis_py.Redis) -> None:
    """Its mark says that it waited, and under which entry it came back."""
    data = waiting(kit)
    assert found(kit) == {}
    kit.wake()
    write(kit)
    assert found(kit) == {}
    entry = take(thief, kit, data)
    assert found(kit) == {}
    acknowledge(thief, kit, data, entry)
    assert found(kit) == {decode(data).header.message_id.lower(): ("message-taken", "break")}


# --- who is not accused ---------------------------------------------------------------------------------------------


def routed(kit: Kit) -> None:
    """A task, what is said about it, to a program and from one; a copy of each."""
    kit.redis.xadd(
        keys.outbox(0, "partner"), {"envelope": kit.envelope(task(), sender="partner", recipient="reviewer")}
    )
    for recipient in ("partner", "tech-lead"):
        data = kit.envelope(Message(content="x"), recipient=recipient)
        for _ in range(2):
            publish(kit, data)
    for _ in range(2):
        kit.route("r")


def refused(kit: Kit) -> None:
    """Dead letters: of a stranger, of one without a right, of an id that was used before, of what cannot be read."""
    used = kit.envelope(task(), sender="partner", recipient="reviewer")
    publish(kit, used)
    forge(kit, Message(content="y"))
    kit.route("r")
    kit.post(task("T-2"), sender="partner", message_id=decode(used).header.message_id)
    kit.post(task(), sender="partner", role="specialist")
    kit.publish(b"<agent-message", "message")
    for _ in range(2):
        kit.route("r")
    assert len(kit.dead()) >= 4


def test_what_routers_do_accuses_nobody(kit: Kit) -> None:
    """Carried out, a copy, put into an inbox, refused before and after the audit writer has read the refusal."""
    routed(kit)
    write(kit)
    assert found(kit) == {}
    refused(kit)
    dead = kit.redis.xreadgroup("audit", "slow", {keys.dead(0): ">"})  # nobody else writes them yet
    write(kit)
    assert AuditStore(kit.settings.audit_file, read_only=True).query(select(DEAD_LETTERS)) == []
    assert len(dead[0][1]) >= 4
    assert found(kit) == {}
    kit.redis.xclaim(keys.dead(0), "audit", "w", 0, [entry for entry, _ in dead[0][1]], idle=10**9)
    write(kit)
    assert AuditStore(kit.settings.audit_file, read_only=True).query(select(DEAD_LETTERS)) != []
    assert found(kit) == {}


@pytest.mark.parametrize("then", ["replay", "drop"])
@pytest.mark.parametrize("audited", [True, False])
def test_dead_letters_that_people_took_out_accuse_nobody(kit: Kit, then: str, audited: bool) -> None:
    """Before the audit writer has read one nobody can tell what became of the message, and the doctor says so."""
    refused(kit)
    if audited:
        write(kit)
    else:
        writer(kit)
    dead = [one for one in kit.dead() if one.sender == "partner"]
    for one in dead:
        assert kit.orchestra("dlq", then, one.id).exit_code == 0
    kit.route("again")
    write(kit)
    said = set(found(kit).values())
    assert said == (set() if audited else {("messages-not-compared", "warning")})


@pytest.mark.parametrize("end", ["carried out", "dead"])
def test_what_waited_and_came_back_accuses_nobody(kit: Kit, end: str) -> None:
    """Its first entry has neither mark nor dead letter of its own then."""
    waiting(kit)
    if end == "carried out":
        kit.parts.agents.announce([AgentRecord(name="nobody-yet", role="specialist")])
    for _ in range(3):
        kit.wake()
        kit.route("later")
        assert found(kit) == {}
    assert len(kit.dead()) == (1 if end == "dead" else 0)
    write(kit)
    assert found(kit) == {}


def test_a_forgery_that_its_author_acknowledges_accuses_nobody(kit: Kit, thief: redis_py.Redis) -> None:
    """What its sender is not known to have said is no loss."""
    kit.router()
    data = unsigned(kit, Message(content="x"), sender="partner")
    publish(kit, data)
    acknowledge(thief, kit, data, take(thief, kit, data))
    write(kit)
    assert found(kit) == {}


def test_an_emptied_redis_accuses_nobody(kit: Kit) -> None:
    """The trail remembers what Redis has forgotten: a warning for the stream."""
    routed(kit)
    write(kit)
    kit.redis.flushdb()
    kit.parts.agents.announce(kit.parts.agents.all() or [])
    writer(kit)
    data = kit.envelope(Message(content="later"))
    publish(kit, data)
    kit.route("new")
    write(kit)
    assert set(found(kit).values()) <= {("messages-not-compared", "warning")}
    assert "00/message/normal" in found(kit)


def test_a_mark_that_has_lived_its_time_accuses_nobody(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is compared as long as its mark is sure to be there, whatever the clocks of others say."""
    data = kit.envelope(task(), sender="partner", recipient="reviewer")
    message_id = publish(kit, data)
    assert kit.route("r").done == 1
    write(kit)
    kit.redis.delete(keys.seen(0, "partner", message_id))
    said_ms = decode(data).header.timestamp.instant_ms
    most_ms = round(kit.settings.message_max_age_s * 1000) + MARK_MARGIN_MS - CLOCK_SKEW_MS
    parts = kit.parts
    proof = proof_of(EitherKeys(parts.keyring, parts.keyring.store), kit.settings)
    audit = AuditReader(AuditStore(kit.settings.audit_file, read_only=True))

    def at(now_ms: int) -> int:
        later: Callable[[Ledger], int] = lambda _: now_ms  # noqa: E731
        monkeypatch.setattr(Ledger, "server_ms", later)
        return len(TakenMessages(parts, audit, proof).find())

    assert at(said_ms + most_ms - 1) == 1
    assert at(said_ms + most_ms) == 0


def test_without_a_trail_the_doctor_says_that_nobody_looked(kit: Kit) -> None:
    """And holds nothing against anybody."""
    said = kit.document("doctor", "--quick")
    (warning,) = [f for f in said["findings"] if f["rule"] == "no-audit-trail"]
    assert "nobody looked for messages" in warning["message"]

"""External programs write to an outbox and read from an inbox of their own."""

from __future__ import annotations

import re
import time
from typing import cast

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import build_container
from orchestrator.deployment.local_stack import build_reaper
from orchestrator.doctor import Doctor
from orchestrator.envelope.validate import check
from orchestrator.ids import new_message_id
from orchestrator.redisdb import keys
from orchestrator.router.execution import Execution
from orchestrator.router.external import Outboxes
from orchestrator.streams import AUDIT_GROUP, ROUTER_GROUP, Entry, all_streams
from tests.integration.router.conftest import rounds, task
from tests.kit import Kit
from tests.waiting import until

OUT, IN = keys.outbox(0, "partner"), keys.inbox(0, "partner")


def work(
    kit: Kit,
    recipient: str = "reviewer",
    *,
    sender: str = "partner",
    text: str = "the lines",
    message_id: str | None = None,
) -> bytes:
    """A task of a program, under an id of its own."""
    return kit.envelope(task(text=text), sender=sender, recipient=recipient, message_id=message_id)


def put(kit: Kit, data: bytes | str) -> None:
    """Put an envelope into the outbox of the program."""
    kit.redis.xadd(OUT, {"envelope": data})


def inbox(kit: Kit, name: str = IN) -> list[str]:
    """The message-ids of what is in an inbox."""
    found = [check(fields[b"envelope"]).message for _, fields in kit.redis.xrange(name)]
    return [message.header.message_id for message in found if message is not None]


def test_what_stands_in_an_outbox_is_routed_as_any_message(kit: Kit) -> None:
    """It begins a session; it stands in the stream of its type, where the audit writer reads it, and nowhere else."""
    put(kit, work(kit))
    rounds(kit.router())
    (session,) = kit.ledger.roots(0)
    assert (session.agent, session.title) == ("reviewer", "Count")
    assert len(kit.sent.runs) == 1
    assert len(kit.published("task-delegation")) == 1
    assert (
        kit.redis.xinfo_groups(keys.messages(0, "task-delegation", "high"))[0]["name"] == AUDIT_GROUP.encode()
    )
    assert kit.redis.xlen(OUT) == 0
    assert kit.redis.xpending(OUT, "router")["pending"] == 0


def test_a_program_says_nothing_in_the_stacks_own_words_beside_its_message(kit: Kit) -> None:
    """`noted` would put a message aside, `attempt` would make it an old acquaintance, `from` another's."""
    own = {"already_applied": "1", "attempt": "7", "since": "1", "from": "lead"}
    kit.redis.xadd(OUT, {**own, "envelope": work(kit)})
    rounds(kit.router())
    ((_, fields),) = kit.redis.xrange(keys.messages(0, "task-delegation", "high"))
    assert set(fields) == {b"envelope", b"from"}
    assert fields[b"from"] == b"partner"
    assert len(kit.ledger.roots(0)) == 1


def test_only_its_own_messages_are_accepted_from_an_outbox(kit: Kit) -> None:
    """A genuine message of somebody else is refused there, and counts where its sender puts it."""
    data = work(kit, sender="lead")
    put(kit, data)
    rounds(kit.router())
    (dead,) = kit.dead()
    assert dead.rule == "outbox-sender"
    assert kit.ledger.roots(0) == []
    kit.publish(data, "task-delegation", "high")
    kit.route()
    assert len(kit.ledger.roots(0)) == 1


@pytest.mark.parametrize(
    ("fields", "rule"),
    [({"envelope": "<a"}, "malformed"), ({"text": "hello"}, "no-envelope")],
    ids=["no XML", "no envelope"],
)
def test_what_cannot_be_read_in_an_outbox_is_refused_by_name(
    kit: Kit, fields: dict[str, str], rule: str
) -> None:
    """It holds up nobody, and leaves the outbox."""
    kit.redis.xadd(OUT, fields)
    put(kit, work(kit))
    rounds(kit.router())
    (dead,) = kit.dead()
    assert dead.rule == rule
    assert kit.redis.xlen(OUT) == 0
    assert len(kit.ledger.roots(0)) == 1


@pytest.mark.parametrize(
    ("field", "taken"),
    [("envelope", False), ("beside", False), ("envelope", True)],
    ids=["envelope", "beside it", "handed out by its program"],
)
def test_what_is_larger_than_a_message_is_refused_unread(kit: Kit, field: str, taken: bool) -> None:
    """Neither router nor audit writer is sent an octet of it; what honest senders say goes on."""
    small = kit.beside(max_message_bytes=100_000)
    small.route("first")
    for _ in range(20):
        kit.redis.xadd(OUT, {"envelope": "<a/>", field: b"x" * 1_000_000})
    if taken:  # it may read its own stream
        kit.redis.xreadgroup("router", "partner", {OUT: ">"}, count=20)
    put(kit, work(kit))
    before = sent_octets(kit)
    router = small.router(reclaim_idle_ms=0)
    for _ in range(25):
        router.run_once()
        if not kit.redis.xlen(OUT):
            break
    router.run_once()
    if not taken:
        assert sent_octets(kit) - before < 1_000_000
    assert {dead.rule for dead in kit.dead()} == {"size"}
    assert re.search("it had 10000[0-9][0-9] bytes, more than the 100000", kit.dead()[0].reason)
    assert {dead.data for dead in kit.dead()} == {b""}
    assert len(kit.dead()) == 20
    assert len(kit.ledger.roots(0)) == 1
    assert int(cast("bytes", kit.redis.get(keys.quota(0, "partner")))) >= 20 * 1_000_000 // 65_536


def test_a_round_reads_no_more_than_one_message_may_have(kit: Kit) -> None:
    """Of an outbox full of large messages a router takes a few at a time, and counts each as many."""
    small = kit.beside(max_message_bytes=100_000)
    for _ in range(30):
        put(kit, work(kit, text="x" * 90_000))
    router = small.router()
    took = 0
    while kit.redis.xlen(OUT):
        before, took = sent_octets(kit), took + 1
        router.run_once()
        assert sent_octets(kit) - before < 500_000
    assert took >= 10
    assert len(kit.published("task-delegation")) == 30
    assert int(cast("bytes", kit.redis.get(keys.quota(0, "partner")))) == 60


def sent_octets(kit: Kit) -> int:
    """What the server has sent to anybody."""
    return int(cast("dict[str, int]", kit.redis.info("stats"))["total_net_output_bytes"])


def test_a_router_that_dies_with_what_it_took_from_an_outbox_loses_and_doubles_nothing(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one takes it over, and what the first one still does with it changes nothing."""
    put(kit, work(kit))
    held: list[tuple[Outboxes, list[Entry]]] = []

    def dies(self: Outboxes, entries: list[Entry], *, unread: bool = False) -> list[Entry]:
        held.append((self, entries))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Outboxes, "collect", dies)
        with pytest.raises(KeyboardInterrupt):
            kit.route("first")
    ((first, entries),) = held
    assert len(entries) == 1
    second = kit.router("second", reclaim_idle_ms=0)
    second.run_once()
    first.collect(entries)  # it was only slow
    second.run_once()
    assert len(kit.published("task-delegation")) == 1
    assert len(kit.ledger.roots(0)) == 1


def test_what_ends_routers_in_an_outbox_is_moved_unread(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the stream of messages the rule about such messages ends it."""
    put(kit, work(kit))
    looked = []

    def dies(self: Outboxes, entry: object) -> tuple[str, str]:
        looked.append(entry)
        raise KeyboardInterrupt

    monkeypatch.setattr(Outboxes, "_place", dies)
    for number in range(10):
        if kit.redis.xlen(OUT) == 0:
            break
        try:
            kit.route(f"r{number}", reclaim_idle_ms=0)
        except KeyboardInterrupt:
            continue
    assert kit.redis.xlen(OUT) == 0
    assert 3 <= len(looked) <= 5
    kit.route("last")
    assert [dead.rule for dead in kit.dead()] == ["stream-mismatch"]


def test_a_message_to_a_program_is_in_its_inbox_once(kit: Kit) -> None:
    """Of a task that the router began, and of a copy of it, one; of a refused one none."""
    message = new_message_id()
    data = work(kit, "partner", sender="lead", message_id=message)
    for _ in range(2):
        kit.publish(data, "task-delegation", "high")
    another = work(kit, "partner", sender="lead", message_id=message, text="count them again")
    kit.publish(another, "task-delegation", "high")
    assert kit.route().duplicates == 1
    assert inbox(kit) == [message]
    assert kit.pending() == 0
    assert [dead.rule for dead in kit.dead()] == ["message-id"]


def test_one_program_writes_to_another(kit: Kit) -> None:
    """By way of both their boxes; what it is refused comes back into its own inbox."""
    kit.parts.agents.announce([AgentRecord(name="other", executor="foreign")])
    message = new_message_id()
    for text in ("one", "another"):
        put(kit, work(kit, "other", message_id=message, text=text))
    rounds(kit.router())
    assert inbox(kit, keys.inbox(0, "other")) == [message]
    (dead,) = kit.dead()
    assert dead.rule == "message-id"
    kit.route()
    (told,) = [check(fields[b"envelope"]).message for _, fields in kit.redis.xrange(IN)]
    assert (told.header.sender.agent_name, told.body.type) == ("router", "error")


def test_a_router_that_dies_before_it_delivered_delivers_once(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message was carried out and not acknowledged: it is carried out again without effect, and delivered."""
    session = kit.send(agent="partner")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "_deliver", dies)
        with pytest.raises(KeyboardInterrupt):
            kit.route("first")
    runs = kit.ledger.runs(session)
    assert len(runs) == 1
    assert inbox(kit) == []
    rounds(kit.router("second", reclaim_idle_ms=0))
    assert len(inbox(kit)) == 1
    assert [run.id for run in kit.ledger.runs(session)] == [runs[0].id]
    assert kit.pending() == 0


def test_what_a_program_has_acknowledged_leaves_its_inbox(kit: Kit) -> None:
    """And nothing else does."""
    for seed in ("a", "b", "c"):
        kit.send(seed, agent="partner")
    kit.route()
    rows = kit.redis.xreadgroup("partner", "one", {IN: ">"}, count=2)
    read = [entry for entry, _ in rows[0][1]]
    kit.redis.xack(IN, "partner", read[0])
    build_reaper(kit.as_role("reaper"), kit.settings).run_once()
    assert next(entry for entry, _ in kit.redis.xrange(IN)) == read[1]
    assert kit.redis.xlen(IN) == 2


def test_an_inbox_that_nobody_reads_is_bounded_and_the_doctor_says_so(kit: Kit) -> None:
    """The oldest messages leave it; the audit trail has them."""
    kit = kit.beside(stream_max_entries=5)
    for number in range(7):
        kit.send(f"s{number}", agent="partner")
    kit.route()
    assert kit.redis.xlen(IN) == 5
    doctor = Doctor(build_container(kit.as_role("console"), kit.settings), audit=None)
    findings = {finding.rule: finding for finding in doctor.examine().findings}
    assert "2 messages" in findings["inbox-dropped"].message
    assert "partner" in findings["inbox-full"].message


def test_a_program_has_its_boxes_from_when_it_is_registered(kit: Kit) -> None:
    """A running router reads the outbox of a program that was registered after it began."""
    router = kit.router()
    router.run_once()
    done = kit.orchestra("agents", "register", "late", "--role", "coordinator")
    assert done.exit_code == 0, done.output
    assert kit.redis.xinfo_groups(keys.inbox(0, "late"))[0]["name"] == b"late"
    kit.parts.keyring.store.create("late")
    kit.redis.xadd(keys.outbox(0, "late"), {"envelope": work(kit, sender="late")})

    def begun() -> bool:
        router.run_once()
        return bool(kit.ledger.roots(0))

    until(begun)


def test_the_doctor_finds_what_was_taken_from_an_outbox_and_not_routed(
    kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what no router has read."""
    kit.router()
    monkeypatch.setattr("orchestrator.doctor.health.LATE_MS", -1)
    kit.route()
    put(kit, "a")
    kit.redis.xreadgroup("router", "thief", {OUT: ">"})
    put(kit, "b")
    time.sleep(0.002)
    found = {f.rule for f in Doctor(kit.parts, audit=None).examine().findings if OUT[-7:] in f.subject}
    assert found == {"entries-held", "entries-unread"}


def test_an_overwritten_inbox_holds_up_its_own_messages_only(kit: Kit) -> None:
    kit.redis.set(IN, "x")
    kit.send("a", agent="partner")
    kit.send("b")
    for _ in range(3):
        kit.route("one", reclaim_idle_ms=0)
    (waits,) = [b for b in kit.streams.backlog(ROUTER_GROUP, all_streams()) if b.pending]
    assert waits.pending == 1
    assert "lead" in [run.agent for run, _ in kit.sent.runs]
    kit.redis.delete(IN)
    kit.route("two", reclaim_idle_ms=0)
    assert len(inbox(kit)) == 1
    assert kit.dead() == []


def test_an_inbox_that_takes_nothing_ends_no_router_and_loses_nothing(kit: Kit) -> None:
    """The message is refused by name, for the operator to replay; others are routed."""
    last = 2**64 - 1  # Redis 6.2 cannot keep a program from it
    kit.redis.xadd(IN, {"envelope": "x"}, id=f"{last}-{last}")
    kit.send("a", agent="partner")
    kit.send("b")
    kit.route()
    assert kit.ledger.roots(0)
    (parked,) = kit.delayed.all()
    assert parked.rule == "internal-error"
    assert f"rename {IN}" in parked.reason
    kit.redis.delete(IN)
    kit.wake()
    kit.route()
    assert len(inbox(kit)) == 1
    assert kit.dead() == []

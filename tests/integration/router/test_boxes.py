"""External programs write to an outbox and read from an inbox of their own."""

from __future__ import annotations

import re
import time
from typing import cast

import pytest
from click.testing import CliRunner

from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import build_container
from orchestrator.cli import main
from orchestrator.deployment.local_stack import build_reaper
from orchestrator.doctor import Doctor
from orchestrator.envelope.bodies import Task, TaskDelegation
from orchestrator.envelope.validate import check
from orchestrator.ids import new_message_id
from orchestrator.redisdb import keys
from orchestrator.router.execution import Execution
from orchestrator.router.external import Outboxes
from orchestrator.streams import AUDIT_GROUP, ROUTER_GROUP, Entry, all_streams
from tests.integration.router.conftest import Stack, until

OUT, IN = keys.outbox(0, "partner"), keys.inbox(0, "partner")


def task(
    recipient: str,
    stack: Stack,
    *,
    sender: str = "partner",
    message_id: str | None = None,
    text: str = "count the lines",
) -> bytes:
    """A task of a program, under an id of its own."""
    body = TaskDelegation(task=Task(task_id="T-1", title="Count", description=text))
    return stack.envelope(body, sender=sender, recipient=recipient, message_id=message_id)


def inbox(stack: Stack, name: str = IN) -> list[str]:
    """The message-ids of what is in an inbox."""
    found = [check(fields[b"envelope"]).message for _, fields in stack.redis.xrange(name)]
    return [message.header.message_id for message in found if message is not None]


def routed(stack: Stack, consumer: str = "r1") -> None:
    """One round takes what is in the outboxes over, one routes it."""
    router = stack.router(consumer)
    router.run_once()
    router.run_once()


def test_what_stands_in_an_outbox_is_routed_as_any_message(stack: Stack) -> None:
    """It begins a session; it stands in the stream of its type, where the audit writer reads it, and nowhere else."""
    stack.redis.xadd(OUT, {"envelope": task("reviewer", stack)})
    routed(stack)
    (session,) = stack.parts.ledger.roots(0)
    assert (session.agent, session.title) == ("reviewer", "Count")
    assert len(stack.sent.runs) == 1
    assert len(stack.published("task-delegation")) == 1
    assert (
        stack.redis.xinfo_groups(keys.messages(0, "task-delegation", "high"))[0]["name"]
        == AUDIT_GROUP.encode()
    )
    assert stack.redis.xlen(OUT) == 0
    assert stack.redis.xpending(OUT, "router")["pending"] == 0


def test_a_program_says_nothing_in_the_stacks_own_words_beside_its_message(stack: Stack) -> None:
    """`noted` would put a message aside, `attempt` would make it an old acquaintance, `from` another's."""
    own = {"already_applied": "1", "attempt": "7", "since": "1", "from": "lead"}
    stack.redis.xadd(OUT, {**own, "envelope": task("reviewer", stack)})
    routed(stack)
    ((_, fields),) = stack.redis.xrange(keys.messages(0, "task-delegation", "high"))
    assert set(fields) == {b"envelope", b"from"}
    assert fields[b"from"] == b"partner"
    assert len(stack.parts.ledger.roots(0)) == 1


def test_only_its_own_messages_are_accepted_from_an_outbox(stack: Stack) -> None:
    """A genuine message of somebody else is refused there, and counts where its sender puts it."""
    data = task("reviewer", stack, sender="lead")
    stack.redis.xadd(OUT, {"envelope": data})
    routed(stack)
    (dead,) = stack.dead()
    assert dead.rule == "outbox-sender"
    assert stack.parts.ledger.roots(0) == []
    stack.publish(data, "task-delegation", "high")
    stack.router().run_once()
    assert len(stack.parts.ledger.roots(0)) == 1


@pytest.mark.parametrize(
    ("fields", "rule"),
    [({"envelope": "<a"}, "malformed"), ({"text": "hello"}, "no-envelope")],
    ids=["no XML", "no envelope"],
)
def test_what_cannot_be_read_in_an_outbox_is_refused_by_name(
    stack: Stack, fields: dict[str, str], rule: str
) -> None:
    """It holds up nobody, and leaves the outbox."""
    stack.redis.xadd(OUT, fields)
    stack.redis.xadd(OUT, {"envelope": task("reviewer", stack)})
    routed(stack)
    (dead,) = stack.dead()
    assert dead.rule == rule
    assert stack.redis.xlen(OUT) == 0
    assert len(stack.parts.ledger.roots(0)) == 1


@pytest.mark.parametrize(
    ("field", "taken"),
    [("envelope", False), ("beside", False), ("envelope", True)],
    ids=["envelope", "beside it", "handed out by its program"],
)
def test_what_is_larger_than_a_message_is_refused_unread(stack: Stack, field: str, taken: bool) -> None:
    """Neither router nor audit writer is sent an octet of it; what honest senders say goes on."""
    small = narrow(stack, 100_000)
    small.router("first").run_once()
    for _ in range(20):
        stack.redis.xadd(OUT, {"envelope": "<a/>", field: b"x" * 1_000_000})
    if taken:  # it may read its own stream
        stack.redis.xreadgroup("router", "partner", {OUT: ">"}, count=20)
    stack.redis.xadd(OUT, {"envelope": task("reviewer", stack)})
    before = sent_octets(stack)
    router = small.router(reclaim_idle_ms=0)
    for _ in range(25):
        router.run_once()
        if not stack.redis.xlen(OUT):
            break
    router.run_once()
    if not taken:
        assert sent_octets(stack) - before < 1_000_000
    assert {dead.rule for dead in stack.dead()} == {"size"}
    assert re.search("it had 10000[0-9][0-9] bytes, more than the 100000", stack.dead()[0].reason)
    assert {dead.data for dead in stack.dead()} == {b""}
    assert len(stack.dead()) == 20
    assert len(stack.parts.ledger.roots(0)) == 1
    assert int(cast("bytes", stack.redis.get(keys.quota(0, "partner")))) >= 20 * 1_000_000 // 65_536


def test_a_round_reads_no_more_than_one_message_may_have(stack: Stack) -> None:
    """Of an outbox full of large messages a router takes a few at a time, and counts each as many."""
    small = narrow(stack, 100_000)
    text = "x" * 90_000
    data = [task("reviewer", stack, text=text) for _ in range(30)]
    for octets in data:
        stack.redis.xadd(OUT, {"envelope": octets})
    router = small.router()
    rounds = 0
    while stack.redis.xlen(OUT):
        before, rounds = sent_octets(stack), rounds + 1
        router.run_once()
        assert sent_octets(stack) - before < 500_000
    assert rounds >= 10
    assert len(stack.published("task-delegation")) == 30
    assert int(cast("bytes", stack.redis.get(keys.quota(0, "partner")))) == 60


def narrow(stack: Stack, octets: int) -> Stack:
    """The same stack, where a message has at most so many octets."""
    settings = stack.settings.model_copy(update={"max_message_bytes": octets})
    return Stack(stack.redis, settings, build_container(stack.redis, settings))


def sent_octets(stack: Stack) -> int:
    """What the server has sent to anybody."""
    return int(cast("dict[str, int]", stack.redis.info("stats"))["total_net_output_bytes"])


def test_a_router_that_dies_with_what_it_took_from_an_outbox_loses_and_doubles_nothing(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one takes it over, and what the first one still does with it changes nothing."""
    stack.redis.xadd(OUT, {"envelope": task("reviewer", stack)})
    held: list[tuple[Outboxes, list[Entry]]] = []

    def dies(self: Outboxes, entries: list[Entry], *, unread: bool = False) -> list[Entry]:
        held.append((self, entries))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Outboxes, "collect", dies)
        with pytest.raises(KeyboardInterrupt):
            stack.router("first").run_once()
    ((first, entries),) = held
    assert len(entries) == 1
    second = stack.router("second", reclaim_idle_ms=0)
    second.run_once()
    first.collect(entries)  # it was only slow
    second.run_once()
    assert len(stack.published("task-delegation")) == 1
    assert len(stack.parts.ledger.roots(0)) == 1


def test_what_ends_routers_in_an_outbox_is_moved_unread(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the stream of messages the rule about such messages ends it."""
    stack.redis.xadd(OUT, {"envelope": task("reviewer", stack)})
    looked = []

    def dies(self: Outboxes, entry: object) -> tuple[str, str]:
        looked.append(entry)
        raise KeyboardInterrupt

    monkeypatch.setattr(Outboxes, "_place", dies)
    for number in range(10):
        if stack.redis.xlen(OUT) == 0:
            break
        try:
            stack.router(f"r{number}", reclaim_idle_ms=0).run_once()
        except KeyboardInterrupt:
            continue
    assert stack.redis.xlen(OUT) == 0
    assert 3 <= len(looked) <= 5
    stack.router("last").run_once()
    assert [dead.rule for dead in stack.dead()] == ["stream-mismatch"]


def test_a_message_to_a_program_is_in_its_inbox_once(stack: Stack) -> None:
    """Of a task that the router began, and of a copy of it, one; of a refused one none."""
    message = new_message_id()
    data = task("partner", stack, sender="lead", message_id=message)
    for _ in range(2):
        stack.publish(data, "task-delegation", "high")
    another = task("partner", stack, sender="lead", message_id=message, text="count them again")
    stack.publish(another, "task-delegation", "high")
    assert stack.router().run_once().duplicates == 1
    assert inbox(stack) == [message]
    assert stack.pending() == 0
    assert [dead.rule for dead in stack.dead()] == ["message-id"]


def test_one_program_writes_to_another(stack: Stack) -> None:
    """By way of both their boxes; what it is refused comes back into its own inbox."""
    stack.parts.agents.announce([AgentRecord(name="other", executor="foreign")])
    message = new_message_id()
    for text in ("one", "another"):
        stack.redis.xadd(OUT, {"envelope": task("other", stack, message_id=message, text=text)})
    routed(stack)
    assert inbox(stack, keys.inbox(0, "other")) == [message]
    (dead,) = stack.dead()
    assert dead.rule == "message-id"
    stack.router().run_once()
    (told,) = [check(fields[b"envelope"]).message for _, fields in stack.redis.xrange(IN)]
    assert (told.header.sender.agent_name, told.body.type) == ("router", "error")


def test_a_router_that_dies_before_it_delivered_delivers_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message was carried out and not acknowledged: it is carried out again without effect, and delivered."""
    session = stack.submit(agent="partner")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Execution, "_deliver", dies)
        with pytest.raises(KeyboardInterrupt):
            stack.router("first").run_once()
    runs = stack.parts.ledger.runs(session)
    assert len(runs) == 1
    assert inbox(stack) == []
    second = stack.router("second", reclaim_idle_ms=0)
    second.run_once()
    second.run_once()
    assert len(inbox(stack)) == 1
    assert [run.id for run in stack.parts.ledger.runs(session)] == [runs[0].id]
    assert stack.pending() == 0


def test_what_a_program_has_acknowledged_leaves_its_inbox(stack: Stack) -> None:
    """And nothing else does."""
    for seed in ("a", "b", "c"):
        stack.submit(seed, agent="partner")
    stack.router().run_once()
    rows = stack.redis.xreadgroup("partner", "one", {IN: ">"}, count=2)
    read = [entry for entry, _ in rows[0][1]]
    stack.redis.xack(IN, "partner", read[0])
    build_reaper(stack.as_role("reaper"), stack.settings).run_once()
    assert next(entry for entry, _ in stack.redis.xrange(IN)) == read[1]
    assert stack.redis.xlen(IN) == 2


def test_an_inbox_that_nobody_reads_is_bounded_and_the_doctor_says_so(stack: Stack) -> None:
    """The oldest messages leave it; the audit trail has them."""
    settings = stack.settings.model_copy(update={"stream_max_entries": 5})
    stack.settings = settings
    for number in range(7):
        stack.submit(f"s{number}", agent="partner")
    stack.router().run_once()
    assert stack.redis.xlen(IN) == 5
    findings = {
        f.rule: f
        for f in Doctor(build_container(stack.as_role("console"), settings), audit=None).examine().findings
    }
    assert "2 messages" in findings["inbox-dropped"].message
    assert "partner" in findings["inbox-full"].message


def test_a_program_has_its_boxes_from_when_it_is_registered(stack: Stack) -> None:
    """A running router reads the outbox of a program that was registered after it began."""
    router = stack.router()
    router.run_once()
    done = CliRunner().invoke(
        main,
        ["agents", "register", "late", "--role", "coordinator"],
        env={"ORCHESTRA_REDIS_URL": stack.settings.redis_url, "ORCHESTRA_DATA": str(stack.settings.data)},
    )
    assert done.exit_code == 0, done.output
    assert stack.redis.xinfo_groups(keys.inbox(0, "late"))[0]["name"] == b"late"
    stack.parts.keyring.store.create("late")
    stack.redis.xadd(keys.outbox(0, "late"), {"envelope": task("reviewer", stack, sender="late")})

    def begun() -> bool:
        router.run_once()
        return bool(stack.parts.ledger.roots(0))

    until(begun)


def test_the_doctor_finds_what_was_taken_from_an_outbox_and_not_routed(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what no router has read."""
    stack.router()
    monkeypatch.setattr("orchestrator.doctor.health.LATE_MS", -1)
    stack.router().run_once()
    stack.redis.xadd(OUT, {"envelope": "a"})
    stack.redis.xreadgroup("router", "thief", {OUT: ">"})
    stack.redis.xadd(OUT, {"envelope": "b"})
    time.sleep(0.002)
    found = {f.rule for f in Doctor(stack.parts, audit=None).examine().findings if OUT[-7:] in f.subject}
    assert found == {"entries-held", "entries-unread"}


def test_an_overwritten_inbox_holds_up_its_own_messages_only(stack: Stack) -> None:
    stack.redis.set(IN, "x")
    stack.submit("a", agent="partner")
    stack.submit("b")
    for _ in range(3):
        stack.router("one", reclaim_idle_ms=0).run_once()
    (waits,) = [b for b in stack.streams.backlog(ROUTER_GROUP, all_streams()) if b.pending]
    assert waits.pending == 1
    assert "lead" in [run.agent for run, _ in stack.sent.runs]
    stack.redis.delete(IN)
    stack.router("two", reclaim_idle_ms=0).run_once()
    assert len(inbox(stack)) == 1
    assert stack.dead() == []


def test_an_inbox_that_takes_nothing_ends_no_router_and_loses_nothing(stack: Stack) -> None:
    """The message is refused by name, for the operator to replay; others are routed."""
    last = 2**64 - 1  # Redis 6.2 cannot keep a program from it
    stack.redis.xadd(IN, {"envelope": "x"}, id=f"{last}-{last}")
    stack.submit("a", agent="partner")
    stack.submit("b")
    stack.router().run_once()
    assert stack.parts.ledger.roots(0)
    (parked,) = stack.delayed.all()
    assert parked.rule == "internal-error"
    assert f"rename {IN}" in parked.reason
    stack.redis.delete(IN)
    stack.wake()
    stack.router().run_once()
    assert len(inbox(stack)) == 1
    assert stack.dead() == []

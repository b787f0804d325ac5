"""Messages of one round that have conversations, streams and ids in common are each judged for themselves."""

from __future__ import annotations

from orchestrator.agents.registry import AgentRecord
from orchestrator.envelope.bodies import Message, Review, ReviewRequest, StatusUpdate
from orchestrator.envelope.codec import decode
from orchestrator.envelope.signature import sign
from orchestrator.ids import new_message_id
from orchestrator.redisdb import keys, ledger_keys
from tests.integration.router.conftest import AGENTS, task
from tests.kit import Kit

HELLO = Message(content="hello")

UPDATE = StatusUpdate(task_id="t", status="in-progress", progress_percentage=5, current_activity="reading")


def publish(kit: Kit, *, correlation: str, first: str | None, message_id: str | None = None) -> str:
    """An update of `lead` in a conversation; its id."""
    message_id = message_id or new_message_id()
    chain = () if first is None else (first,)
    kit.post(UPDATE, correlation=correlation, chain=chain, message_id=message_id)
    return message_id


def counted(kit: Kit, correlation: str) -> int:
    """How many messages the conversation's book has counted."""
    return int(kit.redis.hget(keys.conversation(0, correlation), "count") or 0)


def test_a_round_counts_each_message_of_each_conversation_once(kit: Kit) -> None:
    """Those that were there before, and those of the round, the copy of one not."""
    old, new, first = new_message_id(), new_message_id(), new_message_id()
    publish(kit, correlation=old, first=first)
    assert kit.route().done == 1
    for _ in range(2):
        publish(kit, correlation=old, first=first)
    ids = [publish(kit, correlation=new, first=first) for _ in range(3)]
    publish(kit, correlation=new, first=first, message_id=ids[1])
    handled = kit.route("two")
    assert (handled.done, handled.duplicates) == (5, 1)
    assert (counted(kit, old), counted(kit, new)) == (3, 3)
    assert kit.pending() == 0
    assert kit.redis.pttl(keys.conversation(0, new)) > 0


def test_the_first_of_a_round_says_how_its_conversation_began(kit: Kit) -> None:
    """A later one with another beginning is refused, whatever else the round holds."""
    conversation, first = new_message_id(), new_message_id()
    publish(kit, correlation=conversation, first=first)
    wrong = publish(kit, correlation=conversation, first=new_message_id())
    publish(kit, correlation=conversation, first=first)
    handled = kit.route()
    assert (handled.done, handled.dead) == (2, 1)
    assert [(letter.message_id, letter.rule) for letter in kit.dead()] == [(wrong, "conversation-chain")]
    assert counted(kit, conversation) == 2


def test_a_round_ends_a_conversation_at_its_limit(kit: Kit) -> None:
    """What is over the limit is refused; a copy of what was accepted is still only a copy."""
    kit = kit.beside(conversation_max_messages=2)
    conversation, first = new_message_id(), new_message_id()
    ids = [publish(kit, correlation=conversation, first=first) for _ in range(3)]
    publish(kit, correlation=conversation, first=first, message_id=ids[0])
    handled = kit.route("three")
    assert (handled.done, handled.duplicates, handled.dead) == (2, 1, 1)
    assert [(letter.message_id, letter.rule) for letter in kit.dead()] == [(ids[2], "conversation-limit")]


def test_an_entry_that_is_delivered_again_is_not_its_own_duplicate(kit: Kit) -> None:
    """The router died between its step and the answer: the entry is done, and counted once."""
    conversation, first = new_message_id(), new_message_id()
    message_id = publish(kit, correlation=conversation, first=first)
    assert kit.route().done == 1
    entry = kit.redis.get(keys.seen(0, "lead", message_id))
    stream = keys.messages(0, "status-update", "normal")
    kit.redis.xgroup_setid(stream, "router", "0")
    handled = kit.route("two")
    assert (handled.done, handled.duplicates) == (1, 0)
    assert kit.redis.get(keys.seen(0, "lead", message_id)) == entry
    assert (counted(kit, conversation), kit.pending()) == (1, 0)


def test_the_id_of_another_sender_makes_nothing_a_duplicate(kit: Kit) -> None:
    """Whoever reads a delegation may use its message-id first; what the ledger launched is begun all the same."""
    session = kit.send()
    launch = decode(kit.published("task-delegation")[0]).header
    kit.post(HELLO, sender="code-reviewer", recipient="tech-lead", message_id=launch.message_id)
    assert kit.route(types=["message"]).done == 1
    kit.post(task(), sender="partner", recipient="reviewer", message_id=launch.message_id)
    handled = kit.route("two")
    assert (handled.done, handled.duplicates, kit.dead()) == (2, 0, [])
    assert {dispatch.session for dispatch, _ in kit.sent.runs} > {session}
    assert len(kit.sent.runs) == 2


def test_two_programs_may_give_their_work_the_same_message_id(kit: Kit) -> None:
    """Each begins a session of its own, in whatever order they come."""
    kit.parts.agents.announce([*AGENTS, AgentRecord(name="other", role="coordinator", executor="foreign")])
    message_id = new_message_id()
    for sender in ("partner", "other"):
        kit.post(task(f"T-{sender}"), sender=sender, recipient="reviewer", message_id=message_id)
    handled = kit.route()
    assert (handled.done, handled.duplicates, kit.dead()) == (2, 0, [])
    assert len({dispatch.session for dispatch, _ in kit.sent.runs}) == 2


def test_a_sender_that_uses_an_id_twice_is_told_so(kit: Kit) -> None:
    """Another content under the same id is no copy: it is refused with a reason, not silently taken for one."""
    message_id = new_message_id()
    first = kit.envelope(HELLO, message_id=message_id)
    second = kit.envelope(Message(content="something else"), message_id=message_id)
    for data in (first, first, second):
        kit.publish(data, "message")
    handled = kit.route()
    assert (handled.done, handled.duplicates, handled.dead) == (1, 1, 1)
    (dead,) = kit.dead()
    assert (dead.rule, dead.data) == ("message-id", second)
    assert message_id in dead.reason


def test_a_copy_is_a_duplicate_however_it_is_spelt_or_signed_anew(kit: Kit) -> None:
    """Comments and white space in tags do not make it another message, nor does a second signature of its sender."""
    first = kit.envelope(HELLO)
    again = sign(first, kit.parts.keyring.signer("lead"), now_ms=kit.now_ms + 5_000)
    respelt = first.replace(b"<body ", b"<!-- x --><body  ").replace(b"</content>", b"</content >")
    assert len({first, again, respelt}) == 3
    for data in (respelt, first, again):
        kit.publish(data, "message")
    handled = kit.route()
    assert (handled.done, handled.duplicates, kit.dead()) == (1, 2, [])


def test_a_refused_review_sets_no_time_limit_for_the_session_that_it_names(kit: Kit) -> None:
    """Nothing is written before the checks: a stranger's message about a session leaves no timer and no book."""
    session = kit.send()
    kit.route()
    review = ReviewRequest(review=Review(task_id=session, title="t", description="d"))
    data = kit.post(review, sender="reviewer", recipient="code-reviewer")
    assert kit.route("two").dead == 1
    assert not [
        timer for timer in kit.redis.zrange(ledger_keys.timers(0), 0, -1) if timer.startswith(b"review|")
    ]
    conversation = decode(data).conversation_id
    assert not kit.redis.exists(keys.conversation(0, conversation))

"""Messages of one round that have conversations, streams and ids in common are each judged for themselves."""

from __future__ import annotations

from orchestrator.agents.registry import AgentRecord
from orchestrator.config.settings import load_settings
from orchestrator.envelope.bodies import Message, Review, ReviewRequest, StatusUpdate, Task, TaskDelegation
from orchestrator.envelope.codec import decode
from orchestrator.envelope.signature import sign
from orchestrator.ids import new_message_id
from orchestrator.redisdb import keys, ledger_keys
from tests.integration.router.conftest import AGENTS, Stack

HELLO = Message(content="hello")

UPDATE = StatusUpdate(task_id="t", status="in-progress", progress_percentage=5, current_activity="reading")


def publish(stack: Stack, *, correlation: str, first: str | None, message_id: str | None = None) -> str:
    """An update of `lead` in a conversation; its id."""
    message_id = message_id or new_message_id()
    chain = () if first is None else (first,)
    data = stack.envelope(UPDATE, correlation=correlation, chain=chain, message_id=message_id)
    stack.publish(data, "status-update")
    return message_id


def counted(stack: Stack, correlation: str) -> int:
    """How many messages the conversation's book has counted."""
    return int(stack.redis.hget(keys.conversation(0, correlation), "count") or 0)


def test_a_round_counts_each_message_of_each_conversation_once(stack: Stack) -> None:
    """Those that were there before, and those of the round, the copy of one not."""
    old, new, first = new_message_id(), new_message_id(), new_message_id()
    publish(stack, correlation=old, first=first)
    assert stack.router().run_once().done == 1
    for _ in range(2):
        publish(stack, correlation=old, first=first)
    ids = [publish(stack, correlation=new, first=first) for _ in range(3)]
    publish(stack, correlation=new, first=first, message_id=ids[1])
    handled = stack.router("two").run_once()
    assert (handled.done, handled.duplicates) == (5, 1)
    assert (counted(stack, old), counted(stack, new)) == (3, 3)
    assert stack.pending() == 0
    assert stack.redis.pttl(keys.conversation(0, new)) > 0


def test_the_first_of_a_round_says_how_its_conversation_began(stack: Stack) -> None:
    """A later one with another beginning is refused, whatever else the round holds."""
    conversation, first = new_message_id(), new_message_id()
    publish(stack, correlation=conversation, first=first)
    wrong = publish(stack, correlation=conversation, first=new_message_id())
    publish(stack, correlation=conversation, first=first)
    handled = stack.router().run_once()
    assert (handled.done, handled.dead) == (2, 1)
    assert [(letter.message_id, letter.rule) for letter in stack.dead()] == [(wrong, "conversation-chain")]
    assert counted(stack, conversation) == 2


def test_a_round_ends_a_conversation_at_its_limit(stack: Stack) -> None:
    """What is over the limit is refused; a copy of what was accepted is still only a copy."""
    stack.settings = load_settings(
        redis_url=stack.settings.redis_url, data=stack.settings.data, conversation_max_messages=2
    )
    conversation, first = new_message_id(), new_message_id()
    ids = [publish(stack, correlation=conversation, first=first) for _ in range(3)]
    publish(stack, correlation=conversation, first=first, message_id=ids[0])
    handled = stack.router("three").run_once()
    assert (handled.done, handled.duplicates, handled.dead) == (2, 1, 1)
    assert [(letter.message_id, letter.rule) for letter in stack.dead()] == [(ids[2], "conversation-limit")]


def test_an_entry_that_is_delivered_again_is_not_its_own_duplicate(stack: Stack) -> None:
    """The router died between its step and the answer: the entry is done, and counted once."""
    conversation, first = new_message_id(), new_message_id()
    message_id = publish(stack, correlation=conversation, first=first)
    assert stack.router().run_once().done == 1
    entry = stack.redis.get(keys.seen(0, "lead", message_id))
    stream = keys.messages(0, "status-update", "normal")
    stack.redis.xgroup_setid(stream, "router", "0")
    handled = stack.router("two").run_once()
    assert (handled.done, handled.duplicates) == (1, 0)
    assert stack.redis.get(keys.seen(0, "lead", message_id)) == entry
    assert (counted(stack, conversation), stack.pending()) == (1, 0)


def test_the_id_of_another_sender_makes_nothing_a_duplicate(stack: Stack) -> None:
    """Whoever reads a delegation may use its message-id first; what the ledger launched is begun all the same."""
    session = stack.submit()
    launch = decode(stack.published("task-delegation")[0]).header
    squatter = stack.envelope(
        HELLO, sender="code-reviewer", recipient="tech-lead", message_id=launch.message_id
    )
    stack.publish(squatter, "message", "normal")
    task = TaskDelegation(task=Task(task_id="T-1", title="t", description="d"))
    external = stack.envelope(task, sender="partner", recipient="reviewer", message_id=launch.message_id)
    router = stack.router(types=["message"])
    assert router.run_once().done == 1
    stack.publish(external, "task-delegation")
    handled = stack.router("two").run_once()
    assert (handled.done, handled.duplicates, stack.dead()) == (2, 0, [])
    assert {dispatch.session for dispatch, _ in stack.sent.runs} > {session}
    assert len(stack.sent.runs) == 2


def test_two_programs_may_give_their_work_the_same_message_id(stack: Stack) -> None:
    """Each begins a session of its own, in whatever order they come."""
    stack.parts.agents.announce([*AGENTS, AgentRecord(name="other", role="coordinator", executor="foreign")])
    message_id = new_message_id()
    for sender in ("partner", "other"):
        task = TaskDelegation(task=Task(task_id=f"T-{sender}", title="t", description="d"))
        data = stack.envelope(task, sender=sender, recipient="reviewer", message_id=message_id)
        stack.publish(data, "task-delegation")
    handled = stack.router().run_once()
    assert (handled.done, handled.duplicates, stack.dead()) == (2, 0, [])
    assert len({dispatch.session for dispatch, _ in stack.sent.runs}) == 2


def test_a_sender_that_uses_an_id_twice_is_told_so(stack: Stack) -> None:
    """Another content under the same id is no copy: it is refused with a reason, not silently taken for one."""
    message_id = new_message_id()
    first = stack.envelope(HELLO, message_id=message_id)
    second = stack.envelope(Message(content="something else"), message_id=message_id)
    for data in (first, first, second):
        stack.publish(data, "message")
    handled = stack.router().run_once()
    assert (handled.done, handled.duplicates, handled.dead) == (1, 1, 1)
    (dead,) = stack.dead()
    assert (dead.rule, dead.data) == ("message-id", second)
    assert message_id in dead.reason


def test_a_copy_is_a_duplicate_however_it_is_spelt_or_signed_anew(stack: Stack) -> None:
    """Comments and white space in tags do not make it another message, nor does a second signature of its sender."""
    first = stack.envelope(HELLO)
    now_ms = int(stack.redis.time()[0]) * 1000
    again = sign(first, stack.parts.keyring.signer("lead"), now_ms=now_ms + 5_000)
    respelt = first.replace(b"<body ", b"<!-- x --><body  ").replace(b"</content>", b"</content >")
    assert len({first, again, respelt}) == 3
    for data in (respelt, first, again):
        stack.publish(data, "message")
    handled = stack.router().run_once()
    assert (handled.done, handled.duplicates, stack.dead()) == (1, 2, [])


def test_a_refused_review_sets_no_time_limit_for_the_session_that_it_names(stack: Stack) -> None:
    """Nothing is written before the checks: a stranger's message about a session leaves no timer and no book."""
    session = stack.submit()
    stack.router().run_once()
    review = ReviewRequest(review=Review(task_id=session, title="t", description="d"))
    data = stack.envelope(review, sender="reviewer", recipient="code-reviewer")
    stack.publish(data, "review-request")
    assert stack.router("two").run_once().dead == 1
    assert not [
        timer for timer in stack.redis.zrange(ledger_keys.timers(0), 0, -1) if timer.startswith(b"review|")
    ]
    conversation = decode(data).conversation_id
    assert not stack.redis.exists(keys.conversation(0, conversation))

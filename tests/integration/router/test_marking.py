"""Messages of one round that have conversations, streams and ids in common are each judged for themselves."""

from __future__ import annotations

from orchestrator.envelope.model import StatusUpdate
from orchestrator.ids import new_message_id
from orchestrator.redisdb import keys
from orchestrator.settings import load_settings
from tests.integration.router.conftest import Stack

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
    entry = stack.redis.get(keys.seen(0, message_id))
    stream = keys.messages(0, "status-update", "normal")
    stack.redis.xgroup_setid(stream, "router", "0")
    handled = stack.router("two").run_once()
    assert (handled.done, handled.duplicates) == (1, 0)
    assert stack.redis.get(keys.seen(0, message_id)) == entry
    assert (counted(stack, conversation), stack.pending()) == (1, 0)

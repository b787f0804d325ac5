"""The chain of a conversation: each message hangs on what it follows, as in the protocol's worked conversation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from orchestrator import Completion, Context, Retry, agent
from orchestrator.envelope.bodies import StatusUpdate, TaskCompletion, TaskDelegation
from orchestrator.envelope.model import AgentMessage
from orchestrator.testing import InProcessStack
from tests.integration.structured.conftest import Published


@agent("claude", role="orchestrator")
def claude(ctx: Context) -> str:
    """The main agent of the worked conversation: a blueprint first, then the work."""
    if ctx.cause == "start":
        ctx.delegate("architect", "draw a blueprint")
        return ""
    ended = [callback.agent for callback in ctx.all_results]
    if ended == ["architect"]:
        ctx.delegate("builder", f"build it: {ctx.callbacks[0].result}")
        return ""
    return ctx.all_results[-1].result


@agent("architect", role="coordinator")
def architect(ctx: Context) -> str:
    """The tech lead of the worked conversation."""
    return "a blueprint"


@agent("builder", attempts=2, backoff_s=0.01)
def builder(ctx: Context) -> Completion:
    """Says how far it is, fails once, and completes."""
    ctx.status(50, "building")
    if ctx.attempt == 1:
        raise Retry("once more", after_s=0)
    return Completion(summary="built", result="built")


@agent("asker")
def asker(ctx: Context) -> str:
    """Asks its parent, and says how far it is before and after."""
    ctx.status(10, "before")
    answer = ctx.ask("Which?")
    ctx.status(90, "after")
    return answer


@agent("helper", role="coordinator")
def helper(ctx: Context) -> str:
    """Answers its child, and gives further work on its end."""
    if ctx.cause == "start":
        ctx.delegate("asker", "ask")
        return ""
    for callback in ctx.callbacks:
        if callback.can_reply:
            ctx.reply(callback, "that")
    return ctx.all_results[0].result if ctx.all_results else ""


@pytest.fixture(scope="module")
def stack() -> Iterator[InProcessStack]:
    with InProcessStack([claude, architect, builder, asker, helper]) as running:
        yield running


def _told(messages: list[AgentMessage]) -> list[tuple[str, str, str, str]]:
    """Of each message its type, sender, recipient and the number of the message that it hangs on."""
    numbers = {message.header.message_id: f"MSG-{n}" for n, message in enumerate(messages)}
    return [
        (
            message.body.type,
            message.header.sender.agent_name,
            message.header.recipient.agent_name,
            numbers[message.header.conversation_chain[0]] if message.header.conversation_chain else "",
        )
        for message in messages
    ]


def test_the_worked_conversation_of_the_protocol(stack: InProcessStack, published: Published) -> None:
    session = stack.run("claude", "a user's request").session
    messages = published(stack, session)
    assert _told(messages) == [
        ("task-delegation", "operator", "claude", ""),
        ("task-delegation", "claude", "architect", "MSG-0"),
        ("task-completion", "architect", "claude", "MSG-1"),
        ("task-delegation", "claude", "builder", "MSG-2"),
        ("status-update", "builder", "claude", "MSG-3"),
        ("task-completion", "builder", "claude", "MSG-4"),
        ("task-completion", "claude", "operator", "MSG-5"),
    ]
    assert len({message.header.correlation_id for message in messages}) == 1
    root = messages[0].header.message_id
    assert all(message.header.conversation_chain[-1] == root for message in messages[1:])
    for delegation, *reports in ((messages[1], messages[2]), (messages[3], messages[4], messages[5])):
        assert isinstance(delegation.body, TaskDelegation)
        for report in reports:
            assert isinstance(report.body, StatusUpdate | TaskCompletion)
            assert report.body.task_id == delegation.body.task.task_id


def test_a_reply_hangs_on_its_query_and_what_follows_on_the_reply(
    stack: InProcessStack, published: Published
) -> None:
    messages = published(stack, stack.run("helper", "go").session)
    assert _told(messages) == [
        ("task-delegation", "operator", "helper", ""),
        ("task-delegation", "helper", "asker", "MSG-0"),
        ("status-update", "asker", "helper", "MSG-1"),
        ("query", "asker", "helper", "MSG-2"),
        ("reply", "helper", "asker", "MSG-3"),
        ("status-update", "asker", "helper", "MSG-4"),
        ("task-completion", "asker", "helper", "MSG-5"),
        ("task-completion", "helper", "operator", "MSG-6"),
    ]

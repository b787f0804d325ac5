"""Messages of the trail are said once more: planned, once each, at a bounded speed, by the operator."""

from __future__ import annotations

import json
import time

import pytest

from orchestrator.audit import AuditReader
from orchestrator.envelope.bodies import Message
from orchestrator.envelope.codec import decode
from orchestrator.ids import new_message_id
from orchestrator.router.deadletters.again import TrailReplay
from tests.documents import hold_to_models
from tests.integration.router.conftest import Stack
from tests.integration.router.test_replay_verifies import route, sessions, unsigned
from tests.integration.router.test_trail import verify, write
from tests.integration.router.test_trail_amended import store_of
from tests.integration.router.test_trail_bodies import forget_payloads, large, say

pytestmark = pytest.mark.usefixtures("database")


def replayed(stack: Stack, *arguments: str) -> list[dict[str, object]]:
    """What `audit replay --json` says of several messages."""
    result = stack.run("audit", "replay", "--json", *arguments)
    hold_to_models(["audit", "replay", "--json"], result.stdout)
    rows: list[dict[str, object]] = json.loads(result.stdout)["replayed"]
    return rows


def test_a_filter_is_planned_and_then_carried_out_once(stack: Stack) -> None:
    """The plan publishes nothing and names the ids that come; each new message names the old and is the operator's."""
    old = [say(stack, f"number {number}") for number in range(3)]
    stack.publish(unsigned(stack, Message(content="forged"), sender="lead"), "message")
    route(stack)
    write(stack)
    before = stack.published("message")
    plan = replayed(stack, "--sender", "lead", "--dry-run")
    assert stack.published("message") == before
    assert [row["replays"] for row in plan][:3] == old
    assert [row["how"] for row in plan] == ["message"] * 3 + ["refused"]
    assert plan[3]["rule"] == "signature-missing"
    assert not any(row["done"] for row in plan)

    done = replayed(stack, "--sender", "lead")
    assert [row["message_id"] for row in done] == [row["message_id"] for row in plan]
    new = [decode(xml) for xml in stack.published("message")[len(before) :]]
    assert [message.header.conversation_chain[0] for message in new] == old
    assert {message.header.sender.agent_name for message in new} == {"operator"}
    assert {message.signature.signer for message in new if message.signature} == {"operator"}
    route(stack, "after")
    write(stack)
    assert [letter.rule for letter in stack.dead()] == ["signature-missing"]

    again = replayed(stack, "--sender", "lead")
    assert [row["how"] for row in again] == ["skipped"] * 3 + ["refused"]
    assert "replayed before" in str(again[0]["reason"])
    more = replayed(stack, "--sender", "lead", "--label", "2")
    assert [row["how"] for row in more] == ["message"] * 3 + ["refused"]
    assert {row["message_id"] for row in more[:3]}.isdisjoint({row["message_id"] for row in done[:3]})
    write(stack)
    assert verify(stack).exit_code in (0, 1)


def test_a_replay_that_was_killed_goes_on_where_it_stopped(stack: Stack) -> None:
    """Nothing is published twice, also where the trail has not got it yet; what was not is."""
    for number in range(3):
        say(stack, f"number {number}")
    route(stack)
    write(stack)
    reader = AuditReader(store_of(stack))
    records = reader.search(sender="lead")[::-1]
    first = iter(TrailReplay(stack.parts, reader).run(records))
    made = [next(first).id, next(first).id]
    # Killed before the writer has seen any of it: all is tried again.
    again = [result.id for result in TrailReplay(stack.parts, reader).run(records)]
    assert again[:2] == made
    route(stack, "after")
    write(stack)
    published = [decode(xml).header.message_id for xml in stack.published("message")]
    assert [published.count(message_id) for message_id in again] == [1, 1, 1]
    assert stack.dead() == []
    assert [result.how for result in TrailReplay(stack.parts, reader).run(records)] == ["skipped"] * 3


def test_a_conversation_is_replayed_by_its_task(stack: Stack) -> None:
    """The task begins a fresh tree; what followed upon it is not said again; the trail has a note of who asked."""
    session = stack.submit(agent="reviewer")
    launch = stack.parts.ledger.session(session).message
    follow = new_message_id()
    stack.publish(
        stack.envelope(
            Message(content="about it"),
            sender="lead",
            recipient="reviewer",
            message_id=follow,
            correlation=stack.parts.ledger.session(session).correlation,
            chain=(launch,),
        ),
        "message",
    )
    route(stack)
    write(stack)
    rows = replayed(stack, session)
    assert [(row["replays"], row["how"]) for row in rows] == [(launch, "task"), (follow, "skipped")]
    new = str(rows[0]["session"])
    assert set(sessions(stack)) == {session, new}
    assert stack.parts.ledger.session(new).parent == ""
    route(stack, "after")
    write(stack)
    assert [row["how"] for row in replayed(stack, session)] == ["skipped", "skipped"]
    notes = [m.body.content for m in map(decode, stack.published("message")) if isinstance(m.body, Message)]
    assert any(launch in note and new in note and "@" in note for note in notes)


def test_a_body_that_redis_has_forgotten_is_replayed_from_the_trail(stack: Stack) -> None:
    """The reader of the new message finds it as the first one did."""
    text = large("needle")
    old = say(stack, text)
    write(stack)
    forget_payloads(stack)
    plan = json.loads(stack.run("audit", "replay", old, "--dry-run", "--json").stdout)
    assert (plan["how"], plan["done"]) == ("message", False)
    done = json.loads(stack.run("audit", "replay", old, "--json").stdout)
    new = next(
        message
        for message in map(decode, stack.published("message"))
        if message.header.message_id == done["message_id"]
    )
    opened = stack.parts.opener.open(new).body
    assert isinstance(opened, Message)
    assert opened.content == text


def test_the_speed_is_bounded(stack: Stack) -> None:
    """So many messages a second, and no more."""
    for number in range(6):
        say(stack, f"number {number}")
    write(stack)
    begun = time.monotonic()
    assert len(replayed(stack, "--sender", "lead", "--rate", "10")) == 6
    assert time.monotonic() - begun >= 0.5


def test_what_is_asked_for_is_clear(stack: Stack) -> None:
    """An id or conditions; one message to sign for; not more than the limit of a conversation."""
    say(stack, "x")
    write(stack)
    for wrong in (
        [],
        ["ses_x", "--sender", "lead"],
        ["--sender", "lead", "--sign-unverified", "--since", "1h"],
    ):
        result = stack.run("audit", "replay", *wrong)
        assert result.exit_code == 2, (wrong, result.output)
    text = stack.run("audit", "replay", "--sender", "lead", "--dry-run")
    assert "would be replayed as a new message: " in text.stdout
    assert text.stderr.endswith("1 message would be replayed, 0 skipped, 0 refused\n")

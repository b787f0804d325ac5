"""Messages of the trail are said once more: planned, once each, at a bounded speed, by the operator."""

from __future__ import annotations

import time

import pytest

from orchestrator.audit import AuditReader
from orchestrator.envelope.bodies import Message
from orchestrator.envelope.codec import decode
from orchestrator.ids import new_message_id
from orchestrator.router.deadletters.again import TrailReplay
from tests.integration.router.conftest import forge, route_all, sessions
from tests.integration.router.trail import forget_payloads, large, say, store_of, verify, write
from tests.kit import Kit

pytestmark = pytest.mark.usefixtures("database")


def replayed(kit: Kit, *arguments: str) -> list[dict[str, object]]:
    """What `audit replay --json` says of several messages."""
    rows: list[dict[str, object]] = kit.document("audit", "replay", *arguments)["replayed"]
    return rows


def test_a_filter_is_planned_and_then_carried_out_once(kit: Kit) -> None:
    """The plan publishes nothing and names the ids that come; each new message names the old and is the operator's."""
    old = [say(kit, f"number {number}") for number in range(3)]
    forge(kit, Message(content="forged"), sender="lead")
    route_all(kit)
    write(kit)
    before = kit.published("message")
    plan = replayed(kit, "--sender", "lead", "--dry-run")
    assert kit.published("message") == before
    assert [row["replays"] for row in plan][:3] == old
    assert [row["how"] for row in plan] == ["message"] * 3 + ["refused"]
    assert plan[3]["rule"] == "signature-missing"
    assert not any(row["done"] for row in plan)

    done = replayed(kit, "--sender", "lead")
    assert [row["message_id"] for row in done] == [row["message_id"] for row in plan]
    new = [decode(xml) for xml in kit.published("message")[len(before) :]]
    assert [message.header.conversation_chain[0] for message in new] == old
    assert {message.header.sender.agent_name for message in new} == {"operator"}
    assert {message.signature.signer for message in new if message.signature} == {"operator"}
    route_all(kit, "after")
    write(kit)
    assert [letter.rule for letter in kit.dead()] == ["signature-missing"]

    again = replayed(kit, "--sender", "lead")
    assert [row["how"] for row in again] == ["skipped"] * 3 + ["refused"]
    assert "replayed before" in str(again[0]["reason"])
    more = replayed(kit, "--sender", "lead", "--label", "2")
    assert [row["how"] for row in more] == ["message"] * 3 + ["refused"]
    assert {row["message_id"] for row in more[:3]}.isdisjoint({row["message_id"] for row in done[:3]})
    write(kit)
    assert verify(kit).exit_code in (0, 1)


def test_a_replay_that_was_killed_goes_on_where_it_stopped(kit: Kit) -> None:
    """Nothing is published twice, also where the trail has not got it yet; what was not is."""
    for number in range(3):
        say(kit, f"number {number}")
    route_all(kit)
    write(kit)
    reader = AuditReader(store_of(kit))
    records = reader.search(sender="lead")[::-1]
    first = iter(TrailReplay(kit.parts, reader).run(records))
    made = [next(first).id, next(first).id]
    # Killed before the writer has seen any of it: all is tried again.
    again = [result.id for result in TrailReplay(kit.parts, reader).run(records)]
    assert again[:2] == made
    route_all(kit, "after")
    write(kit)
    published = [decode(xml).header.message_id for xml in kit.published("message")]
    assert [published.count(message_id) for message_id in again] == [1, 1, 1]
    assert kit.dead() == []
    assert [result.how for result in TrailReplay(kit.parts, reader).run(records)] == ["skipped"] * 3


def test_a_conversation_is_replayed_by_its_task(kit: Kit) -> None:
    """The task begins a fresh tree; what followed upon it is not said again; the trail has a note of who asked."""
    session = kit.send(agent="reviewer")
    launch = kit.ledger.session(session).message
    follow = new_message_id()
    kit.post(
        Message(content="about it"),
        sender="lead",
        recipient="reviewer",
        message_id=follow,
        correlation=kit.ledger.session(session).correlation,
        chain=(launch,),
    )
    route_all(kit)
    write(kit)
    rows = replayed(kit, session)
    assert [(row["replays"], row["how"]) for row in rows] == [(launch, "task"), (follow, "skipped")]
    new = str(rows[0]["session"])
    assert set(sessions(kit)) == {session, new}
    assert kit.ledger.session(new).parent == ""
    route_all(kit, "after")
    write(kit)
    assert [row["how"] for row in replayed(kit, session)] == ["skipped", "skipped"]
    notes = [m.body.content for m in map(decode, kit.published("message")) if isinstance(m.body, Message)]
    assert any(launch in note and new in note and "@" in note for note in notes)


def test_a_body_that_redis_has_forgotten_is_replayed_from_the_trail(kit: Kit) -> None:
    """The reader of the new message finds it as the first one did."""
    text = large("needle")
    old = say(kit, text)
    write(kit)
    forget_payloads(kit)
    plan = kit.document("audit", "replay", old, "--dry-run")
    assert (plan["how"], plan["done"]) == ("message", False)
    done = kit.document("audit", "replay", old)
    new = next(
        message
        for message in map(decode, kit.published("message"))
        if message.header.message_id == done["message_id"]
    )
    opened = kit.parts.opener.open(new).body
    assert isinstance(opened, Message)
    assert opened.content == text


def test_the_speed_is_bounded(kit: Kit) -> None:
    """So many messages a second, and no more."""
    for number in range(6):
        say(kit, f"number {number}")
    write(kit)
    begun = time.monotonic()
    assert len(replayed(kit, "--sender", "lead", "--rate", "10")) == 6
    assert time.monotonic() - begun >= 0.5


def test_what_is_asked_for_is_clear(kit: Kit) -> None:
    """An id or conditions; one message to sign for; not more than the limit of a conversation."""
    say(kit, "x")
    write(kit)
    for wrong in (
        [],
        ["ses_x", "--sender", "lead"],
        ["--sender", "lead", "--sign-unverified", "--since", "1h"],
    ):
        result = kit.orchestra("audit", "replay", *wrong)
        assert result.exit_code == 2, (wrong, result.output)
    text = kit.orchestra("audit", "replay", "--sender", "lead", "--dry-run")
    assert "would be replayed as a new message: " in text.stdout
    assert text.stderr.endswith("1 message would be replayed, 0 skipped, 0 refused\n")

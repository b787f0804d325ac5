"""Dead letters have limits and a lifetime: a flood of junk takes its own share and nobody else's."""

from __future__ import annotations

import time

import pytest

from orchestrator.deployment.local_stack import build_reaper
from orchestrator.envelope.bodies import Message
from orchestrator.redisdb import keys
from orchestrator.streams import DeadLimits
from tests.integration.router.conftest import LATER, flood, route_all, unsigned
from tests.integration.router.trail import write, writer
from tests.kit import Kit
from tests.waiting import until


def refused(kit: Kit, sender: str, number: int = 1, content: str = "x") -> None:
    """Signed messages that die, as nobody takes them."""
    for _ in range(number):
        kit.post(Message(content=content), sender=sender, recipient="lead", role="orchestrator")


def test_a_flood_of_junk_stays_within_its_share_and_holds_back_nobody(kit: Kit) -> None:
    """Unsigned entries push out only their own kind; what is signed is kept, and delivered, and replayable."""
    kit = kit.beside(dead_letters_max_entries=400)
    refused(kit, "lead", 3)
    flood(kit, unsigned(kit, Message(content="junk"), sender="operator"), 1_000)
    flood(kit, b"no xml at all", 1_000)
    kit.publish(kit.envelope(Message(content="honest"), recipient="reviewer"), "message", "high")
    began = time.monotonic()
    assert kit.route("first").done == 1
    assert time.monotonic() - began < 5
    route_all(kit)
    refused(kit, "lead", 2)
    route_all(kit)
    senders = [letter.sender for letter in kit.dead() if letter.rule == "sender-role"]
    assert (senders, len(kit.dead())) == (["lead"] * 5, 100 + 5)
    usage = kit.redis.hgetall(keys.dead_usage(0))
    assert int(usage[b"dropped"]) == 2_000 - 100
    found = kit.document("doctor", "--quick")["findings"]
    (warning,) = [f for f in found if f["rule"] == "dead-letters-dropped"]
    assert (warning["severity"], "1900 dead letters" in warning["message"]) == ("warning", True)


def test_what_was_dropped_before_it_was_audited_does_not_break_the_trail(kit: Kit) -> None:
    """Its message is in the trail, and the server knows how many dead letters the writer never saw."""
    kit = kit.beside(dead_letters_max_entries=8)
    writer(kit)
    flood(kit, unsigned(kit, Message(content="junk")), 50)
    route_all(kit)
    write(kit)
    assert int(kit.redis.hget(keys.dead_usage(0), "unaudited") or 0) == 48
    result = kit.orchestra("audit", "verify")
    assert result.exit_code == 0, result.output


def test_a_sender_that_signs_has_a_share_as_well(kit: Kit) -> None:
    """In entries and in bytes; the dead letters of others stay, the oldest of its own go."""
    kit = kit.beside(dead_letters_max_entries=40, dead_letters_max_bytes=200_000)
    refused(kit, "lead", 4)
    route_all(kit)
    refused(kit, "reviewer", 30)
    route_all(kit)
    dead = [letter.sender for letter in kit.dead()]
    assert (dead.count("lead"), dead.count("reviewer")) == (4, 10)
    refused(kit, "partner", 8, content="y" * 20_000)
    route_all(kit)
    dead = [letter.sender for letter in kit.dead()]
    assert (dead.count("lead"), dead.count("reviewer"), dead.count("partner")) == (4, 10, 2)


def test_a_message_becomes_a_dead_letter_although_somebody_removed_the_index(kit: Kit) -> None:
    """Bytes that were counted for what is not there any more take no room."""
    kit = kit.beside(dead_letters_max_bytes=100_000)
    kit.redis.hset(keys.dead_usage(0), mapping={"bytes": 10**9, "bytes:": 10**9})
    flood(kit, b"junk", 1)
    route_all(kit)
    assert len(kit.dead()) == 1
    assert kit.redis.hget(keys.dead_usage(0), "bytes") == b"4"
    kit.redis.hset(keys.dead_usage(0), "bytes:", 10**9)
    flood(kit, b"rubbish", 1)
    route_all(kit)
    assert kit.pending() == 0


def test_what_is_signed_is_kept_longer_than_what_is_not(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of it is too much, what nobody vouches for goes first, then the oldest."""
    monkeypatch.setattr(DeadLimits, "of", lambda _: DeadLimits(entries=12, share=0.5))
    kit = kit.beside()
    flood(kit, b"junk", 4)
    route_all(kit)
    for sender in ("lead", "partner"):
        refused(kit, sender, 6)
        route_all(kit)
    assert [letter.sender for letter in kit.dead()] == ["lead"] * 6 + ["partner"] * 6
    flood(kit, b"junk", 3)
    refused(kit, "reviewer", 1)
    route_all(kit)
    assert [letter.sender for letter in kit.dead()] == ["lead"] * 5 + ["partner"] * 6 + ["reviewer"]


@pytest.mark.parametrize("command", ["drop", "replay"])
def test_what_leaves_makes_room(kit: Kit, command: str) -> None:
    """The records are empty once the dead letters are."""
    kit = kit.beside(dead_letters_max_entries=100)
    for _ in range(3):
        kit.post(Message(content="x"), recipient="later")
    route_all(kit)
    assert len(kit.dead()) == 3
    usage = kit.redis.hgetall(keys.dead_usage(0))
    assert int(usage[b"bytes"]) == sum(len(letter.data) for letter in kit.dead())
    kit.parts.agents.announce([LATER])
    assert kit.orchestra("dlq", command, "--all").exit_code == 0
    assert (kit.dead(), kit.redis.zcard(keys.dead_index(0))) == ([], 0)
    assert kit.redis.hgetall(keys.dead_usage(0)) == {}


def test_a_dead_letter_has_a_lifetime(kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reaper drops what is older, and what is not stays."""
    old_ms = kit.now_ms - 31 * 86_400_000
    kit.redis.xadd(
        keys.dead(0),
        {"envelope": b"x", "stream": "00/message/normal", "rule": "r", "reason": "old"},
        id=f"{old_ms}-0",
    )
    refused(kit, "lead", 1)
    kit.route()
    build_reaper(kit.redis, kit.settings).run_once()
    assert [letter.sender for letter in kit.dead()] == ["lead"]
    monkeypatch.setattr(DeadLimits, "of", lambda _: DeadLimits(ttl_ms=50))
    until(lambda: bool(build_reaper(kit.redis, kit.settings).run_once()) and not kit.dead())
    assert kit.redis.zcard(keys.dead_index(0)) == 0


def test_a_damaged_dead_letter_hides_no_other(kit: Kit) -> None:
    """Whoever can write to Redis can append nonsense; the others are listed, audited and replayed."""
    kit.redis.xadd(keys.dead(0), {"stream": "nonsense", "attempts": "many", "reason": b"\xff"})
    refused(kit, "lead", 1)
    route_all(kit)
    listed = kit.document("dlq", "list")["dead_letters"]
    assert [letter["sender"] for letter in listed] == ["", "lead"]
    write(kit)
    assert kit.orchestra("dlq", "drop", listed[0]["dead_letter"]).exit_code == 0
    assert [letter.sender for letter in kit.dead()] == ["lead"]

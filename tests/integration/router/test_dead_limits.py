"""Dead letters have limits and a lifetime: a flood of junk takes its own share and nobody else's."""

from __future__ import annotations

import json
import time

import pytest

from orchestrator.agents.registry import AgentRecord
from orchestrator.audit import build_writer
from orchestrator.bootstrap import build_container
from orchestrator.config.settings import load_settings
from orchestrator.deployment.local_stack import build_reaper
from orchestrator.envelope.bodies import Message
from orchestrator.envelope.codec import decode, encode_unsigned
from orchestrator.redisdb import keys
from orchestrator.streams import DeadLimits
from tests.integration.router.conftest import Stack, until

LATER = AgentRecord(name="later", role="specialist")


def limited(stack: Stack, **limits: float) -> Stack:
    """The same stack under other limits."""
    settings = load_settings(
        redis_url=stack.settings.redis_url, data=stack.settings.data, registration_patience_s=0, **limits
    )
    return Stack(stack.redis, settings, build_container(stack.redis, settings))


def flood(stack: Stack, data: bytes, number: int) -> None:
    """Append the same octets many times, as a stranger would: past every limit of honest publishers."""
    pipeline = stack.redis.pipeline(transaction=False)
    for _ in range(number):
        pipeline.xadd(keys.messages(0, "message", "normal"), {"envelope": data})
    pipeline.execute()


def refused(stack: Stack, sender: str, number: int = 1, content: str = "x") -> None:
    """Signed messages that die, as nobody takes them."""
    for _ in range(number):
        data = stack.envelope(Message(content=content), sender=sender, recipient="lead", role="orchestrator")
        stack.publish(data, "message")


def route(stack: Stack, consumer: str = "r1") -> int:
    """Handle everything that is there; how many messages came through."""
    router, done = stack.router(consumer, jitter=lambda: 0.0), 0
    while True:
        handled = router.run_once()
        done += handled.done
        if not (handled.done or handled.dead or handled.parked):
            return done


def test_a_flood_of_junk_stays_within_its_share_and_holds_back_nobody(stack: Stack) -> None:
    """Unsigned entries push out only their own kind; what is signed is kept, and delivered, and replayable."""
    stack = limited(stack, dead_letters_max_entries=400)
    refused(stack, "lead", 3)
    junk = encode_unsigned(decode(stack.envelope(Message(content="junk"), sender="operator")))
    flood(stack, junk, 1_000)
    flood(stack, b"no xml at all", 1_000)
    stack.publish(stack.envelope(Message(content="honest"), recipient="reviewer"), "message", "high")
    began = time.monotonic()
    assert stack.router("first").run_once().done == 1
    assert time.monotonic() - began < 5
    route(stack)
    refused(stack, "lead", 2)
    route(stack)
    senders = [letter.sender for letter in stack.dead() if letter.rule == "sender-role"]
    assert (senders, len(stack.dead())) == (["lead"] * 5, 100 + 5)
    usage = stack.redis.hgetall(keys.dead_usage(0))
    assert int(usage[b"dropped"]) == 2_000 - 100
    found = json.loads(stack.run("doctor", "--quick", "--json").stdout)["findings"]
    (warning,) = [f for f in found if f["rule"] == "dead-letters-dropped"]
    assert (warning["severity"], "1900 dead letters" in warning["message"]) == ("warning", True)


def test_what_was_dropped_before_it_was_audited_does_not_break_the_trail(stack: Stack) -> None:
    """Its message is in the trail, and the server knows how many dead letters the writer never saw."""
    stack = limited(stack, dead_letters_max_entries=8)
    writer = build_writer(stack.parts, consumer="w")
    flood(stack, encode_unsigned(decode(stack.envelope(Message(content="junk")))), 50)
    route(stack)
    while writer.run_once():
        pass
    assert int(stack.redis.hget(keys.dead_usage(0), "unaudited") or 0) == 48
    result = stack.run("audit", "verify")
    assert result.exit_code == 0, result.output


def test_a_sender_that_signs_has_a_share_as_well(stack: Stack) -> None:
    """In entries and in bytes; the dead letters of others stay, the oldest of its own go."""
    stack = limited(stack, dead_letters_max_entries=40, dead_letters_max_bytes=200_000)
    refused(stack, "lead", 4)
    route(stack)
    refused(stack, "reviewer", 30)
    route(stack)
    dead = [letter.sender for letter in stack.dead()]
    assert (dead.count("lead"), dead.count("reviewer")) == (4, 10)
    refused(stack, "partner", 8, content="y" * 20_000)
    route(stack)
    dead = [letter.sender for letter in stack.dead()]
    assert (dead.count("lead"), dead.count("reviewer"), dead.count("partner")) == (4, 10, 2)


def test_a_message_becomes_a_dead_letter_although_somebody_removed_the_index(stack: Stack) -> None:
    """Bytes that were counted for what is not there any more take no room."""
    stack = limited(stack, dead_letters_max_bytes=100_000)
    stack.redis.hset(keys.dead_usage(0), mapping={"bytes": 10**9, "bytes:": 10**9})
    flood(stack, b"junk", 1)
    route(stack)
    assert len(stack.dead()) == 1
    assert stack.redis.hget(keys.dead_usage(0), "bytes") == b"4"
    stack.redis.hset(keys.dead_usage(0), "bytes:", 10**9)
    flood(stack, b"rubbish", 1)
    route(stack)
    assert stack.pending() == 0


def test_what_is_signed_is_kept_longer_than_what_is_not(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all of it is too much, what nobody vouches for goes first, then the oldest."""
    monkeypatch.setattr(DeadLimits, "of", lambda _: DeadLimits(entries=12, share=0.5))
    stack = limited(stack)
    flood(stack, b"junk", 4)
    route(stack)
    for sender in ("lead", "partner"):
        refused(stack, sender, 6)
        route(stack)
    assert [letter.sender for letter in stack.dead()] == ["lead"] * 6 + ["partner"] * 6
    flood(stack, b"junk", 3)
    refused(stack, "reviewer", 1)
    route(stack)
    assert [letter.sender for letter in stack.dead()] == ["lead"] * 5 + ["partner"] * 6 + ["reviewer"]


@pytest.mark.parametrize("command", ["drop", "replay"])
def test_what_leaves_makes_room(stack: Stack, command: str) -> None:
    """The records are empty once the dead letters are."""
    stack = limited(stack, dead_letters_max_entries=100)
    for _ in range(3):
        stack.publish(stack.envelope(Message(content="x"), recipient="later"), "message")
    router = stack.router(jitter=lambda: 0.0)
    until(lambda: bool(router.run_once()) and len(stack.dead()) == 3)
    usage = stack.redis.hgetall(keys.dead_usage(0))
    assert int(usage[b"bytes"]) == sum(len(letter.data) for letter in stack.dead())
    stack.parts.agents.announce([LATER])
    assert stack.run("dlq", command, "--all").exit_code == 0
    assert (stack.dead(), stack.redis.zcard(keys.dead_index(0))) == ([], 0)
    assert stack.redis.hgetall(keys.dead_usage(0)) == {}


def test_a_dead_letter_has_a_lifetime(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reaper drops what is older, and what is not stays."""
    old_ms = int(stack.redis.time()[0]) * 1000 - 31 * 86_400_000
    stack.redis.xadd(
        keys.dead(0),
        {"envelope": b"x", "stream": "00/message/normal", "rule": "r", "reason": "old"},
        id=f"{old_ms}-0",
    )
    refused(stack, "lead", 1)
    stack.router().run_once()
    build_reaper(stack.redis, stack.settings).run_once()
    assert [letter.sender for letter in stack.dead()] == ["lead"]
    monkeypatch.setattr(DeadLimits, "of", lambda _: DeadLimits(ttl_ms=50))
    until(lambda: bool(build_reaper(stack.redis, stack.settings).run_once()) and not stack.dead())
    assert stack.redis.zcard(keys.dead_index(0)) == 0


def test_a_damaged_dead_letter_hides_no_other(stack: Stack) -> None:
    """Whoever can write to Redis can append nonsense; the others are listed, audited and replayed."""
    stack.redis.xadd(keys.dead(0), {"stream": "nonsense", "attempts": "many", "reason": b"\xff"})
    refused(stack, "lead", 1)
    route(stack)
    listed = json.loads(stack.run("dlq", "list", "--json").stdout)["dead_letters"]
    assert [letter["sender"] for letter in listed] == ["", "lead"]
    writer = build_writer(stack.parts, consumer="w")
    while writer.run_once():
        pass
    assert stack.run("dlq", "drop", listed[0]["dead_letter"]).exit_code == 0
    assert [letter.sender for letter in stack.dead()] == ["lead"]

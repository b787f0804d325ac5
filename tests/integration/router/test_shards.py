"""A stack of several shards: a message belongs to one of them."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.bootstrap import build_container
from orchestrator.config.settings import load_settings
from orchestrator.envelope.bodies import Escalation, EscalationMatter, Task, TaskDelegation
from orchestrator.envelope.codec import decode
from orchestrator.ids import new_message_id, shard_of
from orchestrator.router.deadletters.store import DeadLetter, DeadLetters
from orchestrator.streams import StreamId
from tests.integration.router.conftest import Stack

SHARDS = 4
TASK = TaskDelegation(task=Task(task_id="T-1", title="t", description="d"))


@pytest.fixture
def sharded(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> Stack:
    """A stack of four shards."""
    settings = load_settings(redis_url=redis_url, data=tmp_path, registration_patience_s=0, shards=SHARDS)
    return Stack(redis, settings, build_container(redis, settings))


def everywhere(stack: Stack, data: bytes, message_type: str) -> None:
    for shard in range(SHARDS):
        stack.streams.publish(StreamId(shard, message_type, "normal"), data)


def dead(stack: Stack) -> list[DeadLetter]:
    return DeadLetters(stack.redis, shards=SHARDS).all()


def test_a_message_begins_one_session_however_many_shards_it_is_put_into(sharded: Stack) -> None:
    """In its own it is taken; in the others it is a dead letter that says where it belongs."""
    data = sharded.envelope(TASK, sender="partner", recipient="reviewer")
    home = zlib.crc32(decode(data).conversation_id.encode()) % SHARDS
    everywhere(sharded, data, "task-delegation")
    handled = sharded.router().run_once()
    assert (handled.done, handled.dead) == (1, SHARDS - 1)
    ((dispatch, _),) = sharded.sent.runs
    assert shard_of(dispatch.session) == home
    assert {letter.rule for letter in dead(sharded)} == {"shard"}
    assert {letter.stream.shard for letter in dead(sharded)} == set(range(SHARDS)) - {home}
    assert f"belongs to shard {home:02x}" in dead(sharded)[0].reason


@pytest.mark.parametrize("kind", ["task-delegation", "escalation"])
def test_what_a_chain_names_decides_the_shard(sharded: Stack, kind: str) -> None:
    """Work that a program gives from within a session belongs to the shard of that session's tree, and to no other."""
    conversation, first = new_message_id(), new_message_id()
    options = {"sender": "partner", "correlation": conversation}
    data = sharded.envelope(TASK, message_id=first, recipient="reviewer", **options)  # type: ignore[arg-type]
    everywhere(sharded, data, "task-delegation")
    assert sharded.router().run_once().done == 1
    ((dispatch, _),) = sharded.sent.runs
    more = {
        "task-delegation": TaskDelegation(task=Task(task_id="T-2", title="t", description="d")),
        "escalation": Escalation(escalation=EscalationMatter(task_id="T-2", title="t", description="d")),
    }[kind]
    data = sharded.envelope(more, chain=(first,), recipient="tech-lead", **options)  # type: ignore[arg-type]
    everywhere(sharded, data, kind)
    before = len(dead(sharded))
    sharded.router("two").run_once()
    assert (len(sharded.sent.runs), len(dead(sharded)) - before) == (2, SHARDS - 1)
    assert {shard_of(run.session) for run, _ in sharded.sent.runs} == {shard_of(dispatch.session)}

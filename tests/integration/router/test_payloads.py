"""Bodies of foreign programs that are compressed or stored apart: opened whole, or refused with a reason."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.envelope.model import AgentMessage, ClaimCheckBody, CompressedBody, Task, TaskDelegation
from orchestrator.envelope.payload import CHUNK_BYTES, BlobStore
from orchestrator.envelope.sealing import Sealer
from orchestrator.envelope.signature import sign_message
from orchestrator.envelope.validate import check
from orchestrator.redisdb import keys
from tests.integration.router.conftest import Stack

#: Noise, of which three chunks are needed even when it is compressed.
TEXT = random.Random(7).randbytes(1_400_000).hex()


def sealed(stack: Stack, *, store: bool, text: str = TEXT) -> AgentMessage:
    """A task in the form in which it travels."""
    body = TaskDelegation(task=Task(task_id="T-1", title="Read", description=text))
    message = check(stack.envelope(body, sender="partner", recipient="reviewer")).message
    assert message is not None
    sealer = Sealer(
        BlobStore(stack.redis),
        compress_above=1000,
        claim_check_above=1000 if store else 100_000_000,
        blob_ttl_s=60,
    )
    return sealer.seal(message)


def publish(stack: Stack, message: AgentMessage) -> None:
    now_ms = int(stack.redis.time()[0]) * 1000
    data = sign_message(message, stack.parts.keyring.signer("partner"), now_ms=now_ms)
    stack.publish(data, "task-delegation", "high")


@pytest.mark.parametrize("store", [True, False])
def test_a_task_that_is_sealed_starts_like_any_other(stack: Stack, store: bool) -> None:
    """Its agent is given the text to the last character."""
    message = sealed(stack, store=store)
    assert isinstance(message.body, ClaimCheckBody if store else CompressedBody)
    publish(stack, message)
    assert stack.router().run_once().done == 1
    (session,) = stack.parts.ledger.roots(0)
    assert stack.parts.ledger.texts(session.id, ["prompt"]) == {"prompt": TEXT}
    assert not session.sealed


def altered(stack: Stack, name: str) -> None:
    chunk: Any = stack.redis.hget(name, "1")
    assert len(chunk) <= CHUNK_BYTES
    stack.redis.hset(name, "1", chunk[:-1] + bytes([chunk[-1] ^ 1]))


FAULTS: dict[str, tuple[str, Callable[[Stack, str], object]]] = {
    "a chunk is missing": ("chunk 1 of", lambda stack, name: stack.redis.hdel(name, "1")),
    "a chunk is altered": ("altered", altered),
    "it is gone": ("is not stored", lambda stack, name: stack.redis.unlink(name)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_payload_that_is_not_whole_is_refused_with_its_reason(stack: Stack, fault: str) -> None:
    """A dead letter that can be replayed once the payload is there again, and an error to the sender."""
    reason, damage = FAULTS[fault]
    message = sealed(stack, store=True)
    assert isinstance(message.body, ClaimCheckBody)
    assert message.body.chunks > 2
    damage(stack, keys.blob(0, message.body.sha256))
    publish(stack, message)
    assert stack.router().run_once().dead == 1
    (letter,) = stack.dead()
    assert (letter.rule, reason in letter.reason, stack.pending()) == ("payload", True, 0)
    (report,) = stack.published("error")
    assert reason in check(report).message.body.message  # type: ignore[union-attr]
    assert stack.parts.ledger.roots(0) == []


def test_a_compressed_body_that_was_put_together_is_refused(stack: Stack) -> None:
    """What comes out has to be the body that the message says, and a valid one."""
    good = sealed(stack, store=False, text="read it " * 1000)
    assert isinstance(good.body, CompressedBody)
    short = good.body.model_copy(update={"size": good.body.size - 1})
    publish(stack, good.model_copy(update={"body": short}))
    assert stack.router().run_once().dead == 1
    assert [letter.rule for letter in stack.dead()] == ["payload"]

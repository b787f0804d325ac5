"""Bodies of external programs that are compressed or stored apart: opened whole, or refused with a reason."""

from __future__ import annotations

import hashlib
import random
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.envelope import codec, payload
from orchestrator.envelope.bodies import Task, TaskDelegation
from orchestrator.envelope.model import AgentMessage
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.envelope.opaque import ClaimCheckBody, CompressedBody
from orchestrator.envelope.payload import CHUNK_BYTES, BlobStore, compress
from orchestrator.envelope.sealing import Encrypter
from orchestrator.envelope.signature import sign_message
from orchestrator.envelope.validate import check
from orchestrator.errors import PayloadError
from orchestrator.redisdb import keys
from tests.cpu import least_cpu_s
from tests.integration.router.conftest import Stack

MIB = 1024 * 1024
#: Noise, of which three chunks are needed even when it is compressed.
TEXT = random.Random(7).randbytes(1_400_000).hex()


def sealed(stack: Stack, *, store: bool, text: str = TEXT) -> AgentMessage:
    """A task in the form in which it travels."""
    body = TaskDelegation(task=Task(task_id="T-1", title="Read", description=text))
    message = check(stack.envelope(body, sender="partner", recipient="reviewer")).message
    assert message is not None
    encrypter = Encrypter(
        BlobStore(stack.redis),
        compress_above=1000,
        claim_check_above=1000 if store else 100_000_000,
        blob_ttl_s=60,
    )
    return encrypter.seal(message)


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


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no body",
        b"<!DOCTYPE body []><body/>",
        f'<body xmlns="{NAMESPACE}" type="task-delegation"><task/></body>'.encode(),
        f'<body xmlns="{NAMESPACE}" type="message"><content>x</content></body>'.encode(),
    ],
)
def test_what_comes_out_of_a_payload_is_validated_like_anything_else(stack: Stack, content: bytes) -> None:
    """It has to be the body that the message says, and a valid one."""
    body = CompressedBody(
        type="task-delegation",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        content=b64encode(compress(content)).decode(),
    )
    publish(stack, sealed(stack, store=False).model_copy(update={"body": body}))
    assert stack.router().run_once().dead == 1
    assert [(letter.rule, letter.message_id != "") for letter in stack.dead()] == [("payload", True)]


def bomb(size: int) -> CompressedBody:
    """A task whose description is so many times the same message, in a few kilobytes."""
    octets = codec.encode_body(TaskDelegation(task=Task(task_id="T-1", title="t", description="a" * size)))
    content = b64encode(compress(octets)).decode()
    digest = hashlib.sha256(octets).hexdigest()
    return CompressedBody(type="task-delegation", size=len(octets), sha256=digest, content=content)


@pytest.mark.parametrize(
    ("size", "reason"), [(64 * MIB, "larger than the limit"), (8 * MIB, "more than 200 times")]
)
def test_a_few_kilobytes_do_not_become_megabytes_in_a_router(
    stack: Stack, size: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever signs it: what the message says of its size is judged before anything is decompressed."""
    monkeypatch.setattr(payload, "inflate", lambda *_, **__: pytest.fail("was decompressed"))
    message = sealed(stack, store=False, text="x")
    message = message.model_copy(update={"body": bomb(size), "signature": None})
    publish(stack, message)
    router, routed = stack.router(), []
    assert least_cpu_s(lambda: routed.append(router.run_once().dead), below_s=0.5, tries=1) < 0.5
    assert routed == [1]
    (dead,) = stack.dead()
    assert (dead.rule, reason in dead.reason, len(dead.data) < 10_000) == ("payload", True, True)


def test_a_repetitive_text_of_megabytes_arrives_all_the_same(stack: Stack) -> None:
    """What no reader would take compressed is stored instead, or sent as it is, by an honest sender."""
    text = "the same line over and over" * 100_000
    body = TaskDelegation(task=Task(task_id="T-1", title="Read", description=text))
    message = check(stack.envelope(body, sender="partner", recipient="reviewer")).message
    assert message is not None
    publish(stack, stack.parts.encrypter.seal(message))
    assert (stack.router().run_once().done, stack.dead()) == (1, [])
    assert not isinstance(sealed(stack, store=False, text=text).body, CompressedBody)


def test_a_task_that_no_router_would_open_is_refused_where_it_is_sealed(stack: Stack) -> None:
    """Not later, as a dead letter."""
    body = TaskDelegation(task=Task(task_id="T-1", title="Read", description="x" * 17 * MIB))
    header = sealed(stack, store=False).header
    with pytest.raises(PayloadError, match="max_payload_bytes"):
        stack.parts.encrypter.seal(AgentMessage(header=header, body=body))

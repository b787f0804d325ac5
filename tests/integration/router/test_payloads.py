"""Bodies of external programs that are compressed or stored apart: opened whole, or refused with a reason."""

from __future__ import annotations

import hashlib
import random
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.envelope import codec, payload
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
from tests.integration.router.conftest import errors, task
from tests.kit import Kit

MIB = 1024 * 1024
#: Noise, of which three chunks are needed even when it is compressed.
TEXT = random.Random(7).randbytes(1_400_000).hex()


def sealed(kit: Kit, *, store: bool, text: str = TEXT) -> AgentMessage:
    """A task in the form in which it travels."""
    message = check(kit.envelope(task(text=text), sender="partner", recipient="reviewer")).message
    assert message is not None
    encrypter = Encrypter(
        BlobStore(kit.redis),
        compress_above=1000,
        claim_check_above=1000 if store else 100_000_000,
        blob_ttl_s=60,
    )
    return encrypter.seal(message)


def publish(kit: Kit, message: AgentMessage) -> None:
    data = sign_message(message, kit.parts.keyring.signer("partner"), now_ms=kit.now_ms)
    kit.publish(data, "task-delegation", "high")


@pytest.mark.parametrize("store", [True, False])
def test_a_task_that_is_sealed_starts_like_any_other(kit: Kit, store: bool) -> None:
    """Its agent is given the text to the last character."""
    message = sealed(kit, store=store)
    assert isinstance(message.body, ClaimCheckBody if store else CompressedBody)
    publish(kit, message)
    assert kit.route().done == 1
    (session,) = kit.ledger.roots(0)
    assert kit.ledger.texts(session.id, ["prompt"]) == {"prompt": TEXT}
    assert not session.sealed


def altered(kit: Kit, name: str) -> None:
    chunk: Any = kit.redis.hget(name, "1")
    assert len(chunk) <= CHUNK_BYTES
    kit.redis.hset(name, "1", chunk[:-1] + bytes([chunk[-1] ^ 1]))


FAULTS: dict[str, tuple[str, Callable[[Kit, str], object]]] = {
    "a chunk is missing": ("chunk 1 of", lambda kit, name: kit.redis.hdel(name, "1")),
    "a chunk is altered": ("altered", altered),
    "it is gone": ("is not stored", lambda kit, name: kit.redis.unlink(name)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_payload_that_is_not_whole_is_refused_with_its_reason(kit: Kit, fault: str) -> None:
    """A dead letter that can be replayed once the payload is there again, and an error to the sender."""
    reason, damage = FAULTS[fault]
    message = sealed(kit, store=True)
    assert isinstance(message.body, ClaimCheckBody)
    assert message.body.chunks > 2
    damage(kit, keys.blob(0, message.body.sha256))
    publish(kit, message)
    assert kit.route().dead == 1
    (letter,) = kit.dead()
    assert (letter.rule, reason in letter.reason, kit.pending()) == ("payload", True, 0)
    (report,) = errors(kit)
    assert reason in report.body.message  # type: ignore[union-attr]
    assert kit.ledger.roots(0) == []


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
def test_what_comes_out_of_a_payload_is_validated_like_anything_else(kit: Kit, content: bytes) -> None:
    """It has to be the body that the message says, and a valid one."""
    body = CompressedBody(
        type="task-delegation",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        content=b64encode(compress(content)).decode(),
    )
    publish(kit, sealed(kit, store=False).model_copy(update={"body": body}))
    assert kit.route().dead == 1
    assert [(letter.rule, letter.message_id != "") for letter in kit.dead()] == [("payload", True)]


def bomb(size: int) -> CompressedBody:
    """A task whose description is so many times the same message, in a few kilobytes."""
    octets = codec.encode_body(task(text="a" * size))
    content = b64encode(compress(octets)).decode()
    digest = hashlib.sha256(octets).hexdigest()
    return CompressedBody(type="task-delegation", size=len(octets), sha256=digest, content=content)


@pytest.mark.parametrize(
    ("size", "reason"), [(64 * MIB, "larger than the limit"), (8 * MIB, "more than 200 times")]
)
def test_a_few_kilobytes_do_not_become_megabytes_in_a_router(
    kit: Kit, size: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever signs it: what the message says of its size is judged before anything is decompressed."""
    monkeypatch.setattr(payload, "inflate", lambda *_, **__: pytest.fail("was decompressed"))
    message = sealed(kit, store=False, text="x")
    message = message.model_copy(update={"body": bomb(size), "signature": None})
    publish(kit, message)
    router, routed = kit.router(), []
    assert least_cpu_s(lambda: routed.append(router.run_once().dead), below_s=0.5, tries=1) < 0.5
    assert routed == [1]
    (dead,) = kit.dead()
    assert (dead.rule, reason in dead.reason, len(dead.data) < 10_000) == ("payload", True, True)


def test_a_repetitive_text_of_megabytes_arrives_all_the_same(kit: Kit) -> None:
    """What no reader would take compressed is stored instead, or sent as it is, by an honest sender."""
    text = "the same line over and over" * 100_000
    message = check(kit.envelope(task(text=text), sender="partner", recipient="reviewer")).message
    assert message is not None
    publish(kit, kit.parts.encrypter.seal(message))
    assert (kit.route().done, kit.dead()) == (1, [])
    assert not isinstance(sealed(kit, store=False, text=text).body, CompressedBody)


def test_a_task_that_no_router_would_open_is_refused_where_it_is_sealed(kit: Kit) -> None:
    """Not later, as a dead letter."""
    message = sealed(kit, store=False).model_copy(update={"body": task(text="x" * 17 * MIB)})
    with pytest.raises(PayloadError, match="max_payload_bytes"):
        kit.parts.encrypter.seal(message)

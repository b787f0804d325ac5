"""Bodies that travel compressed, encrypted or by reference arrive as they were written, or not at all."""

from __future__ import annotations

import hashlib
import random
from base64 import b64decode, b64encode

import pytest
import redis as redis_py

from orchestrator.envelope import codec
from orchestrator.envelope.bodies import Message, TaskCompletion
from orchestrator.envelope.encryption import BoundTo, Recipient, encrypt
from orchestrator.envelope.model import AgentMessage, Header, Party
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.opaque import ClaimCheckBody, CompressedBody, EncryptedBody
from orchestrator.envelope.parse import parse
from orchestrator.envelope.payload import BlobRef, BlobStore, compress
from orchestrator.envelope.sealing import Encrypter, Opener
from orchestrator.envelope.signature import verify
from orchestrator.envelope.validate import check
from orchestrator.errors import DecryptionError, InvalidEnvelope, PayloadError
from orchestrator.ids import new_message_id
from orchestrator.keyring.store import KeyStore
from orchestrator.redisdb import keys
from tests.clock import ManualClock

MIB = 1024 * 1024
NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> KeyStore:
    clock = ManualClock(NOW_MS)
    store = KeyStore(tmp_path_factory.mktemp("keys"), "Ed25519", clock=clock)
    store.create("reviewer", "encrypt")
    return store


@pytest.fixture(scope="module")
def recipient(store: KeyStore) -> Recipient:
    record = store.current("reviewer", "encrypt")
    return Recipient(record.key_id, record.public)


@pytest.fixture
def encrypter(redis: redis_py.Redis) -> Encrypter:
    return Encrypter(
        BlobStore(redis),
        compress_above=1000,
        claim_check_above=100_000,
        blob_ttl_s=60,
        clock=ManualClock(NOW_MS),
    )


@pytest.fixture
def opener(redis: redis_py.Redis, store: KeyStore) -> Opener:
    return Opener(BlobStore(redis), find_key=store.private_key)


def completion(result: str) -> AgentMessage:
    return AgentMessage(
        header=Header(
            message_id=new_message_id(),
            timestamp=Timestamp.from_ms(NOW_MS),
            sender=Party(agent_name="lead", agent_role="specialist"),
            recipient=Party(agent_name="reviewer", agent_role="coordinator"),
        ),
        body=TaskCompletion(task_id="t-1", status="success", summary="done", result=result),
    )


def message_factory(size: int) -> str:
    return "".join(random.Random(size).choices("abcdefghijklmnopqrstuvwxyz <&>é\n", k=size))


@pytest.mark.parametrize(
    ("size", "secret", "form"),
    [
        (10, False, TaskCompletion),
        (10_000, False, CompressedBody),
        (1_000_000, False, ClaimCheckBody),
        (10, True, EncryptedBody),
        (10_000, True, EncryptedBody),
        (1_000_000, True, ClaimCheckBody),
    ],
)
def test_a_body_travels_in_the_form_that_suits_it(
    encrypter: Encrypter,
    opener: Opener,
    store: KeyStore,
    recipient: Recipient,
    size: int,
    secret: bool,
    form: type,
) -> None:
    message = completion(message_factory(size))
    octets = encrypter.sign(message, store.signer("lead"), recipient=recipient if secret else None)
    report = check(octets)
    assert report.valid, report.findings
    assert isinstance(report.message.body, form)
    assert report.message.body.type == "task-completion"
    assert verify(report.tree, store).signer == "lead"
    assert opener.open(report.message).body == message.body
    assert len(octets) < 20_000


def test_a_secret_is_readable_neither_on_the_wire_nor_in_the_store(
    encrypter: Encrypter, redis: redis_py.Redis, store: KeyStore, recipient: Recipient
) -> None:
    message = completion("swordfish " * 100_000)
    octets = encrypter.sign(message, store.signer("lead"), recipient=recipient)
    (name,) = redis.keys("ao:{*")
    assert b"swordfish" not in octets
    stored = encrypter.seal(message, recipient=recipient).body
    ref = BlobRef(
        sha256=stored.sha256, size=stored.size, chunks=stored.chunks, stored_size=stored.stored_size
    )
    assert isinstance(codec.decode_body(BlobStore(redis).get(ref)), EncryptedBody)
    assert name.decode().startswith(keys.blob(0, ""))


def test_fifty_mebibytes_arrive_byte_for_byte(redis: redis_py.Redis, store: KeyStore) -> None:
    encrypter = Encrypter(BlobStore(redis), compress_above=64 * 1024, claim_check_above=MIB, blob_ttl_s=60)
    message = completion(random.Random(1).randbytes(25 * MIB).hex())
    octets = encrypter.sign(message, store.signer("lead"))
    assert len(octets) < 5000
    received = check(octets).message
    assert Opener(BlobStore(redis)).open(received).body.result == message.body.result


def test_a_small_message_is_signed_as_it_is(encrypter: Encrypter, opener: Opener) -> None:
    message = completion("small")
    assert encrypter.seal(message) is message
    assert opener.open(message) is message


def test_a_sealed_message_is_sealed_once(encrypter: Encrypter) -> None:
    sealed = encrypter.seal(completion(message_factory(10_000)))
    assert encrypter.seal(sealed) is sealed


def test_what_does_not_shrink_is_not_compressed(encrypter: Encrypter) -> None:
    message = completion(b64encode(random.Random(2).randbytes(7000)).decode())
    assert isinstance(encrypter.seal(message).body, TaskCompletion)


def test_a_stored_body_that_is_gone_is_a_clean_error(
    encrypter: Encrypter, opener: Opener, redis: redis_py.Redis
) -> None:
    sealed = encrypter.seal(completion(message_factory(200_000)))
    redis.flushall()
    with pytest.raises(PayloadError, match="ask the sender"):
        opener.open(sealed)


def test_a_payload_of_another_type_than_declared_is_refused(encrypter: Encrypter, opener: Opener) -> None:
    for size in (10_000, 200_000):
        sealed = encrypter.seal(completion(message_factory(size)))
        body = sealed.body.model_copy(update={"type": "error"})
        with pytest.raises(PayloadError, match="two messages"):
            opener.open(sealed.model_copy(update={"body": body}))


def test_an_encrypted_body_moved_to_another_message_is_refused(
    encrypter: Encrypter, opener: Opener, recipient: Recipient
) -> None:
    one, other = completion("one"), completion("two")
    sealed = encrypter.seal(one, recipient=recipient)
    with pytest.raises(DecryptionError, match="another message"):
        opener.open(other.model_copy(update={"body": sealed.body}))


def test_a_body_wrapped_again_and_again_is_refused(encrypter: Encrypter, opener: Opener) -> None:
    """Each form at most once and in order, so that nobody can make a reader unwrap for ever."""
    compressed = encrypter.seal(completion(message_factory(10_000)))
    content = codec.encode_body(compressed.body)
    twice = CompressedBody(
        type="task-completion",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        content=b64encode(compress(content)).decode(),
    )
    with pytest.raises(PayloadError, match="at most once"):
        opener.open(compressed.model_copy(update={"body": twice}))


@pytest.mark.parametrize(
    "content",
    [
        b"text",
        b"<task-id>",
        b"</body><body>",
        b"<content>x</content>",
        b"<!DOCTYPE a><a/>",
        b"\xff",
        b"<a/>" * 3,
    ],
)
def test_whatever_was_encrypted_is_validated_before_it_is_believed(
    opener: Opener, recipient: Recipient, content: bytes
) -> None:
    """Anybody can encrypt to a public key."""
    message = completion("x")
    xml = encrypt(
        b"<body >" + content + b"</body>",
        recipient,
        bound=BoundTo(
            message_id=message.header.message_id,
            conversation=message.conversation_id,
            sender=message.header.sender.agent_name,
            recipient=message.header.recipient.agent_name,
        ),
    )
    forged = message.model_copy(update={"body": EncryptedBody(type="task-completion", xml=xml)})
    with pytest.raises(InvalidEnvelope):
        opener.open(forged)


def test_an_altered_compressed_body_is_refused(encrypter: Encrypter, opener: Opener) -> None:
    sealed = encrypter.seal(completion(message_factory(10_000)))
    octets = bytearray(b64decode(sealed.body.content))
    octets[len(octets) // 2] ^= 1
    body = sealed.body.model_copy(update={"content": b64encode(octets).decode()})
    with pytest.raises(PayloadError):
        opener.open(sealed.model_copy(update={"body": body}))


def test_a_body_above_the_readers_limit_is_refused(encrypter: Encrypter, redis: redis_py.Redis) -> None:
    opener = Opener(BlobStore(redis, max_bytes=5000), max_bytes=5000)
    for size in (10_000, 200_000):
        with pytest.raises(PayloadError, match="larger than the limit"):
            opener.open(encrypter.seal(completion(message_factory(size))))


def test_the_digest_of_a_reference_is_of_the_body_as_it_is_signed(encrypter: Encrypter) -> None:
    message = completion(message_factory(200_000))
    sealed = encrypter.seal(message)
    assert sealed.body.size == len(codec.encode_body(message.body))
    assert sealed.body.expires == Timestamp.from_ms(NOW_MS + 60_000)
    assert parse(codec.encode(sealed)).root[1][0].get("sha256") == sealed.body.sha256


def test_a_message_body_is_opened_too(encrypter: Encrypter, opener: Opener) -> None:
    message = completion("x").model_copy(update={"body": Message(content=message_factory(20_000))})
    assert opener.open(encrypter.seal(message)) == message

"""Payloads in Redis: stored once, in chunks, whole or not at all, and never longer than somebody needs them."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from itertools import count

import pytest
import redis as redis_py

from orchestrator.envelope.payload import CHUNK_BYTES, UPLOAD_TTL_S, BlobRef, BlobStore
from orchestrator.errors import PayloadError
from orchestrator.redisdb import keys

MIB = 1024 * 1024


@pytest.fixture
def blobs(redis: redis_py.Redis) -> BlobStore:
    return BlobStore(redis, 0)


def noise(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@pytest.mark.parametrize(
    "octets",
    [b"", b"x", b"ab" * 1_000_000, noise(CHUNK_BYTES - 1), noise(CHUNK_BYTES), noise(3 * CHUNK_BYTES + 1)],
    ids=["empty", "one", "repetitive", "almost a chunk", "a chunk", "chunks"],
)
def test_octets_come_back(blobs: BlobStore, octets: bytes) -> None:
    ref = blobs.put(octets, ttl_s=60)
    assert (ref.size, ref.sha256) == (len(octets), hashlib.sha256(octets).hexdigest())
    assert blobs.get(ref) == octets


def test_fifty_mebibytes_come_back_in_chunks_of_bounded_size(blobs: BlobStore, redis: redis_py.Redis) -> None:
    octets = noise(50 * MIB)
    ref = blobs.put(octets, ttl_s=60)
    assert blobs.get(ref) == octets
    assert ref.chunks >= 100
    name = keys.blob(0, ref.sha256)
    assert max(redis.hstrlen(name, str(n)) for n in range(ref.chunks)) <= CHUNK_BYTES
    assert sum(redis.hstrlen(name, str(n)) for n in range(ref.chunks)) == ref.stored_size


def test_the_same_content_is_stored_once_and_lives_for_its_last_reference(
    blobs: BlobStore, redis: redis_py.Redis
) -> None:
    first = blobs.put(b"content", ttl_s=100)
    assert blobs.put(b"content", ttl_s=200) == first
    assert blobs.put(b"content", ttl_s=50) == first
    (name,) = redis.keys("ao:{*")
    assert 190_000 < redis.pttl(name) <= 200_000


def test_a_payload_that_is_kept_for_good_does_not_begin_to_expire(
    blobs: BlobStore, redis: redis_py.Redis
) -> None:
    """Storing the same content again must not shorten its life."""
    name = keys.blob(0, blobs.put(b"x" * 1000, ttl_s=5).sha256)
    redis.persist(name)
    blobs.put(b"x" * 1000, ttl_s=5)
    assert redis.ttl(name) == -1


def test_every_stored_payload_has_a_lifetime(blobs: BlobStore, redis: redis_py.Redis) -> None:
    blobs.put(noise(2 * MIB), ttl_s=100)
    blobs.put(b"ab", ttl_s=0.5)
    assert all(0 < redis.pttl(name) <= 100_000 for name in redis.scan_iter("ao:{*"))


def before_the_second_write(
    blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]
) -> None:
    """Have ``act`` happen between the first and the second write of an upload."""
    write, writes = blobs._write, count(1)

    def acting(upload: str, field: str, value: bytes | str) -> None:
        if next(writes) == 2:
            act()
        write(upload, field, value)

    monkeypatch.setattr(blobs, "_write", acting)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_a_writer_that_dies_leaves_nothing_that_could_be_read_or_stays(
    blobs: BlobStore, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    octets = noise(3 * CHUNK_BYTES)
    monkeypatch.setattr(blobs, "_drop", lambda _: None)
    before_the_second_write(blobs, monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        blobs.put(octets, ttl_s=60)
    (left,) = redis.keys("ao:{*")
    assert left.decode().startswith(keys.upload(0, ""))
    assert 0 < redis.ttl(left) <= UPLOAD_TTL_S
    missing = BlobRef(sha256=hashlib.sha256(octets).hexdigest(), size=len(octets), chunks=3, stored_size=1)
    with pytest.raises(PayloadError, match="is not stored"):
        blobs.get(missing)
    assert blobs.get(blobs.put(octets, ttl_s=60)) == octets


@pytest.mark.parametrize("permanent", [False, True])
def test_a_writer_that_is_overtaken_shortens_no_lifetime(
    blobs: BlobStore, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch, *, permanent: bool
) -> None:
    def overtake() -> None:
        BlobStore(redis, 0).put(noise(2 * CHUNK_BYTES), ttl_s=200)
        if permanent:
            redis.persist(redis.keys("ao:{*blob*")[0])

    before_the_second_write(blobs, monkeypatch, overtake)
    blobs.put(noise(2 * CHUNK_BYTES), ttl_s=60)
    (name,) = redis.keys("ao:{*")
    assert redis.pttl(name) == -1 if permanent else redis.pttl(name) > 190_000


def test_a_writer_that_fails_cleans_up_at_once(
    blobs: BlobStore, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_second_write(blobs, monkeypatch, interrupt)
    with pytest.raises(KeyboardInterrupt):
        blobs.put(noise(2 * CHUNK_BYTES), ttl_s=60)
    assert redis.keys("ao:{*") == []


def test_an_upload_that_expired_is_never_taken_for_whole(
    blobs: BlobStore, redis: redis_py.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    before_the_second_write(blobs, monkeypatch, redis.flushall)
    with pytest.raises(PayloadError, match="send them again"):
        blobs.put(noise(3 * CHUNK_BYTES), ttl_s=60)
    assert redis.keys("ao:{*") == []


def lose_chunk(redis: redis_py.Redis, name: str) -> None:
    redis.hdel(name, "1")


def alter_chunk(redis: redis_py.Redis, name: str) -> None:
    chunk = redis.hget(name, "1")
    redis.hset(name, "1", chunk[:100] + bytes([chunk[100] ^ 1]) + chunk[101:])


def cut_chunk(redis: redis_py.Redis, name: str) -> None:
    redis.hset(name, "2", redis.hget(name, "2")[:-1])


def swap_chunks(redis: redis_py.Redis, name: str) -> None:
    redis.hset(name, mapping={"0": redis.hget(name, "1"), "1": redis.hget(name, "0")})


def spoil_facts(redis: redis_py.Redis, name: str) -> None:
    redis.hset(name, "facts", "{}")


def claim_fewer_chunks(redis: redis_py.Redis, name: str) -> None:
    redis.hset(name, "facts", redis.hget(name, "facts").replace(b'"chunks": 4', b'"chunks": 1'))


@pytest.mark.parametrize(
    "spoil", [lose_chunk, alter_chunk, cut_chunk, swap_chunks, spoil_facts, claim_fewer_chunks]
)
def test_a_spoilt_payload_is_a_clean_error(
    blobs: BlobStore, redis: redis_py.Redis, spoil: Callable[[redis_py.Redis, str], None]
) -> None:
    octets = noise(3 * CHUNK_BYTES + 5)
    ref = blobs.put(octets, ttl_s=60)
    spoil(redis, keys.blob(0, ref.sha256))
    with pytest.raises(PayloadError):
        blobs.get(ref)


def test_chunks_without_end_do_not_fill_the_memory_of_the_reader(
    blobs: BlobStore, redis: redis_py.Redis
) -> None:
    ref = blobs.put(b"content", ttl_s=60)
    facts = {"size": ref.size, "stored_size": ref.stored_size, "chunks": 1_000}
    chunks = {str(number): bytes(CHUNK_BYTES) for number in range(3)}
    redis.hset(keys.blob(0, ref.sha256), mapping={**chunks, "facts": json.dumps(facts)})
    with pytest.raises(PayloadError, match="more bytes than its message says"):
        blobs.get(ref)


def test_a_payload_that_lost_a_chunk_is_stored_anew(blobs: BlobStore, redis: redis_py.Redis) -> None:
    octets = noise(3 * CHUNK_BYTES)
    ref = blobs.put(octets, ttl_s=60)
    lose_chunk(redis, keys.blob(0, ref.sha256))
    assert blobs.get(blobs.put(octets, ttl_s=60)) == octets


def test_a_reference_that_lies_about_the_size_is_refused(blobs: BlobStore) -> None:
    ref = blobs.put(bytes(10 * MIB), ttl_s=60)
    for size in (10, 10 * MIB - 1, 10 * MIB + 1):
        lie = BlobRef(sha256=ref.sha256, size=size, chunks=ref.chunks, stored_size=ref.stored_size)
        with pytest.raises(PayloadError):
            blobs.get(lie)


def test_what_is_too_large_is_neither_stored_nor_read(redis: redis_py.Redis) -> None:
    small, large = BlobStore(redis, max_bytes=1000), BlobStore(redis)
    with pytest.raises(PayloadError, match="larger than the limit"):
        small.put(bytes(1001), ttl_s=60)
    assert redis.keys("ao:{*") == []
    with pytest.raises(PayloadError, match="larger than the limit"):
        small.get(large.put(bytes(1001), ttl_s=60))


def test_shards_keep_their_payloads_apart(redis: redis_py.Redis) -> None:
    ref = BlobStore(redis, 1).put(b"content", ttl_s=60)
    assert redis.keys("ao:{*") == [keys.blob(1, ref.sha256).encode()]
    with pytest.raises(PayloadError):
        BlobStore(redis, 0).get(ref)

"""Public keys in Redis: found there, believed only if the pinned operator has certified them."""

from __future__ import annotations

import errno
from base64 import b64decode, b64encode
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.errors import KeyringError, SignatureError
from orchestrator.keyring import folder
from orchestrator.keyring.files import locked
from orchestrator.keyring.registry import CACHE_S, REVOCATIONS, KeyRegistry, Keyring
from orchestrator.keyring.store import KeyStore
from orchestrator.redisdb import keys
from tests.clock import ManualClock
from tests.hosts import bring_keys


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> KeyStore:
    return KeyStore(tmp_path / "keys", "Ed25519", clock=clock)


@pytest.fixture
def registry(redis: redis_py.Redis, store: KeyStore, clock: ManualClock) -> KeyRegistry:
    return KeyRegistry(redis, store, clock=clock)


@pytest.fixture
def ring(store: KeyStore, registry: KeyRegistry, clock: ManualClock) -> Keyring:
    return Keyring(store, registry, clock=clock)


def second_host(redis: redis_py.Redis, folder: Path, clock: ManualClock) -> Keyring:
    store = KeyStore(folder, "Ed25519", clock=clock)
    return Keyring(store, KeyRegistry(redis, store, clock=clock), clock=clock)


def test_a_signer_is_known_to_everybody_before_it_signs(
    ring: Keyring, redis: redis_py.Redis, tmp_path: Path, clock: ManualClock
) -> None:
    signer = ring.signer("lead")
    found = second_host(redis, tmp_path / "router", clock).lookup(signer.key_id)
    assert (found.agent, found.algorithm) == ("lead", "Ed25519")
    assert found.verifies(signer.sign(b"octets"), b"octets")


@pytest.mark.parametrize("key_id", ["key_" + "0" * 32, REVOCATIONS, "", "\udc80"])
def test_an_unknown_key_is_nobodys(registry: KeyRegistry, key_id: str) -> None:
    registry.settle_operator()
    registry.revoke(registry.store.create("lead").key_id)
    assert registry.lookup(key_id) is None


def test_an_unknown_key_is_found_as_soon_as_it_is_registered(
    ring: Keyring, redis: redis_py.Redis, tmp_path: Path, clock: ManualClock
) -> None:
    ring.registry.settle_operator()
    record, router = ring.store.create("lead"), second_host(redis, tmp_path / "router", clock)
    assert router.lookup(record.key_id) is None
    ring.registry.register(record)
    clock.advance(CACHE_S)
    assert router.lookup(record.key_id) is not None


def test_a_key_of_this_folder_that_redis_has_lost_is_made_known_again(
    ring: Keyring, redis: redis_py.Redis, tmp_path: Path, clock: ManualClock
) -> None:
    key_id, router = ring.signer("lead").key_id, second_host(redis, tmp_path / "router", clock)
    redis.delete(keys.public_keys())
    clock.advance(CACHE_S)
    assert router.lookup(key_id) is None
    assert ring.lookup(key_id) is not None
    clock.advance(CACHE_S)
    assert router.lookup(key_id) is not None


def test_a_revocation_is_seen_elsewhere_within_the_stated_time(
    ring: Keyring, redis: redis_py.Redis, tmp_path: Path, clock: ManualClock
) -> None:
    key_id = ring.signer("lead").key_id
    router = second_host(redis, tmp_path / "router", clock)
    assert router.lookup(key_id).revoked_ms is None
    ring.registry.revoke(key_id)
    clock.advance(CACHE_S)
    assert router.lookup(key_id).revoked_ms is not None


def test_a_certificate_that_the_operator_has_not_issued_is_refused(
    registry: KeyRegistry, redis: redis_py.Redis, tmp_path: Path
) -> None:
    registry.settle_operator()
    mallory = KeyStore(tmp_path / "mallory", "Ed25519").create("lead")
    redis.hset(keys.public_keys(), mallory.key_id, mallory.pem)
    with pytest.raises(SignatureError, match="operator") as caught:
        registry.lookup(mallory.key_id)
    assert caught.value.args[0] == "key-not-certified"
    assert registry.list() == []


@pytest.mark.parametrize("place", [0.2, 0.4, 0.6, 0.8, 0.95])
def test_any_changed_octet_of_a_certificate_is_noticed(
    ring: Keyring, redis: redis_py.Redis, clock: ManualClock, place: float
) -> None:
    key_id = ring.signer("lead").key_id
    first, *lines, last = redis.hget(keys.public_keys(), key_id).decode().splitlines()
    octets = bytearray(b64decode("".join(lines)))
    octets[round(len(octets) * place)] ^= 1
    redis.hset(keys.public_keys(), key_id, f"{first}\n{b64encode(octets).decode()}\n{last}\n")
    clock.advance(CACHE_S)
    with pytest.raises(SignatureError, match="operator"):
        ring.lookup(key_id)


def test_the_operators_own_certificate_is_no_agents(ring: Keyring, redis: redis_py.Redis) -> None:
    operator = ring.registry.settle_operator()
    redis.hset(keys.public_keys(), operator.key_id, operator.pem)
    with pytest.raises(SignatureError, match="operator"):
        ring.lookup(operator.key_id)


def test_a_good_record_under_another_id_is_refused(
    ring: Keyring, redis: redis_py.Redis, store: KeyStore
) -> None:
    pem = store.certificate(ring.signer("lead").key_id).pem
    redis.hset(keys.public_keys(), "key_" + "1" * 32, pem)
    with pytest.raises(SignatureError, match="operator"):
        ring.lookup("key_" + "1" * 32)


@pytest.mark.parametrize("garbage", ["", "{}", "null", "[1]", "\x00", '{"serial": "x"}', "[" * 100_000])
def test_garbage_in_redis_is_refused_and_replaced_by_the_next_registration(
    registry: KeyRegistry, redis: redis_py.Redis, store: KeyStore, garbage: str
) -> None:
    registry.settle_operator()
    record = store.create("lead")
    redis.hset(keys.public_keys(), record.key_id, garbage)
    with pytest.raises(SignatureError, match="operator"):
        registry.lookup(record.key_id)
    registry.register(record)
    assert registry.lookup(record.key_id) is not None


def test_a_field_that_is_no_text_hides_no_other(ring: Keyring, redis: redis_py.Redis) -> None:
    key_id = ring.signer("lead").key_id
    redis.hset(keys.public_keys(), b"\xff", redis.hget(keys.public_keys(), key_id))
    assert ring.lookup("key_" + "0" * 32) is None
    assert [record.key_id for record in ring.registry.list()] == [key_id]
    assert [key.key_id for key in ring.registry.signing_keys("lead")] == [key_id]


def test_an_old_list_put_back_undoes_neither_a_revocation_nor_a_rotation(
    ring: Keyring, redis: redis_py.Redis, tmp_path: Path, clock: ManualClock
) -> None:
    """Whoever has seen a list refuses one with a lower number, across restarts; its writer puts its own back."""
    kept, stolen = ring.signer("kept").key_id, ring.signer("lead").key_id
    ring.registry.revoke(ring.signer("other").key_id)
    first = redis.hget(keys.public_keys(), REVOCATIONS)
    ring.registry.revoke(stolen)
    ring.store.rotate("kept")
    ring.registry.register_all()
    newest = redis.hget(keys.public_keys(), REVOCATIONS)
    assert second_host(redis, tmp_path / "router", clock).lookup(stolen).revoked_ms is not None
    for old in (first, b"garbage", None):
        redis.hdel(keys.public_keys(), REVOCATIONS)
        if old is not None:
            redis.hset(keys.public_keys(), REVOCATIONS, old)
        restarted = second_host(redis, tmp_path / "router", clock)
        assert restarted.lookup(stolen).revoked_ms is not None
        assert restarted.lookup(kept).retired_ms is not None
        restarted.registry.register_all()
        assert redis.hget(keys.public_keys(), REVOCATIONS) == newest


def test_a_list_of_another_operator_counts_for_nothing(
    ring: Keyring, redis: redis_py.Redis, tmp_path: Path, clock: ManualClock
) -> None:
    key_id = ring.signer("lead").key_id
    mallory = KeyStore(tmp_path / "mallory", "Ed25519")
    mallory.revoke(mallory.create("lead").key_id)
    redis.hset(keys.public_keys(), REVOCATIONS, mallory.revocations().pem)
    clock.advance(CACHE_S)
    assert ring.lookup(key_id).revoked_ms is None


def test_what_two_hosts_with_the_operators_key_revoked_at_once_is_all_revoked(
    ring: Keyring, redis: redis_py.Redis, tmp_path: Path, clock: ManualClock
) -> None:
    ids = [ring.signer(name).key_id for name in ("lead", "other", "third")]
    there = second_host(redis, tmp_path / "there", clock)
    bring_keys(ring.store, there.store, with_operator=True)
    ring.store.revoke(ids[0])
    there.store.revoke(ids[1])
    there.store.revoke(ids[2])
    for each in (ring, there, ring):
        each.registry.register_all()
    clock.advance(CACHE_S)
    for each in (ring, there, second_host(redis, tmp_path / "router", clock)):
        assert all(each.lookup(key_id).revoked_ms is not None for key_id in ids)
    assert ring.store.revocations() == there.store.revocations()


def test_a_folder_that_cannot_be_written_to_obeys_what_it_hears(
    ring: Keyring, redis: redis_py.Redis, tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_id, router = ring.signer("lead").key_id, second_host(redis, tmp_path / "router", clock)
    ring.registry.revoke(ring.signer("other").key_id)
    assert router.lookup(key_id).revoked_ms is None
    old = redis.hget(keys.public_keys(), REVOCATIONS)
    ring.registry.revoke(key_id)

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EROFS, "read-only")

    monkeypatch.setattr(folder, "write_whole", refuse)
    for _ in range(2):
        clock.advance(CACHE_S)
        assert router.lookup(key_id).revoked_ms is not None
        redis.hset(keys.public_keys(), REVOCATIONS, old)


def test_keys_are_registered_again_when_redis_lost_them(
    ring: Keyring, redis: redis_py.Redis, clock: ManualClock
) -> None:
    key_id = ring.signer("lead").key_id
    redis.flushall()
    clock.advance(31)
    assert ring.signer("lead").key_id == key_id
    assert ring.lookup(key_id) is not None


def test_what_was_revoked_while_no_stack_ran_is_known_when_one_starts(
    ring: Keyring, redis: redis_py.Redis, store: KeyStore, clock: ManualClock
) -> None:
    key_id = ring.signer("lead").key_id
    store.revoke(key_id)
    Keyring(store, KeyRegistry(redis, store, clock=clock), clock=clock).signer("other")
    clock.advance(CACHE_S)
    assert ring.lookup(key_id).revoked_ms is not None


def test_a_host_with_imported_keys_learns_that_one_was_rotated(
    ring: Keyring, redis: redis_py.Redis, store: KeyStore, tmp_path: Path, clock: ManualClock
) -> None:
    old = ring.signer("lead").key_id
    there = second_host(redis, tmp_path / "there", clock)
    bring_keys(store, there.store, "lead")
    assert there.signer("lead").key_id == old
    store.rotate("lead", overlap_s=3600)
    ring.signer("lead")
    ring.registry.register_all()
    clock.advance(31)
    assert there.signer("lead").key_id == old
    assert there.store.certificate(old).retired_ms == clock.now_ms() - 31_000 + 3_600_000
    clock.advance(3600)
    with pytest.raises(KeyringError, match="rotated out"):
        there.signer("lead")
    bring_keys(store, there.store, "lead")
    assert there.signer("lead").key_id == store.signer("lead").key_id != old


def test_a_host_with_imported_keys_stops_using_one_that_was_revoked(
    ring: Keyring, redis: redis_py.Redis, store: KeyStore, tmp_path: Path, clock: ManualClock
) -> None:
    key_id = ring.signer("lead").key_id
    there = second_host(redis, tmp_path / "there", clock)
    bring_keys(store, there.store, "lead")
    there.signer("lead")
    ring.registry.revoke(key_id)
    clock.advance(31)
    with pytest.raises(KeyringError, match="operator's host"):
        there.signer("lead")


def test_a_later_data_folder_trusts_the_operator_of_the_redis_that_it_finds(
    ring: Keyring, redis: redis_py.Redis, store: KeyStore, tmp_path: Path, clock: ManualClock
) -> None:
    ring.signer("lead")
    later = second_host(redis, tmp_path / "later", clock)
    with pytest.raises(KeyringError, match="orchestra keys import"):
        later.signer("reviewer")
    assert later.store.operator.pem == store.operator.pem


def test_the_pin_outlives_a_redis_that_names_another_operator(
    ring: Keyring, redis: redis_py.Redis, store: KeyStore, tmp_path: Path, clock: ManualClock
) -> None:
    ring.signer("lead")
    mallory = KeyStore(tmp_path / "mallory", "Ed25519")
    mallory.create("lead")
    redis.set(keys.operator_key(), mallory.operator.pem)
    with pytest.raises(KeyringError, match="another operator"):
        second_host(redis, store.folder, clock).signer("lead")


def test_a_folder_that_certified_nothing_gives_way_to_the_operator_of_the_redis(
    ring: Keyring, redis: redis_py.Redis, store: KeyStore, tmp_path: Path, clock: ManualClock
) -> None:
    ring.signer("lead")
    late = second_host(redis, tmp_path / "late", clock)
    late.store.folder.mkdir()
    late.store.operator.create()
    late.registry.settle_operator()
    assert late.store.operator.pem == store.operator.pem
    assert late.store.operator.private() is None


def test_an_encryption_key_is_made_where_the_agent_is_served_and_found_elsewhere(
    ring: Keyring, redis: redis_py.Redis, tmp_path: Path, clock: ManualClock
) -> None:
    sender = second_host(redis, tmp_path / "sender", clock)
    ring.signer("lead")
    with pytest.raises(KeyringError, match="--use encrypt"):
        sender.recipient("lead")
    key_id, public = ring.recipient("lead")
    assert sender.recipient("lead")[0] == key_id
    assert ring.decryption_key(key_id).public_key() == public
    assert sender.decryption_key(key_id) is None


def test_a_rotated_encryption_key_still_decrypts_and_is_not_encrypted_to(
    ring: Keyring, store: KeyStore
) -> None:
    ring.signer("lead")
    old = ring.recipient("lead")[0]
    new = store.rotate("lead", use="encrypt", overlap_s=0).key_id
    ring.registry.register_all()
    assert ring.recipient("lead")[0] == new
    assert ring.decryption_key(old) is not None


def test_who_starts_with_keys_that_all_know_does_not_wait_for_who_has_the_folder_locked(
    ring: Keyring, store: KeyStore, redis: redis_py.Redis, clock: ManualClock
) -> None:
    """A process that was frozen with the lock in its hands must not keep new workers from starting."""
    made = ring.signer("lead")
    with locked(store.folder):
        again = KeyStore(store.folder, "Ed25519", clock=clock)
        found = Keyring(again, KeyRegistry(redis, again, clock=clock), clock=clock).signer("lead")
    assert found.key_id == made.key_id

"""Codes and signatures that prove who wrote something for whom."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.errors import KeyringError, SignatureError
from orchestrator.keyring.codes import Codes, SealedTexts
from orchestrator.keyring.registry import KeyRegistry, Keyring
from orchestrator.keyring.store import KeyStore
from orchestrator.redisdb import keys
from tests.clock import ManualClock
from tests.hosts import bring_keys

OCTETS = b"all is well"


def keyring(redis: redis_py.Redis, folder: Path, algorithm: str = "Ed25519") -> Keyring:
    store = KeyStore(folder, algorithm)
    return Keyring(store, KeyRegistry(redis, store, cache_s=0))


@pytest.fixture
def here(redis: redis_py.Redis, tmp_path: Path) -> Keyring:
    """The operator's host, with keys of three agents."""
    ring = keyring(redis, tmp_path / "here")
    for name in ("lead", "echo", "mallory"):
        ring.signer(name)
    return ring


def test_each_reader_can_tell_and_nobody_else(here: Keyring) -> None:
    codes = Codes(here)
    proof = codes.make(OCTETS, by="echo", to=["lead", "operator", "lead"])
    # The operator had no key yet: for it there is a signature, which everybody can check.
    assert proof.count("=") == 2
    here.signer("operator")
    codes = Codes(here)
    proof = codes.make(OCTETS, by="echo", to=["lead", "operator", "lead"])
    assert proof.count("=") == 2
    assert "*" not in proof
    for reader in ("lead", "operator"):
        assert codes.writer(OCTETS, proof, reader=reader) == "echo"
    for reader in ("echo", "mallory"):
        with pytest.raises(SignatureError) as caught:
            codes.writer(OCTETS, proof, reader=reader)
        assert caught.value.args[0] == "signature-invalid"


def test_nothing_of_it_can_be_changed(here: Keyring) -> None:
    """Neither what was written, nor the proof; and a proof does not fit the way back."""
    codes = Codes(here)
    proof = codes.make(OCTETS, by="echo", to=["lead"])
    sender, code = proof.split(" ")
    reader, _, value = code.partition("=")
    back = codes.make(OCTETS, by="lead", to=["echo"])
    forged = codes.make(OCTETS, by="mallory", to=["lead"])
    for octets, text in (
        (OCTETS + b"!", proof),
        (OCTETS, ""),
        (OCTETS, sender),
        (OCTETS, f"{sender} {reader}={value[:-2]}"),
        (OCTETS, f"{sender} {reader}=\u00e9"),
        (OCTETS, f"{sender} *={value}"),
        (OCTETS, f"{sender} *=%"),
        (OCTETS, f"{reader} {reader}={value}"),
        (OCTETS, f"{sender} {back.partition(' ')[2]}"),
        (OCTETS, f"{sender} {reader}={back.rpartition('=')[2]}"),
        (OCTETS, f"{sender} {forged.partition(' ')[2]}"),
        (OCTETS, f"key_{'0' * 32} {code}"),
    ):
        with pytest.raises(SignatureError):
            codes.writer(octets, text, reader="lead")
    assert codes.writer(OCTETS, forged, reader="lead") == "mallory"


def test_keys_of_the_other_kind_sign(redis: redis_py.Redis, tmp_path: Path) -> None:
    """RSA keys share no secret: a signature takes the place of the code."""
    ring = keyring(redis, tmp_path / "rsa", "RSA-SHA256")
    ring.signer("lead")
    codes = Codes(ring)
    proof = codes.make(OCTETS, by="echo", to=["lead"])
    assert "*=" in proof
    assert codes.writer(OCTETS, proof, reader="lead") == "echo"
    with pytest.raises(SignatureError):
        codes.writer(b"send money", proof, reader="lead")


def test_a_rotation_of_either_key_loses_nothing_and_a_revocation_counts(here: Keyring) -> None:
    clock = ManualClock()
    codes = Codes(here, clock=clock)
    before = codes.make(OCTETS, by="echo", to=["lead"])
    for name in ("lead", "echo"):
        here.store.rotate(name)
        here.registry.register_all()
    after = Codes(here).make(OCTETS, by="echo", to=["lead"])
    assert after.count("=") == 2  # for the reader's host, which may not have the new key yet
    for proof in (before, after):
        assert codes.writer(OCTETS, proof, reader="lead") == "echo"
    here.registry.revoke(before.split(" ")[0])
    clock.advance(1.5)
    with pytest.raises(SignatureError) as caught:
        codes.writer(OCTETS, before, reader="lead")
    assert caught.value.args[0] == "key-revoked"
    assert codes.writer(OCTETS, after, reader="lead") == "echo"


def test_a_reader_whose_key_was_revoked_is_written_to_under_its_new_one(here: Keyring) -> None:
    clock = ManualClock()
    codes = Codes(here, clock=clock)
    old = codes.make(OCTETS, by="echo", to=["lead"]).split(" ")[1].partition("=")[0]
    here.registry.revoke(old)
    here.signer("lead")
    clock.advance(1.5)
    proof = codes.make(OCTETS, by="echo", to=["lead"])
    assert old not in proof
    assert codes.writer(OCTETS, proof, reader="lead") == "echo"


def test_two_hosts_understand_each_other_and_a_host_without_the_key_makes_none(
    here: Keyring, redis: redis_py.Redis, tmp_path: Path
) -> None:
    there = keyring(redis, tmp_path / "there")
    bring_keys(here.store, there.store, "lead")
    proof = Codes(here).make(OCTETS, by="echo", to=["lead"])
    assert Codes(there).writer(OCTETS, proof, reader="lead") == "echo"
    back = Codes(there).make(OCTETS, by="lead", to=["echo"])
    assert Codes(here).writer(OCTETS, back, reader="echo") == "lead"
    with pytest.raises(KeyringError):
        Codes(there).make(OCTETS, by="echo", to=["lead"])


def test_an_overwritten_record_of_a_reader_stops_neither_proofs_nor_sealed_texts(
    here: Keyring, redis: redis_py.Redis
) -> None:
    """Whoever can write to Redis must not be able to make commits or readings fail."""
    clock = ManualClock()
    codes = Codes(here, clock=clock)
    encryption = SealedTexts(here, codes, recipient=here.recipient)
    sealed = encryption.seal("a secret", label="ses_1", by="echo", to=("lead",))
    signer, reader = codes.make(OCTETS, by="echo", to=["lead"]).partition("=")[0].split(" ")
    redis.hset(keys.public_keys(), reader, "garbage")
    clock.advance(1.5)
    assert reader not in codes.make(OCTETS, by="echo", to=["lead"])
    redis.hset(keys.public_keys(), signer, "garbage")
    parts = re.fullmatch(r"\{sealed:1:(.*):(.*):(.*):(.*)\}", sealed)
    assert encryption.open(*parts.groups()) is None

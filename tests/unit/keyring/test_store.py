"""The private keys of a data folder: made once, kept private, shared between processes, moved to other hosts."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key

from orchestrator.errors import KeyringError
from orchestrator.keyring import algorithms, claims, files
from orchestrator.keyring.claims import Purpose
from orchestrator.keyring.store import KeyStore
from tests.claims import forged
from tests.clock import ManualClock
from tests.hosts import PASSPHRASE, bring_keys


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@contextmanager
def interrupted(before: int) -> Iterator[None]:
    """What this block does ends before the file of that number is put in its place."""
    left, replace = before, Path.replace

    def count(path: Path, target: Path) -> Path:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        return replace(path, target)

    with pytest.MonkeyPatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "replace", count)
        yield


def test_a_key_is_made_on_first_use_and_is_the_same_ever_after(store: KeyStore) -> None:
    first = store.signer("lead")
    again = KeyStore(store.folder).signer("lead")
    assert (first.agent, first.algorithm) == ("lead", "Ed25519")
    assert again.key_id == first.key_id
    key = store.lookup(first.key_id)
    assert key.verifies(again.sign(b"octets"), b"octets")


@pytest.mark.parametrize(("algorithm", "octets"), [("Ed25519", 64), ("RSA-SHA256", 256)])
def test_a_signature_of_another_length_is_none(tmp_path: Path, algorithm: str, octets: int) -> None:
    store = KeyStore(tmp_path / "keys", algorithm)
    signer = store.signer("lead")
    key, signature = store.lookup(signer.key_id), signer.sign(b"octets")
    assert (signer.algorithm, len(signature)) == (algorithm, octets)
    assert key.verifies(signature, b"octets")
    assert not any(key.verifies(s, b"octets") for s in (b"", signature[:-1], signature + b"o", signature * 2))
    assert not key.verifies(signature + b"o", b"ctets")


def test_nobody_else_can_read_what_the_folder_holds(store: KeyStore) -> None:
    store.signer("lead")
    store.create("lead", "encrypt")
    folders = [store.folder, *(path for path in store.folder.rglob("*") if path.is_dir())]
    assert {mode(path) for path in folders} == {0o700}
    assert {mode(path) for path in store.folder.rglob("*") if path.is_file()} == {0o600}


def test_a_folder_that_was_open_to_others_is_closed(store: KeyStore) -> None:
    store.folder.mkdir(mode=0o755)
    store.signer("lead")
    assert mode(store.folder) == 0o700


def test_processes_that_come_at_once_get_one_key(store: KeyStore) -> None:
    code = (
        "import sys; from pathlib import Path; from orchestrator.keyring.store import KeyStore;"
        "sys.stdin.readline(); print(KeyStore(Path(sys.argv[1]), 'Ed25519').signer('lead').key_id)"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(store.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        for _ in range(3)
    ]
    ids = {process.communicate("go\n", timeout=50)[0].strip() for process in processes}
    assert len(ids) == 1
    assert len(store.list()) == 1


@pytest.mark.parametrize("written", range(5))
def test_a_first_use_that_is_interrupted_is_repeated(store: KeyStore, written: int) -> None:
    """Were the operator trusted before its private key is on the disk, nobody could ever make a key here."""
    with interrupted(written):
        store.signer("lead")
    signer = KeyStore(store.folder).signer("lead")
    key = store.lookup(signer.key_id)
    assert key.verifies(signer.sign(b"octets"), b"octets")


@pytest.mark.parametrize("written", range(5))
def test_a_rotation_that_is_interrupted_leaves_no_old_key_current(store: KeyStore, written: int) -> None:
    store.signer("lead")
    with interrupted(written):
        store.rotate("lead")
    assert store.signer("lead").sign(b"octets")
    new = store.rotate("lead")
    assert [record.key_id for record in store.list() if record.current] == [new.key_id]


def test_threads_that_come_at_once_get_one_key(store: KeyStore) -> None:
    ids: list[str] = []
    threads = [threading.Thread(target=lambda: ids.append(store.signer("lead").key_id)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 8
    assert len(set(ids)) == 1


@pytest.mark.parametrize("agent", ["../../etc/passwd", "überprüfer", "名前", "a b", "x" * 5000, "operator"])
def test_any_name_that_a_message_can_carry_has_a_key(store: KeyStore, agent: str) -> None:
    assert store.signer(agent).key_id == store.signer(agent).key_id
    assert {path.parent for path in store.folder.rglob("*.pem")} == {store.folder}


def test_names_that_differ_in_case_only_have_different_keys(store: KeyStore) -> None:
    assert store.signer("Lead").key_id != store.signer("lead").key_id


@pytest.mark.parametrize("agent", ["", "  ", " lead", "lead ", "a\tb", "a  b"])
def test_a_name_that_xml_would_not_give_back_is_refused(store: KeyStore, agent: str) -> None:
    with pytest.raises(KeyringError, match="name"):
        store.signer(agent)


def test_a_rotation_is_noticed_by_every_process_at_its_next_signature(store: KeyStore) -> None:
    other = KeyStore(store.folder)
    before = other.signer("lead")
    record = store.rotate("lead")
    assert record.key_id != before.key_id
    assert store.signer("lead").key_id == other.signer("lead").key_id == record.key_id


def test_a_rotated_key_may_sign_for_the_overlap_and_no_longer(tmp_path: Path) -> None:
    clock = ManualClock()
    store = KeyStore(tmp_path / "keys", "Ed25519", clock=clock)
    old = store.signer("lead").key_id
    store.rotate("lead", overlap_s=90)
    record = store.certificate(old)
    assert record.retired_ms == clock.now_ms() + 90_000
    assert record.revoked_ms is None


def test_a_revoked_key_is_replaced_at_the_next_use(store: KeyStore) -> None:
    old = store.signer("lead").key_id
    store.revoke(old)
    assert store.signer("lead").key_id != old
    assert store.certificate(old).revoked_ms is not None


def test_revoking_twice_is_revoking_once(store: KeyStore) -> None:
    key_id = store.signer("lead").key_id
    assert store.revoke(key_id) == store.revoke(key_id)


@pytest.mark.parametrize("key_id", ["key_" + "0" * 32, "../operator", "nonsense"])
def test_an_unknown_key_cannot_be_revoked(store: KeyStore, key_id: str) -> None:
    store.signer("lead")
    with pytest.raises(KeyringError, match="orchestra keys list"):
        store.revoke(key_id)


def test_a_second_host_signs_with_imported_keys_and_makes_none(store: KeyStore, tmp_path: Path) -> None:
    ours = store.signer("lead")
    store.signer("secret")
    there = KeyStore(tmp_path / "there")
    bring_keys(store, there, "lead")
    assert there.signer("lead").key_id == ours.key_id
    assert [record.agent for record in there.list()] == ["lead"]
    with pytest.raises(KeyringError, match="operator's host"):
        there.signer("secret")


def test_a_host_that_got_the_operators_key_makes_keys_too(store: KeyStore, tmp_path: Path) -> None:
    store.signer("lead")
    there = KeyStore(tmp_path / "there", "Ed25519")
    bring_keys(store, there, with_operator=True)
    there.signer("new")
    store.absorb(there.list())
    assert {record.agent for record in store.list()} == {"lead", "new"}


def test_private_keys_travel_closed_by_a_passphrase(store: KeyStore, tmp_path: Path) -> None:
    key_id = store.signer("lead").key_id
    files = store.export(passphrase=PASSPHRASE)
    assert sorted(files) == sorted([f"{key_id}.p12", "trust.pem"])
    there = KeyStore(tmp_path / "there")
    for wrong in (None, b"another passphrase"):
        with pytest.raises(KeyringError, match="say the right passphrase"):
            there.import_(files.values(), passphrase=wrong)
    assert there.list() == []
    there.import_(files.values(), passphrase=PASSPHRASE)
    assert there.signer("lead").key_id == key_id
    with pytest.raises(KeyringError, match="too short"):
        store.export(passphrase=b"sesame")


def test_an_export_that_was_tampered_with_changes_nothing(store: KeyStore, tmp_path: Path) -> None:
    """The passphrase says who the operator is, and he has signed all the rest: nothing can be put in or exchanged."""
    store.signer("lead")
    store.keep_agent_record(
        "lead", claims.sign({"name": "lead"}, Purpose.AGENT, store.operator.signer()).encode()
    )
    files = store.export(passphrase=PASSPHRASE)
    (name,) = (name for name in files if name.endswith(".p12"))
    stranger, there = KeyStore(tmp_path / "stranger"), KeyStore(tmp_path / "there")
    stranger.revoke(stranger.signer("lead").key_id)
    stranger.signer("lead")
    theirs = stranger.export(passphrase=b"a passphrase of theirs")
    # OpenSSL reads a file without a MAC under any passphrase.
    key, certificate = stranger.list()[-1], tmp_path / "open.p12"
    openssl = ["openssl", "pkcs12", "-export", "-nomac", "-passout", "pass:"]
    unencrypted = ["-keypbe", "NONE", "-certpbe", "NONE"]
    sources = ["-inkey", str(stranger.file(key.key_id, "pem")), "-in", str(stranger.file(key.key_id, "crt"))]
    chain = ["-certfile", str(stranger.folder / "operator.crt"), "-out", str(certificate)]
    subprocess.run([*openssl, *unencrypted, *sources, *chain], check=True, timeout=60)
    flipped = bytearray(files[name])
    flipped[len(flipped) // 2] ^= 1
    others = {"trust.pem": theirs["trust.pem"], "agents.jws": b""}
    bad: dict[str, dict[str, bytes]] = {
        "another operator beside": {"trust.pem": theirs["trust.pem"]},
        "another operator in the place of ours": {**others, name: b""},
        "a certificate of another": {"trust.pem": files["trust.pem"] + key.pem.encode()},
        "a list of another": {"trust.pem": files["trust.pem"] + stranger.revocations().pem.encode()},
        "an agent's record of another": {
            "agents.jws": forged(files["agents.jws"].strip(), role="lead").encode()
        },
        "a file under another passphrase": {"more.p12": next(iter(theirs.values()))},
        "a file without a MAC": {**others, name: certificate.read_bytes()},
        "an octet": {name: bytes(flipped)},
        "no file": {"more": b"x"},
    }
    for what, changes in bad.items():
        altered = [content for content in {**files, **changes}.values() if content]
        with pytest.raises(KeyringError):
            there.import_(altered, passphrase=PASSPHRASE)
        assert there.operator.pem is None, what
        assert there.list() == [], what


def test_an_export_of_another_operator_is_refused(store: KeyStore, tmp_path: Path) -> None:
    store.signer("lead")
    there = KeyStore(tmp_path / "there", "Ed25519")
    there.signer("mine")
    with pytest.raises(KeyringError, match="another operator"):
        bring_keys(store, there)
    assert [record.agent for record in there.list()] == ["mine"]


def test_a_trust_bundle_alone_verifies(store: KeyStore, tmp_path: Path) -> None:
    signer = store.signer("lead")
    there = KeyStore(tmp_path / "there")
    there.import_([store.trust_bundle(["lead"])])
    found = there.lookup(signer.key_id)
    assert found.verifies(signer.sign(b"octets"), b"octets")
    with pytest.raises(KeyringError, match="operator's host"):
        there.signer("lead")
    for content in (b"", b"{}", b"0", b"0\x80", b"\xff\xfe", b"[" * 100_000, b"e30.e30.e30"):
        with pytest.raises(KeyringError):
            there.import_([content])


def test_a_public_key_of_an_unknown_kind_is_a_clean_refusal(store: KeyStore) -> None:
    """SubjectPublicKeyInfo with the algorithm 1.2.3."""
    pem = b"-----BEGIN PUBLIC KEY-----\nMAowBAYCKgMDAgAA\n-----END PUBLIC KEY-----\n"
    with pytest.raises(KeyringError, match="a public key cannot be read: Unknown key type"):
        store.import_([pem], agent="partner")


def test_an_old_export_does_not_undo_a_revocation(store: KeyStore) -> None:
    key_id = store.signer("lead").key_id
    before = store.export(passphrase=PASSPHRASE)
    store.revoke(key_id)
    store.import_(before.values(), passphrase=PASSPHRASE)
    assert store.certificate(key_id).revoked_ms is not None
    assert store.signer("lead").key_id != key_id


def test_an_agents_own_private_key_can_be_given(store: KeyStore) -> None:
    old = store.signer("lead").key_id
    key = algorithms.generate("RSA-SHA256")
    (record,) = store.import_([algorithms.private_pem(key)], agent="lead")
    signer = store.signer("lead")
    assert signer.key_id == record.key_id == algorithms.key_id(key.public_key())
    assert signer.algorithm == "RSA-SHA256"
    retired = store.certificate(old)
    assert retired.retired_ms is not None


def test_a_public_key_alone_verifies_and_never_signs(store: KeyStore) -> None:
    key = algorithms.generate("Ed25519")
    (record,) = store.import_([algorithms.public_pem(key.public_key()).encode()], agent="foreign")
    trusted = store.lookup(record.key_id)
    assert trusted.verifies(algorithms.signing(key)(b"octets"), b"octets")
    assert store.current("foreign") is None


def test_a_key_belongs_to_one_agent(store: KeyStore) -> None:
    pem = algorithms.private_pem(algorithms.generate("Ed25519"))
    store.import_([pem], agent="lead")
    with pytest.raises(KeyringError, match="'lead'"):
        store.import_([pem], agent="other")


def test_a_pem_key_needs_an_owner(store: KeyStore) -> None:
    with pytest.raises(KeyringError, match="--agent"):
        store.import_([algorithms.private_pem(algorithms.generate("Ed25519"))])


def test_a_short_rsa_key_is_refused(store: KeyStore) -> None:
    weak = generate_private_key(65537, 1024)
    with pytest.raises(KeyringError, match="1024 bits is too short"):
        store.import_([algorithms.private_pem(weak)], agent="lead")


def test_an_unknown_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyringError, match="DSA"):
        KeyStore(tmp_path / "keys", "DSA").signer("lead")


def test_the_encryption_key_is_another_than_the_signing_key(store: KeyStore) -> None:
    signing, encryption = store.create("lead"), store.create("lead", "encrypt")
    assert signing.key_id != encryption.key_id
    assert encryption.algorithm == "RSA-OAEP"
    assert store.lookup(encryption.key_id) is None


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    files.write_whole(path, b"old")

    def crash(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(files.os, "fsync", crash)
    with pytest.raises(OSError, match="disk full"):
        files.write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]

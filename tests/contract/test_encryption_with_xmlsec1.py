"""The `xmlsec1` program decrypts what we encrypt, and we decrypt what it encrypts."""

from __future__ import annotations

import subprocess
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest
from lxml import etree

from orchestrator.envelope import codec, encryption
from orchestrator.envelope.encryption import Recipient
from orchestrator.envelope.model_values import NAMESPACE
from orchestrator.envelope.parse import parse
from orchestrator.envelope.sealing import Encrypter, Opener
from orchestrator.envelope.signature import sign_message
from orchestrator.envelope.validate import check
from orchestrator.keyring import algorithms
from orchestrator.keyring.store import KeyStore
from tests.messages import NOW_MS, message

BOUND = encryption.BoundTo(message_id="m", conversation="c", sender="lead", recipient="reviewer")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> KeyStore:
    return KeyStore(tmp_path_factory.mktemp("keys"), "Ed25519")


@pytest.fixture(scope="module")
def recipient(store: KeyStore) -> Recipient:
    record = store.create("reviewer", "encrypt")
    return Recipient(record.key_id, record.public)


def xmlsec1(program: Callable[[str], str], folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [program("xmlsec1"), *arguments], cwd=folder, capture_output=True, check=False, timeout=30
    )


def test_xmlsec1_decrypts_the_body_of_a_signed_message(
    program: Callable[[str], str], store: KeyStore, recipient: Recipient, tmp_path: Path, no_blobs: object
) -> None:
    encrypter = Encrypter(no_blobs, compress_above=10_000, claim_check_above=10_000, blob_ttl_s=60)
    secret = message("the password is <swordfish> & \u4e2d")
    octets = sign_message(encrypter.seal(secret, recipient=recipient), store.signer("lead"), now_ms=NOW_MS)
    assert b"swordfish" not in octets
    assert check(octets).valid
    (tmp_path / "message.xml").write_bytes(octets)
    done = xmlsec1(
        program, tmp_path, "--decrypt",
        f"--privkey-pem:{recipient.key_id}", str(store.folder / f"{recipient.key_id}.pem"), "message.xml",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    opened = parse(done.stdout).root
    plain = parse(codec.encode(secret)).root
    assert etree.tostring(opened[1], method="c14n") == etree.tostring(plain[1], method="c14n")


def test_xmlsec1_with_another_key_gets_nothing(
    program: Callable[[str], str], store: KeyStore, recipient: Recipient, tmp_path: Path
) -> None:
    other = store.create("other", "encrypt")
    body = codec.encode_body(message("secret").body)
    xml = encryption.encrypt(body, recipient, bound=BOUND)
    (tmp_path / "message.xml").write_text(xml)
    done = xmlsec1(
        program, tmp_path, "--decrypt",
        f"--privkey-pem:{recipient.key_id}", str(store.folder / f"{other.key_id}.pem"), "message.xml",
    )  # fmt: skip
    assert done.returncode != 0
    assert b"secret" not in done.stdout


def test_we_decrypt_what_xmlsec1_encrypted_with_the_documented_template(
    program: Callable[[str], str], store: KeyStore, recipient: Recipient, tmp_path: Path, no_blobs: object
) -> None:
    plain = message("from another language")
    header = plain.header
    bound = encryption.BoundTo(
        message_id=header.message_id,
        conversation=header.message_id,
        sender=header.sender.agent_name,
        recipient=header.recipient.agent_name,
    )
    template = encryption.TEMPLATE.format(label=bound.label, key_id=recipient.key_id, key="", content="")
    said = f"agent-message body 2\n{bound.message_id}\n{bound.conversation}\nlead\nreviewer"
    assert f"<xenc:OAEPparams>{b64encode(said.encode()).decode()}</xenc:OAEPparams>" in template
    (tmp_path / "template.xml").write_text(template)
    (tmp_path / "public.pem").write_text(algorithms.public_pem(recipient.public))
    octets = codec.encode(plain)
    (tmp_path / "message.xml").write_bytes(octets)
    done = xmlsec1(
        program, tmp_path, "--encrypt", "--pubkey-pem:" + recipient.key_id, "public.pem",
        "--session-key", "aes-256", "--xml-data", "message.xml",
        "--node-name", f"{NAMESPACE}:body", "template.xml",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    sealed = check(done.stdout)
    assert sealed.valid, sealed.findings
    assert b"another language" not in done.stdout
    opener = Opener(no_blobs, find_key=store.private_key)
    assert opener.open(sealed.message).body == plain.body


@pytest.fixture
def no_blobs() -> object:
    """Nothing here is large enough to be stored."""
    return None

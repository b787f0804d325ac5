"""Anyone can check a signature with `xmllint` and `openssl` alone: the recipe of docs/security.md, as it stands there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.envelope.signature import sign, sign_message
from orchestrator.keyring import algorithms
from orchestrator.keyring.store import KeyStore
from tests.messages import NOW_MS, message

ALGORITHMS = ("RSA-SHA256", "Ed25519")


def recipe(root: Path, algorithm: str) -> str:
    """The shell commands of the documentation for one algorithm."""
    text = (root / "docs" / "security.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    common = next(block for block in blocks if "octets.xml" in block and "xmllint" in block)
    last = next(block for block in blocks if "openssl" in block and f"# {algorithm}" in block)
    return f"set -e\n{common}\n{last}"


@pytest.fixture
def check(root: Path, tmp_path: Path, program: Callable[[str], str]) -> Callable[..., bool]:
    for name in ("xmllint", "openssl", "base64", "sed"):
        program(name)

    def run(octets: bytes, public_pem: str, algorithm: str) -> bool:
        (tmp_path / "message.xml").write_bytes(octets)
        (tmp_path / "public.pem").write_text(public_pem)
        done = subprocess.run(
            ["sh", "-c", recipe(root, algorithm)], cwd=tmp_path, capture_output=True, check=False
        )
        return done.returncode == 0

    return run


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_xmllint_and_openssl_accept_our_signature_and_notice_a_change(
    check: Callable[..., bool], tmp_path: Path, algorithm: str
) -> None:
    store = KeyStore(tmp_path / "keys", algorithm)
    signer = store.signer("lead")
    octets = sign_message(message("<hello> & \u4e2d\n", recipient="réviseur"), signer, now_ms=NOW_MS)
    public_pem = algorithms.public_pem(store.certificate(signer.key_id).public)
    assert check(octets, public_pem, algorithm)
    assert check(b'<?xml version="1.0"?>\n' + octets + b"\n", public_pem, algorithm)
    assert not check(octets.replace(b"hello", b"hallo"), public_pem, algorithm)
    assert not check(octets.replace(b"<signer>lead", b"<signer>leaf"), public_pem, algorithm)
    other = algorithms.public_pem(store.certificate(store.signer("other").key_id).public)
    assert not check(octets, other, algorithm)


def test_a_foreign_document_that_we_signed_passes_too(check: Callable[..., bool], tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys", "Ed25519")
    signer = store.signer("lead")
    plain = sign_message(message("x"), signer, now_ms=1)
    external = plain.replace(b"<", b"<ao:").replace(b"<ao:/", b"</ao:").replace(b"xmlns=", b"xmlns:ao=")
    octets = sign(b"<!-- by hand -->" + external, signer, now_ms=NOW_MS)
    assert check(octets, algorithms.public_pem(store.certificate(signer.key_id).public), "Ed25519")


def test_a_key_id_is_the_digest_of_the_key(program: Callable[[str], str], tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys", "Ed25519")
    record = store.create("lead")
    (tmp_path / "public.pem").write_text(algorithms.public_pem(record.public))
    der = subprocess.run(
        [program("openssl"), "pkey", "-pubin", "-in", str(tmp_path / "public.pem"), "-outform", "DER"],
        capture_output=True,
        check=True,
    ).stdout
    digest = subprocess.run(
        [program("openssl"), "dgst", "-sha256"], input=der, capture_output=True, check=True
    ).stdout
    assert digest.decode().split("= ")[1].strip().startswith(record.key_id.removeprefix("key_"))

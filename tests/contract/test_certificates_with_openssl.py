"""What the operator has certified, as `openssl` shows and verifies it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.keyring import claims
from orchestrator.keyring.claims import Purpose
from orchestrator.keyring.store import KeyStore
from tests.clock import ManualClock
from tests.hosts import PASSPHRASE

Openssl = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    """The keys of a specialist, which signs and can be encrypted to."""
    store = KeyStore(tmp_path / "keys", clock=ManualClock())
    store.create("operator")
    record = claims.sign({"name": "clerk", "role": "specialist"}, Purpose.AGENT, store.operator.signer())
    store.keep_agent_record("clerk", record.encode())
    store.create("clerk")
    store.create("clerk", "encrypt")
    return store


@pytest.fixture
def openssl(store: KeyStore, program: Callable[[str], str]) -> Openssl:
    def run(*arguments: str, fails: bool = False) -> str:
        done = subprocess.run(
            [program("openssl"), *arguments],
            cwd=store.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode != 0) is fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_openssl_shows_who_a_key_is_for(store: KeyStore, openssl: Openssl) -> None:
    """Agent, role, use, id and times stand where every tool looks for them."""
    signing, encryption = (store.create("clerk", use) for use in ("sign", "encrypt"))
    shown = openssl("x509", "-noout", "-text", "-in", f"{signing.key_id}.crt")
    number = signing.key_id.removeprefix("key_")
    for expected in (
        "CN = clerk, OU = specialist",
        f"CN = operator {store.operator.authority().key_id}",
        ":".join(number[at : at + 2] for at in range(0, 32, 2)),
        "Not Before: Nov 14 22:13:20 2023 GMT",
        "Not After : Dec 31 23:59:59 9999 GMT",
        "CA:FALSE",
        "Digital Signature",
        "Signature Algorithm: ED25519",
    ):
        assert expected in shown, shown
    assert int(openssl("x509", "-noout", "-serial", "-in", f"{signing.key_id}.crt").strip()[7:], 16) == int(
        number, 16
    )
    assert "Key Encipherment" in openssl("x509", "-noout", "-text", "-in", f"{encryption.key_id}.crt")
    assert "CA:TRUE, pathlen:0" in openssl("x509", "-noout", "-text", "-in", "operator.crt")


def test_openssl_verifies_the_chain_and_obeys_the_list(
    store: KeyStore, openssl: Openssl, tmp_path: Path
) -> None:
    kept, lost = store.create("clerk").key_id, store.create("operator").key_id
    assert ": OK" in openssl("verify", "-x509_strict", "-CAfile", "operator.crt", f"{kept}.crt")
    stranger = KeyStore(tmp_path / "stranger")
    stranger.create("clerk")
    openssl("verify", "-CAfile", str(stranger.folder / "operator.crt"), f"{kept}.crt", fails=True)
    store.revoke(lost)
    store.rotate("clerk")
    checked = ("verify", "-crl_check", "-CAfile", "operator.crt", "-CRLfile", "operator.crl")
    assert "certificate revoked" in openssl(*checked, f"{lost}.crt", fails=True)
    assert ": OK" in openssl(*checked, f"{store.create('clerk').key_id}.crt")
    shown = openssl("crl", "-noout", "-text", "-in", "operator.crl", "-CAfile", "operator.crt")
    for expected in ("verify OK", "X509v3 CRL Number: \n                2", "Key Compromise", "Superseded"):
        assert expected in shown, shown


def test_openssl_opens_an_exported_key(store: KeyStore, openssl: Openssl, tmp_path: Path) -> None:
    key_id = store.create("clerk").key_id
    file = tmp_path / "clerk.p12"
    file.write_bytes(store.export(["clerk"], passphrase=PASSPHRASE)[f"{key_id}.p12"])
    shown = openssl("pkcs12", "-in", str(file), "-nodes", "-passin", f"pass:{PASSPHRASE.decode()}")
    assert "friendlyName: clerk" in shown
    assert shown.count("BEGIN CERTIFICATE") == 2
    assert store.file(key_id, "pem").read_text() in shown
    openssl("pkcs12", "-in", str(file), "-nodes", "-passin", "pass:another one", fails=True)


def test_a_long_name_stands_in_another_attribute(store: KeyStore, openssl: Openssl) -> None:
    agent = "n" * 100
    assert f"name = {agent}" in openssl(
        "x509", "-noout", "-subject", "-in", f"{store.create(agent).key_id}.crt"
    )
    assert store.lookup(store.create(agent).key_id).agent == agent

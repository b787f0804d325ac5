"""Signed claims: they hold, or the reason says why they do not."""

from __future__ import annotations

import json
import subprocess
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.amendments import TOMBSTONE, Amendment
from orchestrator.audit.heads import End, Head
from orchestrator.envelope.signature import Signer
from orchestrator.errors import SignatureError
from orchestrator.keyring import algorithms, claims
from orchestrator.keyring.claims import Purpose
from orchestrator.keyring.store import KeyStore
from tests.claims import forged

ALGORITHMS = {"RSA-SHA256": "RS256", "Ed25519": "EdDSA"}
CLAIMS = {"task": "t", "issued_ms": 7, "nested": {"b": 1, "a": "ü"}}
_END = End(seq=2, chain="c")
_HEAD = Head(database="d", messages=_END, dead_letters=End(), transitions=End(seq=1, chain="t", entries=4))
_AMENDMENT = Amendment(
    database="d", kind=TOMBSTONE, table="messages", seq=2, chain="c", counts={"00/message/normal": 2}
)


@pytest.fixture(params=ALGORITHMS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys", request.param)


@pytest.fixture
def operator(store: KeyStore) -> Signer:
    return store.signer(OPERATOR)


def rule(text: str | bytes, purpose: Purpose, store: KeyStore) -> str:
    with pytest.raises(SignatureError) as caught:
        claims.verify(text, purpose, store.lookup)
    return str(caught.value.args[0])


def test_what_was_signed_is_read_again(store: KeyStore, operator: Signer) -> None:
    text = claims.sign(CLAIMS, Purpose.SUBMISSION, operator)
    said, key = claims.verify(text, Purpose.SUBMISSION, store.lookup)
    assert (said, key.key_id, key.agent) == (CLAIMS, operator.key_id, OPERATOR)
    assert claims.verify(text.encode(), Purpose.SUBMISSION, store.lookup)[0] == CLAIMS


def test_nothing_of_it_can_be_changed(store: KeyStore, operator: Signer) -> None:
    """Neither what is claimed, what for, by whom and how, nor the spelling of any part."""
    text = claims.sign(CLAIMS, Purpose.SUBMISSION, operator)
    store.signer("lead")
    head, payload, signature = text.split(".")
    other = claims.sign({**CLAIMS, "task": "u"}, Purpose.SUBMISSION, operator)
    assert rule(text, Purpose.AUDIT_HEAD, store) == "signature-invalid"
    for changed in (
        forged(text, task="u"),
        forged(text, header={"typ": Purpose.AUDIT_HEAD.value}),
        forged(text, header={"alg": "none"}),
        forged(text, header={"alg": "HS256"}),
        forged(text, header={"kid": store.signer("lead").key_id}),
        forged(text, header={"crit": ["exp"]}),
        f"{head}.{payload}.{other.split('.')[2]}",
        f"{head}.{payload}.",
    ):
        assert rule(changed, Purpose.SUBMISSION, store) == "signature-invalid", changed
    assert rule(forged(text, header={"kid": "key_" + "0" * 32}), Purpose.SUBMISSION, store) == "key-unknown"
    for junk in (
        *("", ".", "...", "a.b.c", "é.é.é", "e30.e30.e30", "W10.W10.W10", "bnVsbA.bnVsbA.bnVsbA"),
        *(f"{text}=", f"{head}.{payload}.{signature}.", f" {text}", b"\xff"),
        f"{head}.{urlsafe_b64encode(b'[1]').decode().rstrip('=')}.{signature}",
        f"{urlsafe_b64encode(b'[' * 100_000).decode().rstrip('=')}.{payload}.{signature}",
    ):
        assert rule(junk, Purpose.SUBMISSION, store) == "signature-malformed", junk
    assert rule(claims.unsigned(CLAIMS), Purpose.SUBMISSION, store) == "signature-missing"


def test_openssl_verifies_what_is_signed(
    store: KeyStore, operator: Signer, tmp_path: Path, program: Callable[[str], str]
) -> None:
    """By RFC 7515 alone: three parts in base64url, and a signature over the first two as they stand."""
    text = claims.sign(CLAIMS, Purpose.AUDIT_HEAD, operator)
    signed, _, signature = text.rpartition(".")
    header = json.loads(urlsafe_b64decode(signed.partition(".")[0] + "=="))
    assert header == {
        "alg": ALGORITHMS[operator.algorithm],
        "kid": operator.key_id,
        "typ": "agent-orchestra.audit-head",
    }
    (tmp_path / "signed").write_text(signed)
    (tmp_path / "signature").write_bytes(urlsafe_b64decode(signature + "=="))
    key = store.lookup(operator.key_id)
    (tmp_path / "public.pem").write_text(algorithms.public_pem(key.public))
    command = {
        "RSA-SHA256": "dgst -sha256 -verify public.pem -signature signature signed",
        "Ed25519": "pkeyutl -verify -pubin -inkey public.pem -rawin -in signed -sigfile signature",
    }[operator.algorithm]
    subprocess.run([program("openssl"), *command.split()], cwd=tmp_path, check=True, timeout=60)


def test_nobody_signs_a_document_of_the_trail_for_the_operator(store: KeyStore, operator: Signer) -> None:
    """Neither nobody, nor a key that nobody knows, nor an agent's."""
    assert _HEAD.signed_by(operator).fault(store, "d") == ""
    assert _HEAD.signed_by(operator).fault(store, "e") == "it is of another database"
    assert _HEAD.fault(store, "d") == "it is not signed"
    unknown = Signer(OPERATOR, "key_" + "0" * 32, operator.algorithm, 0, None, operator.sign)
    assert _HEAD.signed_by(unknown).fault(store, "d") == f"its key {unknown.key_id!r} is not known"
    assert _HEAD.signed_by(store.signer("lead")).fault(store, "d").endswith("not a valid key of the operator")


def test_a_document_under_the_signature_of_another_one_does_not_hold(
    store: KeyStore, operator: Signer
) -> None:
    """Of another kind, of other claims, and claims that a program put beside a good signature."""
    head = _HEAD.signed_by(operator)
    assert Amendment.from_text(head.to_text()) is None
    read = Head.from_text(forged(head.to_text(), at_ms=9))
    assert read.fault(store, "d") == "its signature does not hold"
    amendment = replace(_AMENDMENT, jws=claims.sign(_AMENDMENT.claims(), Purpose.AUDIT_HEAD, operator))
    assert _AMENDMENT.fault(store, "d") == "it is not signed"
    assert amendment.fault(store, "d") == "its signature does not hold"
    assert replace(head, at_ms=9).fault(store, "d") == "its signature is of another document"


def test_a_revocation_counts_from_its_moment_on(store: KeyStore, operator: Signer) -> None:
    """What was signed before, and is known to have been, stays good."""
    document = _HEAD.signed_by(operator)
    store.revoke(operator.key_id)
    revoked = store.lookup(operator.key_id)
    assert revoked.revoked_ms is not None
    assert document.fault(store, "d") == ""
    later = Head(database="d", messages=_END, dead_letters=End(), at_ms=revoked.revoked_ms).signed_by(
        operator
    )
    assert later.fault(store, "d").endswith("is not a valid key of the operator")


def test_a_key_that_is_not_to_be_trusted_is_named_as_the_fault(operator: Signer) -> None:
    class Untrusted:
        def lookup(self, key_id: str) -> None:
            raise SignatureError("key-not-certified", f"nobody has certified {key_id}")

    said = _HEAD.signed_by(operator).fault(Untrusted(), "d")
    assert f"nobody has certified {operator.key_id}" in said


@pytest.mark.parametrize("document", [_HEAD, _AMENDMENT], ids=["head", "amendment"])
def test_a_document_that_anybody_may_have_written_is_read_as_declared_or_not_at_all(
    document: Head | Amendment,
) -> None:
    """A time that is a text, or counts that are a number, end neither the writer nor a verification."""
    assert type(document).from_text(document.to_text()) == document
    facts = document.claims()
    bad: list[dict[str, Any]] = [{**facts, "at_ms": "now"}, {**facts, "more": 1}]
    bad += [{**facts, name: 5} for name in ("counts", "messages", "chain") if name in facts]
    for changed in bad:
        assert type(document).from_text(claims.unsigned(changed)) is None, changed
    for text in ("", "[]", "{}", "null", "\udc80", "..", ".\udc80.", b"\xff"):
        assert type(document).from_text(text) is None

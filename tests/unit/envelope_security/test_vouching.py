"""What the operator signs about an audit database: it holds, or the reason says why it does not."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from orchestrator.agents.registry import OPERATOR
from orchestrator.audit.amendments import TOMBSTONE, Amendment
from orchestrator.audit.heads import End, Head
from orchestrator.audit.vouching import fault_of, vouch
from orchestrator.errors import SignatureError
from orchestrator.keyring.record import TrustedKey
from tests.unit.envelope_security.conftest import NOW_MS, Keys

HEAD = b'{"head": 7}'


def test_what_the_operator_signed_holds_and_nothing_else_does(keys: Keys) -> None:
    operator = keys.signer(OPERATOR)
    signature = vouch(HEAD, operator)
    assert fault_of(HEAD, signature, operator.key_id, NOW_MS, keys) == ""
    assert fault_of(HEAD + b" ", signature, operator.key_id, NOW_MS, keys) == "its signature does not hold"
    other = vouch(b"something else", operator)
    assert fault_of(HEAD, other, operator.key_id, NOW_MS, keys) == "its signature does not hold"
    assert fault_of(HEAD, "*", operator.key_id, NOW_MS, keys) == "its signature is not base64"
    assert (
        fault_of(HEAD, b64encode(b"x").decode(), operator.key_id, NOW_MS, keys)
        == "its signature does not hold"
    )


def test_nobody_signs_for_the_operator(keys: Keys) -> None:
    """Neither no key, nor one that nobody knows, nor an agent's."""
    lead = keys.signer("lead")
    signature = vouch(HEAD, lead)
    assert fault_of(HEAD, signature, "", NOW_MS, keys) == "it is not signed"
    assert fault_of(HEAD, signature, "lead-unknown", NOW_MS, keys) == "its key 'lead-unknown' is not known"
    assert fault_of(HEAD, signature, lead.key_id, NOW_MS, keys).endswith("is not a valid key of the operator")


def test_a_revocation_counts_from_its_moment_on(keys: Keys) -> None:
    """What was signed before, and is known to have been, stays good."""
    operator = keys.signer(OPERATOR)
    signature = vouch(HEAD, operator)
    keys.changes[operator.key_id] = {"revoked_ms": NOW_MS}
    assert fault_of(HEAD, signature, operator.key_id, NOW_MS - 1, keys) == ""
    assert fault_of(HEAD, signature, operator.key_id, NOW_MS, keys).endswith(
        "is not a valid key of the operator"
    )


def test_a_key_that_is_not_to_be_trusted_is_named_as_the_fault(keys: Keys) -> None:
    class Untrusted:
        def lookup(self, key_id: str) -> TrustedKey | None:
            raise SignatureError(f"nobody vouches for {key_id}")

    operator = keys.signer(OPERATOR)
    said = fault_of(HEAD, vouch(HEAD, operator), operator.key_id, NOW_MS, Untrusted())
    assert f"nobody vouches for {operator.key_id}" in said


_END = End(seq=2, chain="c")
_HEAD = Head(database="d", messages=_END, dead_letters=End(), transitions=End(seq=1, chain="t", entries=4))
_AMENDMENT = Amendment(kind=TOMBSTONE, table="messages", seq=2, chain="c", counts={"00/message/normal": 2})


@pytest.mark.parametrize("document", [_HEAD, _AMENDMENT], ids=["head", "amendment"])
def test_a_document_that_anybody_may_have_written_is_read_as_declared_or_not_at_all(
    document: Head | Amendment,
) -> None:
    """A time that is a text, or counts that are a number, end neither the writer nor a verification."""
    assert type(document).from_json(document.to_json()) == document
    facts = json.loads(document.to_json())
    bad: list[dict[str, Any]] = [{**facts, "at_ms": "now"}, {**facts, "more": 1}]
    bad += [{**facts, name: 5} for name in ("counts", "messages", "chain") if name in facts]
    for changed in bad:
        assert type(document).from_json(json.dumps(changed)) is None, changed
    for text in ("", "[]", "{}", "null", "\udc80"):
        assert type(document).from_json(text) is None

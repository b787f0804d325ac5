"""What an answer to an approval means: whatever is in doubt is no consent."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.errors import DamagedRecord, InputError
from orchestrator.policy.approval import (
    MAX_ARGUMENTS_BYTES,
    ApprovalRequest,
    canonical,
    digest_of,
    read_decision,
    read_request,
)

ARGUMENTS = canonical({"b": 1, "a": [2, "é"]})
DIGEST = digest_of("deploy", ARGUMENTS)
YES = {"approval": "apr_1", "approved": True, "digest": DIGEST, "by": "ann", "comment": "fine"}


def request(**terms: Any) -> ApprovalRequest:
    return ApprovalRequest(
        tool="deploy", arguments=ARGUMENTS, digest=DIGEST, agent="a", session="s", run="r", **terms
    )


def read(said: Any, *, answered: bool = True, digest: str = DIGEST, now_ms: int = 0, **terms: Any) -> Any:
    return read_decision(
        "apr_1", request(**terms), digest=digest, answered=answered, context=said, text="said", now_ms=now_ms
    )


def test_the_digest_is_of_the_tool_and_of_its_arguments_in_any_order() -> None:
    assert canonical({"a": [2, "é"], "b": 1}) == ARGUMENTS
    others = {
        digest_of("deploy", canonical({"b": 2})),
        digest_of("deplo", f"y{ARGUMENTS}"),
        digest_of("x", "{}"),
    }
    assert DIGEST not in others
    assert len(others) == 3


def test_a_yes_is_for_this_approval_and_this_call() -> None:
    assert read(YES).approved
    assert read(YES).comment == "fine"
    no = [
        {**YES, "approval": "apr_2"},
        {**YES, "digest": "other"},
        {**YES, "digest": ""},
        {**YES, "approved": "maybe"},
        {},
        None,
        "yes",
    ]
    for said in no:
        assert not read(said).approved
        assert read(said).how == "refused"
    assert not read(YES, digest="of a call that was changed").approved
    assert read({**YES, "approved": False, "digest": ""}).how == "answered"


def test_a_default_counts_for_this_call_when_its_time_has_passed() -> None:
    late = {"expired": True}
    assert read(late, answered=False, now_ms=10, expires_ms=10, default="approve").approved
    assert read(late, answered=False, now_ms=10, expires_ms=10).how == "expired"
    for found in (
        read(late, answered=False, now_ms=10, expires_ms=10),
        read(late, answered=False, now_ms=9, expires_ms=10, default="approve"),
        read(late, answered=False, now_ms=10, expires_ms=0, default="approve"),
        read(late, answered=False, now_ms=10, expires_ms=10, default="approve", digest="other"),
        read(YES, answered=False, now_ms=10, expires_ms=10, default="approve"),
        read(None, answered=False, now_ms=10, expires_ms=10, default="approve"),
    ):
        assert not found.approved


def test_what_nobody_reads_is_not_asked() -> None:
    canonical({"x": "y" * (MAX_ARGUMENTS_BYTES - 20)})
    for wrong in ({"x": "y" * MAX_ARGUMENTS_BYTES}, {"x": object()}, {"x": float("nan")}):
        with pytest.raises(InputError, match="arguments of 'deploy'"):
            canonical(wrong, tool="deploy")


def test_a_damaged_request_is_named() -> None:
    assert read_request("apr_1", request().model_dump_json()) == request()
    for damaged in (None, "", "{", "[]", '{"tool": "x"}'):
        with pytest.raises(DamagedRecord, match="apr_1"):
            read_request("apr_1", damaged)

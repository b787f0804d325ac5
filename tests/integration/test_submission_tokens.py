"""A token lets one message begin one session, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.agents.registry import OPERATOR
from orchestrator.bootstrap import Container
from orchestrator.client.submission_tokens import check_token, make_token
from orchestrator.errors import SubmissionRefused
from orchestrator.machine import SystemClock
from tests.claims import forged
from tests.clock import ManualClock
from tests.kit import Kit

WORK: Any = {"agent": "solo", "prompt": "go", "title": ""}


@pytest.fixture
def parts(kit: Kit) -> Container:
    return kit.parts


def check(parts: Container, token: object, task: str, *, known: bool = False, **changes: Any) -> None:
    clock = changes.pop("clock", None)
    check_token(parts.keyring, token, WORK | changes, task_id=task, known=known, clock=clock)


def test_it_is_good_for_its_own_work_under_its_own_task_id_only(parts: Container) -> None:
    made = make_token(parts.keyring, WORK)
    check(parts, made.text, made.task_id)
    check(parts, made.text, made.task_id)  # the same message once more: the same session once more
    for changes in ({"agent": "other"}, {"prompt": "stay"}, {"title": "x"}):
        with pytest.raises(SubmissionRefused, match="is for another agent, prompt, title or task"):
            check(parts, made.text, made.task_id, **changes)
    with pytest.raises(SubmissionRefused, match=f"its token is for task {made.task_id}"):
        check(parts, made.text, "another")


@pytest.mark.parametrize("token", [None, "", 7, b"x", "x", "x" * 5000])
def test_without_one_or_with_junk_the_refusal_says_how_to_get_one(parts: Container, token: object) -> None:
    why = "its token cannot be read" if token in ("x", "x" * 5000) else "only with a token"
    with pytest.raises(SubmissionRefused, match=rf"{why}.*; make one with Client\.token"):
        check(parts, token, "t")


def test_nothing_in_it_can_be_changed(parts: Container) -> None:
    made = make_token(parts.keyring, WORK)
    for text in (
        forged(made.text, expires_ms=1 << 50),
        forged(made.text, header={"typ": "agent-orchestra.agent"}),
    ):
        with pytest.raises(SubmissionRefused, match="not signed with a key of `operator`"):
            check(parts, text, made.task_id)


def test_the_key_of_an_agent_makes_none(parts: Container) -> None:
    class Impostor:
        def signer(self, _: str) -> object:
            return parts.keyring.signer("reviewer")

    made = make_token(Impostor(), WORK)  # type: ignore[arg-type]
    with pytest.raises(SubmissionRefused, match="not signed with a key of `operator`"):
        check(parts, made.text, made.task_id)


def test_a_revoked_key_makes_none_and_a_rotated_one_no_more(parts: Container) -> None:
    made = make_token(parts.keyring, WORK)
    old = parts.keyring.signer(OPERATOR)
    parts.keyring.store.rotate(OPERATOR, overlap_s=0)
    parts.keyring.registry.register_all()
    check(parts, made.text, made.task_id)

    class Thief:
        def signer(self, _: str) -> object:
            return old

    clock = ManualClock(SystemClock().now_ms() + 1000)  # certificates have full seconds
    later = make_token(Thief(), WORK, clock=clock)  # type: ignore[arg-type]
    with pytest.raises(SubmissionRefused):
        check(parts, later.text, later.task_id)
    parts.keyring.registry.revoke(old.key_id)
    with pytest.raises(SubmissionRefused):
        check(parts, made.text, made.task_id)


def test_an_expired_one_begins_nothing_but_a_message_that_comes_again_is_the_session_that_it_was(
    parts: Container,
) -> None:
    made, now_ms = make_token(parts.keyring, WORK), SystemClock().now_ms()
    check(parts, made.text, made.task_id, clock=ManualClock(now_ms + 3_590_000))
    with pytest.raises(SubmissionRefused, match="has expired"):
        check(parts, made.text, made.task_id, clock=ManualClock(now_ms + 3_601_000))
    made = make_token(parts.keyring, WORK, lifetime_s=-1)
    with pytest.raises(SubmissionRefused, match="has expired"):
        check(parts, made.text, made.task_id)
    check(parts, made.text, made.task_id, known=True)
    with pytest.raises(SubmissionRefused):
        check(parts, forged(made.text, task="t"), "t", known=True)

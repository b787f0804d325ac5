"""The audit trail against those who write to the streams, to Redis and to its file."""

from __future__ import annotations

import json
from random import Random

import pytest
from click.testing import CliRunner, Result

from orchestrator.audit import AuditWriter, build_writer
from orchestrator.cli import main
from orchestrator.envelope.codec import decode, encode_unsigned
from orchestrator.envelope.model import (
    Body,
    Message,
    Review,
    ReviewRequest,
    Task,
    TaskCompletion,
    TaskDelegation,
)
from orchestrator.envelope.signature import sign
from orchestrator.ids import root_session_id
from orchestrator.streams import StreamId
from tests.integration.router.conftest import Stack

MESSAGES = StreamId(0, "message", "normal")


def run(stack: Stack, *arguments: str) -> Result:
    """One command on the stack."""
    options = ["--redis-url", str(stack.settings.redis_url), "--data", str(stack.settings.data)]
    return CliRunner().invoke(main, [*arguments, *options])


def found(stack: Stack, *arguments: str) -> list[dict[str, object]]:
    """What a search of the trail finds."""
    rows: list[dict[str, object]] = json.loads(run(stack, "audit", "search", *arguments, "--json").stdout)
    return rows


def writer(stack: Stack) -> AuditWriter:
    """The audit writer of the stack's data folder."""
    return build_writer(stack.parts, consumer="w")


def write(stack: Stack) -> None:
    """Let the audit writer write everything that was published."""
    one = writer(stack)
    while one.run_once():
        pass


def verify(stack: Stack) -> Result:
    """`orchestra audit verify`."""
    return run(stack, "audit", "verify")


def unsigned(stack: Stack, body: Body, **options: object) -> bytes:
    """What a stranger who may append to the streams can write in anybody's name."""
    return encode_unsigned(decode(stack.envelope(body, **options)))  # type: ignore[arg-type]


def said(stack: Stack, number: int) -> list[str]:
    """Messages of an honest agent, routed."""
    texts = [f"number {n}" for n in range(number)]
    for text in texts:
        stack.publish(stack.envelope(Message(content=text)), "message")
    stack.router("honest").run_once()
    return texts


# --- facts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("blank", [b" ", b"\n", b"<!-- -->", b"\r\n\t"])
def test_a_blank_before_the_task_does_not_hide_it(stack: Stack, blank: bytes) -> None:
    """It is signed and carried out, so it is found by its task-id."""
    body = TaskDelegation(task=Task(task_id="T-1", title="t", description="d"))
    plain = stack.envelope(body, sender="partner", recipient="reviewer")
    key = stack.parts.keyring.signer("partner")
    now_ms = decode(plain).header.timestamp.instant_ms
    data = plain.replace(b"<task>", blank + b"<task>")
    data = data if blank == b"<!-- -->" else sign(data, key, now_ms=now_ms)
    stack.publish(data, "task-delegation", "high")
    assert stack.router().run_once().done == 1
    write(stack)
    assert [row["task_id"] for row in found(stack, "--task", "T-1")] == ["T-1"]


def test_a_large_completion_is_found_by_its_task(stack: Stack) -> None:
    """Compressed above 64 KiB, stored apart above 1 MiB: search, `show` and the report know whose it is."""
    noise = Random(3)
    for number, size in enumerate((70_000, 1_500_000)):
        session = root_session_id(f"large {number}")
        text = (
            "".join(chr(noise.randrange(33, 127)) for _ in range(size // 2))
            + "needle & thread"
            + "x" * (size // 2)
        )
        given = stack.envelope(
            TaskDelegation(task=Task(task_id=session, title="t", description="d")), recipient="reviewer"
        )
        header = decode(given).header
        done = decode(
            stack.envelope(
                TaskCompletion(task_id=session, status="success", summary=text),
                sender="reviewer",
                recipient="lead",
                correlation=header.message_id,
                chain=(header.message_id,),
            )
        )
        sealed = stack.parts.sealer.sign(done, stack.parts.keyring.signer("reviewer"))
        assert len(sealed) < size
        stack.publish(given, "task-delegation", "high")
        stack.publish(sealed, "task-completion", "high")
        write(stack)
        types = {row["type"] for row in found(stack, "--task", session)}
        assert types == {"task-delegation", "task-completion"}
        shown = json.loads(run(stack, "audit", "show", session, "--json").stdout)
        assert [row["type"] for row in shown] == ["task-delegation", "task-completion"]
        assert [row["type"] for row in found(stack, "needle & thread")] == ["task-completion"]
    assert json.loads(run(stack, "audit", "report", "--json").stdout)["tasks_completed"] == 2


def test_the_report_counts_reviews(stack: Stack) -> None:
    """A review is a task that somebody was given and completes."""
    session = root_session_id("review")
    review = ReviewRequest(review=Review(task_id=session, title="t", description="d"))
    stack.publish(stack.envelope(review, recipient="code-reviewer"), "review-request")
    done = TaskCompletion(task_id=session, status="success", summary="fine")
    stack.publish(stack.envelope(done, sender="code-reviewer", recipient="lead"), "task-completion", "high")
    write(stack)
    facts = json.loads(run(stack, "audit", "report", "--json").stdout)
    assert (facts["tasks_completed"], facts["task_p50_ms"] is not None) == (1, True)


def test_a_search_looks_in_the_text_and_not_in_its_markup(stack: Stack) -> None:
    """What was said is found as it was said, however the XML spells it; tags are no text."""
    stack.publish(stack.envelope(Message(content='a & b < "c"')), "message")
    odd = stack.envelope(Message(content="ODD")).replace(b"ODD", b'o&#100;d a &#38; <![CDATA[b < ]]>&quot;c"')
    stack.publish(odd, "message")
    stack.publish(
        b'<?xml version="1.0" encoding="iso-8859-1"?>'
        + stack.envelope(Message(content="caf\u00e9")).decode().encode("latin-1"),
        "message",
    )
    write(stack)
    assert len(found(stack, 'a & b < "c"')) == 2
    assert len(found(stack, "odd")) == 1
    assert len(found(stack, "caf\u00e9")) == 1
    assert found(stack, "agent-name") == []
    assert found(stack, "&amp;") == []


# --- evidence -------------------------------------------------------------------------------------------------------


def test_the_doctor_does_not_believe_a_forged_launch(stack: Stack) -> None:
    """Unsigned, or signed by somebody else than the parent's agent: it is no launch of the parent's."""
    session = stack.submit()
    stack.router().run_once()
    launch = stack.parts.ledger.session(session).message
    chain = (launch,)
    correlation = stack.parts.ledger.session(session).correlation
    forged = TaskDelegation(task=Task(task_id=root_session_id("forged"), title="t", description="d"))
    options = {"recipient": "reviewer", "chain": chain, "correlation": correlation}
    stack.publish(unsigned(stack, forged, **options), "task-delegation", "high")
    forged = TaskDelegation(task=Task(task_id=root_session_id("other"), title="t", description="d"))
    stack.publish(stack.envelope(forged, sender="partner", **options), "task-delegation", "high")  # type: ignore[arg-type]
    stack.router("two").run_once()
    write(stack)
    assert len(found(stack, "--type", "task-delegation")) == 3
    said = json.loads(run(stack, "doctor", "--quick", "--json").stdout)
    assert [f["rule"] for f in said["findings"] if f["severity"] == "break"] == []

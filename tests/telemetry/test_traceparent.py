"""Messages of an agent's run name its span in their signed headers; external programs continue the trace."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import agent
from orchestrator.audit import AuditReader, AuditStore
from orchestrator.envelope import canonical, schemas
from orchestrator.envelope.bodies import TaskCompletion
from orchestrator.envelope.codec import decode, encode
from orchestrator.envelope.model import AgentMessage, Header
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.parse import DEFAULT_LIMITS, parse
from orchestrator.envelope.signature import sign_message, verify
from orchestrator.errors import InvalidEnvelope, SignatureError
from orchestrator.ids import new_message_id, span_id, trace_id
from orchestrator.keyring import algorithms
from orchestrator.redisdb import keys
from tests.commands import run_command
from tests.contract.test_signature_with_openssl import recipe
from tests.telemetry.conftest import Watched

#: The span of the program, in the trace of whoever gave it its task.
OWN = "00f067aa0ba902b7"


@agent("traced-asker", role="coordinator")
def asker(ctx) -> str:  # type: ignore[no-untyped-def]
    if ctx.cause == "start":
        ctx.delegate("partner", "count")
        ctx.status(50, "waits")
    return ",".join(result.status for result in ctx.all_results)


class Partner:
    """An external program that traces: its answers stand in the trace of its tasks."""

    def __init__(self, stack: Watched) -> None:
        self.parts = stack.parts
        self.parts.keyring.store.create("partner")
        self.run("agents", "register", "partner", "--role", "coordinator")

    def next_task(self) -> bytes:
        """Return the next task in its inbox, as it was signed."""
        deadline = time.monotonic() + 30
        while True:
            assert time.monotonic() < deadline, "no task came"
            for _, [(entry, fields)] in self.parts.redis.xreadgroup(  # type: ignore[union-attr]
                "partner", "one", {keys.inbox(0, "partner"): ">"}, count=1, block=1000
            ):
                self.parts.redis.xack(keys.inbox(0, "partner"), "partner", entry)
                octets: bytes = fields[b"envelope"]
                if decode(octets).body.type == "task-delegation":
                    return octets

    def complete(self, task: AgentMessage, traceparent: str) -> None:
        """Report the end of a task."""
        about, body, now_ms = task.header, task.body, time.time_ns() // 10**6
        header = Header(
            message_id=new_message_id(),
            timestamp=Timestamp.from_ms(now_ms),
            sender=about.recipient,
            recipient=about.sender,
            correlation_id=about.correlation_id,
            conversation_chain=(about.message_id, *about.conversation_chain),
            traceparent=traceparent,
        )
        done: Any = TaskCompletion(task_id=body.task.task_id, status="success", summary="42", result="42")  # type: ignore[union-attr]
        signed = sign_message(
            AgentMessage(header=header, body=done), self.parts.keyring.signer("partner"), now_ms=now_ms
        )
        self.parts.redis.xadd(keys.outbox(0, "partner"), {"envelope": signed})

    def run(self, *command: str) -> None:
        """Run a command on the stack."""
        done = run_command(*command, settings=self.parts.settings)
        assert done.exit_code == 0, done.output


def test_a_program_continues_the_trace_of_its_task(
    watch: Callable[..., Watched], tmp_path: Path, program: Callable[[str], str], root: Path
) -> None:
    """The task names the run's span, the answer the program's; the signature covers both; a replay keeps it."""
    for name in ("xmllint", "openssl", "base64", "sed"):
        program(name)
    stack = watch(asker)
    partner, ledger = Partner(stack), stack.ledger
    session = stack.client.submit("traced-asker", "go").id
    octets = partner.next_task()
    task = decode(octets)
    (first,) = ledger.runs(session)
    assert task.header.traceparent == f"00-{trace_id(session)}-{span_id(first.id, 1)}-01"
    assert canonical.read(octets, DEFAULT_LIMITS) == task

    # The signature covers it, also for who has `xmllint` and `openssl` alone.
    verify(parse(octets)[0], stack.parts.keyring)
    changed = octets.replace(b"-01</traceparent>", b"-00</traceparent>")
    with pytest.raises(SignatureError):
        verify(parse(changed)[0], stack.parts.keyring)
    assert task.signature is not None
    certificate = stack.parts.keyring.store.certificate(task.signature.public_key_id)
    (tmp_path / "public.pem").write_text(algorithms.public_pem(certificate.public))  # type: ignore[union-attr]
    (tmp_path / "schema.xsd").write_bytes(schemas.read(schemas.AGENT_MESSAGE))
    script = f"{recipe(root, task.signature.algorithm)}\nxmllint --noout --schema schema.xsd message.xml"
    for sent, holds in ((octets, True), (changed, False)):
        (tmp_path / "message.xml").write_bytes(sent)
        done = subprocess.run(["sh", "-c", script], cwd=tmp_path, capture_output=True, check=False)
        assert (done.returncode == 0) is holds, done.stderr

    own = f"00-{trace_id(session)}-{OWN}-01"
    partner.complete(task, own)
    assert stack.client.result(session, timeout_s=30) == "completed"
    stack.calm()
    runs = {f"00-{trace_id(session)}-{span_id(run.id, 1)}-01" for run in ledger.runs(session)}
    store = AuditStore(stack.settings.audit_database, read_only=True)
    conversation = AuditReader(store).conversation(str(task.header.correlation_id))
    store.close()
    said = [(row.type, row.sender, decode(row.xml).header.traceparent) for row in conversation]
    assert {where for kind, sender, where in said if sender == "traced-asker"} <= runs
    assert {kind for kind, sender, _ in said if sender == "traced-asker"} == {
        "task-delegation",
        "status-update",
        "task-completion",
    }
    assert {(kind, where) for kind, sender, where in said if sender == "partner"} == {
        ("task-completion", own)
    }
    # What no run has sent is valid without one.
    assert {where for _, sender, where in said if sender in ("operator", "router")} == {None}

    # The session that a replay begins has the trace of the old one.
    partner.run("audit", "replay", task.header.message_id)
    again = decode(partner.next_task()).header
    assert (again.sender.agent_name, again.traceparent) == ("operator", task.header.traceparent)


@pytest.mark.parametrize("fault", ["00-4BF9", "01", "", "00-" + "0" * 32])
def test_a_malformed_one_is_refused_like_any_other_element(fault: str) -> None:
    valid = schemas.read("examples/valid/header-with-traceparent-only.xml")
    message = decode(valid)
    wrong = encode(message).replace(str(message.header.traceparent).encode(), fault.encode())
    assert canonical.read(wrong, DEFAULT_LIMITS) is None
    with pytest.raises(InvalidEnvelope, match="traceparent"):
        decode(wrong)

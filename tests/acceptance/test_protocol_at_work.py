"""What the protocol promises, on a stack of real processes: large answers, and who is believed."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Iterator

import pytest

from orchestrator import Client
from orchestrator.audit import AuditReader, AuditStore
from orchestrator.bootstrap import build_container
from orchestrator.config.settings import load_settings
from orchestrator.config.stack import resolve
from orchestrator.envelope import codec
from orchestrator.envelope.bodies import TaskCompletion
from orchestrator.ids import shard_of
from orchestrator.redisdb import ledger_keys
from orchestrator.redisdb.client import connect
from tests.acceptance.conftest import Terminal, open_stack, wait_until
from tests.messages import message

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

SIZE = 50 * 1024 * 1024
AGENTS = """
import hashlib
import random

from orchestrator import agent


@agent("large")
def large(ctx):
    return random.Random(ctx.prompt).randbytes(25 * 1024 * 1024).hex()


@agent("boss", role="coordinator")
def boss(ctx):
    if ctx.cause == "start":
        return "waiting for " + ctx.delegate("large", ctx.prompt)
    callback = ctx.callbacks[0]
    return f"{callback.session} {len(callback.result)} {hashlib.sha256(callback.result.encode()).hexdigest()}"
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[Terminal]:
    with open_stack(
        AGENTS,
        ORCHESTRA_CONCURRENCY="2",
        ORCHESTRA_MAX_PAYLOAD_BYTES=str(2 * SIZE),
        ORCHESTRA_SIGNATURES_REQUIRED="false",
        ORCHESTRA_SIGNATURE_ALGORITHM="RSA-SHA256",  # as in the protocol's own example
    ) as terminal:
        yield terminal


def test_a_result_of_fifty_mebibytes_arrives_byte_for_byte(stack: Terminal) -> None:
    """In its parent and on standard output; what travels in the streams is a reference to it."""
    text = random.Random("seed").randbytes(SIZE // 2).hex()
    digest = hashlib.sha256(text.encode()).hexdigest()
    with stack.client() as client:
        child, size, found = client.submit("boss", "seed").result(timeout_s=120).split()
        assert (int(size), found) == (SIZE, digest)
        done = stack.run(f"orchestra result {child}")
        assert done.stdout == text + "\n"
        assert done.returncode == 0
        assert stack.run("orchestra doctor").returncode == 0
        _assert_referenced(stack, child)
        _assert_altered_and_missing_chunks_are_told(stack, client, child)


def _assert_referenced(stack: Terminal, child: str) -> None:
    """The envelope that reports the answer is small, and leads to all of it."""
    settings = resolve(load_settings(data=stack.folder / ".orchestra", max_payload_bytes=2 * SIZE))
    parts = build_container(connect(str(settings.redis_url)), settings)
    trail = AuditReader(AuditStore(settings.audit_database, read_only=True))

    def reports() -> list[bytes]:
        found = trail.find(child)
        return [one.xml for one in found if (one.type, one.sender) == ("task-completion", "large")]

    wait_until(reports, "the report in the trail")
    (report,) = reports()
    assert len(report) < 10_000
    body = parts.opener.open(codec.decode(report)).body
    assert isinstance(body, TaskCompletion)
    assert (body.task_id, len(body.result or "")) == (child, SIZE)


def _assert_altered_and_missing_chunks_are_told(stack: Terminal, client: Client, child: str) -> None:
    """One line, exit code 2; the promise holds all the same."""
    settings = resolve(load_settings(data=stack.folder / ".orchestra", max_payload_bytes=2 * SIZE))
    redis = connect(str(settings.redis_url))
    (name,) = redis.keys(ledger_keys.large_text(child, "*"))
    chunk = redis.hget(name, "3")
    assert shard_of(child) == 0
    redis.hset(name, "3", chunk[:-1] + bytes([chunk[-1] ^ 1]))
    done = stack.run(f"orchestra result {child}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "altered" in done.stderr
    redis.hdel(name, "3")
    done = stack.run(f"orchestra result {child} --json")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "chunk 3 of" in done.stderr
    assert "missing" in done.stderr
    redis.hset(name, "3", chunk)
    assert len(client.answer(child) or "") == SIZE
    assert stack.run("orchestra doctor").returncode == 0


def test_where_signatures_are_optional_an_unsigned_message_is_taken_and_the_doctor_warns(
    stack: Terminal,
) -> None:
    """The stack says what it has given up; what is required by default is the business of other tests."""
    unsigned = message("trust me", sender="boss", recipient="large", at_ms=int(time.time() * 1000))
    (stack.folder / "unsigned.xml").write_bytes(codec.encode(unsigned))
    assert stack.run("orchestra message validate --online unsigned.xml").returncode == 0
    assert stack.run("orchestra message send unsigned.xml").returncode == 0
    # It was acted upon: sent once more, it is known.
    wait_until(
        lambda: "[duplicate]" in stack.run("orchestra message validate --online unsigned.xml").stdout,
        "the router to take the message",
    )
    assert stack.document("orchestra dlq list") == {"dead_letters": []}
    done = stack.run("orchestra doctor --json")
    findings = json.loads(done.stdout)["findings"]
    assert done.returncode == 0
    assert ("warning", "signatures-optional") in {(f["severity"], f["rule"]) for f in findings}
    strict = stack.run(
        "orchestra message validate --online --json unsigned.xml", ORCHESTRA_SIGNATURES_REQUIRED="true"
    )
    assert "signature-missing" in strict.stdout
    assert strict.returncode == 1

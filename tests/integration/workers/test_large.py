"""A large result on its way from a child to its parent: whole, and small wherever it need not be."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.config.settings import load_settings
from orchestrator.ledger import SessionState
from orchestrator.policy.callback_text import parse_callbacks
from orchestrator.redisdb import ledger_keys
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.view import MAX_PROMPT_BYTES_PER_CALLBACK

from .conftest import StackHarness

MIB = 1024 * 1024


@pytest.fixture
def stage(redis: redis_py.Redis, redis_url: str, tmp_path: Path) -> StackHarness:
    return StackHarness(redis, load_settings(redis_url=redis_url, data=tmp_path, lease_s=120))


def test_five_mebibytes_cross_from_child_to_parent(stage: StackHarness) -> None:
    line = "Zeile Nr. äöü 中文 🙂 </agent-callback> & <b>\n"
    text = line * (5 * MIB // len(line.encode()) + 1)
    digest = hashlib.sha256(text.encode()).hexdigest()
    prompts: list[str] = []

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("worker", "much")
            return "waiting"
        (callback,) = ctx.callbacks
        prompts.append(ctx.prompt)
        assert len(callback.text.encode()) <= MAX_PROMPT_BYTES_PER_CALLBACK
        assert callback.size == len(text.encode())
        assert ctx.all_results[0].full() == callback.result
        return hashlib.sha256(callback.full().encode()).hexdigest()

    @stage.agent("worker")
    def worker(_: Context) -> str:
        return text

    root = stage.begin("lead")
    (child,) = stage.children(root)
    assert stage.play(child.id) == "finished"
    assert stage.resume(root) == "finished"
    assert stage.ledger.result(root) == (SessionState.FINISHED, digest)
    assert hashlib.sha256((stage.ledger.result(child.id)[1] or "").encode()).hexdigest() == digest
    (parsed,) = parse_callbacks(prompts[0])
    assert parsed.size == len(text.encode())
    assert text.startswith(parsed.text)
    assert len(prompts[0].encode()) < 2 * MAX_PROMPT_BYTES_PER_CALLBACK
    assert f"`orchestra result {child.id}` prints the whole" in prompts[0]
    bodies = [stage.redis.memory_usage(ledger_keys.bodies(session)) or 0 for session in (root, child.id)]
    assert max(bodies) < MIB


def test_an_answer_that_no_store_takes_fails_its_session_with_that_reason(
    stage: StackHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.worker.execution.ending.MAX_PAYLOAD_BYTES", 1000)

    @stage.agent("lead", role="coordinator")
    def lead(_: Context) -> str:
        return "x" * 1001

    root = stage.begin("lead", ends="failed")
    assert "is larger than 1000 bytes" in (stage.ledger.result(root)[1] or "")

"""Keys of providers are written down nowhere, memory does not pile up, and a missing extra is named."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.redisdb import ledger_keys
from orchestrator.testing import Fail, Say, Script
from tests.kit import Kit
from tests.workers import Workers

from .conftest import Model, Serve

SECRET = "sk-ant-api03-a-very-secret-value-0123456789"

WITHOUT_THE_EXTRA = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pydantic_ai", "anthropic", "openai"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import importlib.util
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "pydantic_ai" else find_spec(name, *more)
import orchestrator, orchestrator.testing
from orchestrator import AgentsFileError, Client, agent
from orchestrator.agents.loader import load_agents
try:
    load_agents([sys.argv[1]])
except AgentsFileError as error:
    print(error)
"""


def everything(redis: redis_py.Redis) -> bytes:
    """Every value that the server holds."""
    return b"\n".join(redis.dump(key) or b"" for key in redis.scan_iter())


@pytest.mark.parametrize("status", [401, 429])
def test_a_key_that_a_provider_repeats_is_written_down_nowhere(
    kit: Kit,
    model: Model,
    serve: Serve,
    redis: redis_py.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    status: int,
) -> None:
    serve(Script(Fail(status, f"invalid x-api-key {SECRET}"), Fail(401, f"invalid x-api-key {SECRET}")))
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    model("keyed", instructions="You try.", model="anthropic:claude-haiku-5-5")
    dispatch = kit.start(session := kit.submit("keyed"))
    verdict = kit.execute(dispatch)
    assert verdict == "failed"  # a busy provider is asked again within the run, and then refuses the key
    tries = kit.ledger.runs(session)[0].tries
    assert "[secret]" in tries[-1].reason
    assert SECRET not in caplog.text
    assert SECRET.encode() not in everything(redis)
    for path in Path(kit.settings.data).rglob("*"):
        assert not path.is_file() or SECRET.encode() not in path.read_bytes()


def test_without_runs_to_fork_only_the_last_memory_is_kept(
    kit: Kit, workers: Workers, model: Model, serve: Serve, redis: redis_py.Redis
) -> None:
    object.__setattr__(kit.ledger.limits, "fork_runs", 0)
    serve(Script(*[Say(f"answer {n}") for n in range(4)]))
    model("clerk", instructions="You remember.")
    session = kit.submit("clerk")
    workers.answer(session)
    for number in range(1, 4):
        kit.ledger.enqueue(session, f"more {number}", item_id=f"itm_{number}")
        deadline = time.monotonic() + 30
        while kit.answer(session) != f"answer {number}":
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert redis.scard(ledger_keys.large_texts(session)) == 1 + 4  # and what was said in each run
    assert "answer 0" in kit.ledger.memory(session)


def test_without_the_extra_the_rest_works_and_the_error_says_what_to_install(tmp_path: Path) -> None:
    agents = tmp_path / "agents.toml"
    agents.write_text('[agents.lead]\nexecutor = "llm"\ninstructions = "You lead."\n')
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_THE_EXTRA, str(agents)], capture_output=True, text=True, check=True
    )
    assert "model agents need pydantic-ai: pip install 'agent-orchestra[llm]'" in done.stdout

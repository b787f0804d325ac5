"""A worker of another host takes what it can carry out, and one command on each host admits it, as the README says."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

AGENTS = """
from orchestrator import agent, model_agent

model_agent("writer", instructions="You write.", model="openai-chat:qwen3", base_url="http://127.0.0.1:9/v1")

@agent("lead", role="coordinator")
def lead(ctx):
    if ctx.cause == "start":
        ctx.delegate("counter", ctx.prompt)
        return ""
    return ctx.callbacks[0].result

@agent("counter")
def counter(ctx):
    return str(len(ctx.prompt.split()))
"""
SUBMIT = """
from orchestrator import app

sent = [app.send_task("orchestrator.start_session", kwargs={"agent": "lead", "prompt": "To be"}) for _ in range(16)]
print({one.get(timeout=120) for one in sent})
"""


def test_a_worker_of_another_host_takes_only_what_it_can_sign(terminal: Terminal) -> None:
    """Without any key it does not start, with those of its agents it leaves plain submissions to others."""
    (terminal.folder / "my_agents.py").write_text(AGENTS, encoding="utf-8")
    (terminal.folder / "send.py").write_text(SUBMIT, encoding="utf-8")
    terminal.start("orchestra up --agents my_agents.py --serve lead").wait_for("ready after")
    url = terminal.run("orchestra url --show-password").stdout.strip()
    there = {"ORCHESTRA_REDIS_URL": url, "ORCHESTRA_DATA": str(terminal.folder / "there")}
    celery = "celery -A orchestrator worker --concurrency 2"
    lacking = (
        ({}, "it serves no agent, and takes no plain submissions without the key of 'operator'"),
        ({"ORCHESTRA_AGENTS": "my_agents.py"}, "the keys of counter, lead, writer are not in"),
    )
    for env, said in lacking:
        refused = terminal.start(celery, **there, **env)
        assert refused.process.wait(60) != 0
        assert said in refused.output
        assert "orchestra keys export" in refused.output
        assert "Traceback" not in refused.output

    export = "orchestra keys export lead counter writer --agents my_agents.py -o keys.json"
    assert terminal.run(export).returncode == 0
    assert terminal.run("orchestra keys import keys.json", **there).returncode == 0
    limits = '{"openai-chat/*": {"calls": 1}, "openai/qwen*": {"calls": 1}}'
    admitted = terminal.start(
        celery, **there, ORCHESTRA_AGENTS="my_agents.py", ORCHESTRA_PROVIDER_LIMITS=limits
    )
    admitted.wait_for(" ready.")
    assert (
        "provider_limits: 'openai-chat/*' fits no model of the agents here, which are openai/qwen3;"
        in admitted.output
    )
    assert "plain submissions are left to other workers: the key of 'operator' is not in" in admitted.output
    assert terminal.run("python send.py").stdout.strip() == "{'2'}"

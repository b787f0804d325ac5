"""What runs on another host takes what it can carry out; one command on each host admits it, as the README says."""

from __future__ import annotations

import re

import pytest

from orchestrator.config.stack import running_stacks
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import live_services
from tests.acceptance.conftest import Terminal, wait_until

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
    (terminal.folder / "pass").write_text("open sesame, open", encoding="utf-8")
    terminal.up("--agents my_agents.py --serve lead")
    url = running_stacks(terminal.folder / ".orchestra")[0].redis_url
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

    terminal.must(
        "orchestra keys export lead counter writer --agents my_agents.py -o exported --passphrase-file pass"
    )
    terminal.must("orchestra keys import exported --passphrase-file pass", **there)
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
    assert terminal.must("python send.py").strip() == "{'2'}"


def test_a_service_of_another_host_starts_with_the_keys_that_it_signs_with(terminal: Terminal) -> None:
    """Without one it ends and says which; so does a stack of its own that is to work on the Redis of another."""
    (terminal.folder / "pass").write_text("open sesame, open", encoding="utf-8")
    terminal.up()
    url = running_stacks(terminal.folder / ".orchestra")[0].redis_url
    there = {"ORCHESTRA_REDIS_URL": url, "ORCHESTRA_DATA": str(terminal.folder / "there")}
    lacking = {"router": "reaper, router", "callbacks": "reaper", "reaper": "reaper"}
    for service, keys in lacking.items():
        refused = terminal.start(f"orchestra service {service}", **there)
        assert refused.process.wait(60) == 2, refused.output
        said = f"{keys} are not in" if "," in keys else f"{keys} is not in"
        assert said in refused.output
        assert f"`orchestra keys export {keys.replace(',', '')}" in refused.output
        assert "orchestra keys import" in refused.output
        assert refused.output.count("\n") == 1
    together = terminal.run("orchestra up", **there)
    assert together.returncode == 2
    # Of whichever service was the first to look.
    assert re.search(r"the key(s of reaper, router are| of reaper is) not in", together.stderr)
    unsigned = terminal.start("orchestra service audit", **there)
    unsigned.wait_for("audit-not-signed")
    assert "orchestra keys export operator" in unsigned.output
    assert unsigned.interrupt() == 0
    told = terminal.start("orchestra service notifier", **there, ORCHESTRA_NOTIFY_COMMAND="cat")
    wait_until(lambda: "notifier" in services(url), "a notifier, which signs nothing", 60)
    assert told.interrupt() == 0

    terminal.must("orchestra keys generate router reaper")
    terminal.must("orchestra keys export router reaper -o exported --passphrase-file pass")
    terminal.must("orchestra keys import exported --passphrase-file pass", **there)
    here = services(url)
    started = [terminal.start(f"orchestra service {service}", **there) for service in lacking]
    wait_until(lambda: services(url) == sorted([*here, *lacking]), "the services", 60)
    assert [one.interrupt() for one in started] == [0, 0, 0]


def services(url: str) -> list[str]:
    """The services and workers that give signs of life."""
    with connect(url) as redis:
        return sorted(record.service for record in live_services(redis))

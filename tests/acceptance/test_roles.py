"""A stack whose every process has the Redis user of its role, and no more."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import SessionState
from orchestrator.client.client import Client
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.redisdb.acl import PASSWORD
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import live_services
from tests.acceptance.conftest import Terminal, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

SECRET = "a-password-of-a-test"
AGENTS = """
from orchestrator import agent


@agent("lead", role="coordinator")
def lead(ctx):
    \"\"\"Asks two helpers.\"\"\"
    if ctx.cause == "start":
        for number in ("one", "two"):
            ctx.delegate("helper", title=number, description=number)
        return "waiting"
    return " and ".join(sorted(result.result for result in ctx.all_results))


@agent("helper", role="specialist")
def helper(ctx):
    \"\"\"Says back what it was told.\"\"\"
    return ctx.prompt * 2
"""


def test_a_tree_runs_with_each_part_under_the_rules_of_its_role(
    terminal: Terminal, start_valkey: Callable[..., ValkeyProcess], root: Path
) -> None:
    """Routed, worked, called back, answered, written to the trail and looked at; nobody lacked a permission."""
    server = start_valkey(durable=False)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with connect(server.url) as client:
        client.config_set("bind", "127.0.0.1")
        client.config_set("port", port)
        for file in (root / "deploy" / "acl").glob("*.acl"):
            client.execute_command("ACL", "SETUSER", *file.read_text().replace(PASSWORD, SECRET).split()[1:])
        client.config_set("requirepass", "nobody knows")

    def url(role: str) -> dict[str, str]:
        return {
            "ORCHESTRA_REDIS_URL": f"redis://{role}:{SECRET}@127.0.0.1:{port}/0",
            "ORCHESTRA_AGENTS": "mine.py",
        }

    (terminal.folder / "mine.py").write_text(AGENTS, encoding="utf-8")
    vouched = terminal.run("orchestra keys generate --agents mine.py", **url("operator"))
    assert vouched.returncode == 0, vouched.stderr
    commands = {
        "router": "orchestra router",
        "callbacks": "orchestra callbacks",
        "reaper": "orchestra reaper",
        "audit": "orchestra audit writer",
        "worker": "celery -A workers worker --concurrency 1 --without-gossip --without-mingle",
    }
    running = {role: terminal.start(command, **url(role)) for role, command in commands.items()}
    told = terminal.folder / "told"
    # It has no key of the stack.
    alone = {"ORCHESTRA_DATA": str(terminal.folder / "apart"), "ORCHESTRA_NOTIFY_COMMAND": f"tee -a {told}"}
    running["notifier"] = terminal.start("orchestra notifier", **url("notifier"), **alone)
    with Client(
        redis_url=url("operator")["ORCHESTRA_REDIS_URL"], data=terminal.folder / ".orchestra"
    ) as client:
        wait_until(client.agents, "the agents")
        with connect(url("operator")["ORCHESTRA_REDIS_URL"]) as server_client:
            wait_until(
                lambda: "notifier" in {one.service for one in live_services(server_client)}, "the notifier"
            )
        submitted = terminal.run("orchestra submit lead go --json", **url("operator"))
        assert submitted.returncode == 0, submitted.stderr
        (session,) = client.sessions()
        wait_until(
            lambda: (
                client.session(session.id).state is SessionState.FINISHED
                or any("ermission" in one.output for one in running.values())
            ),
            "the answer",
        )
        said = {role: one.output for role, one in running.items() if "ermission" in one.output}
        assert said == {}
        assert client.result(session.id) == "oneone and twotwo"
        wait_until(
            lambda: told.exists() and "agent-orchestra.session.finished" in told.read_text(),
            "the notification",
        )
    for command in ("sessions", f"tree {session.id}", "agents", f"why {session.id}", f"logs {session.id}"):
        done = terminal.run(f"orchestra {command}", **url("console"))
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    refused = terminal.run(f"orchestra stop {session.id}", **url("console"))
    assert refused.returncode == 1
    assert refused.stderr.startswith("Error: "), refused.stderr
    assert "lacks a permission" in refused.stderr
    looked = terminal.run("orchestra doctor --json", **url("console"))
    assert looked.stdout.startswith("{"), looked.stderr
    assert "the roots of shard 0 cannot be read" not in looked.stdout, looked.stdout
    said = {role: one.output for role, one in running.items() if "ermission" in one.output}
    assert said == {}

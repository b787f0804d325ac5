"""A stack as `deploy/` runs it: every process has the Redis user of its role and the keys that it signs with, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.redisdb.acl import PASSWORD
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import live_services
from tests.acceptance.conftest import Terminal, open_terminal, wait_until
from tests.acceptance.test_flower import USER, Flower
from tests.ports import free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

SECRET = "a-password-of-a-test"
AGENTS = '''
from orchestrator import agent


@agent("lead", role="coordinator")
def lead(ctx):
    """Asks two helpers."""
    if ctx.cause == "start":
        for number in ("one", "two"):
            ctx.delegate("helper", number, title=number)
        return "waiting"
    return " and ".join(sorted(result.result for result in ctx.all_results))


@agent("helper", role="specialist")
def helper(ctx):
    """Says back what it was told."""
    return ctx.prompt * 2


@agent("broken")
def broken(ctx):
    raise ValueError("it is")


@agent("sly")
def sly(ctx):
    """Asks for an approval."""
    return f"approved: {ctx.request_approval('remove', {'what': 'all'}).approved}"
'''


class Deployed:
    """The processes, each as its own user and with its own data folder."""

    def __init__(self, terminal: Terminal, server: ValkeyProcess, root: Path) -> None:
        self._port = free_port()
        with connect(server.url) as client:
            client.config_set("bind", "127.0.0.1")
            client.config_set("port", self._port)
            for file in (root / "deploy" / "acl").glob("*.acl"):
                rules = file.read_text().replace(PASSWORD, SECRET).split()[1:]
                client.execute_command("ACL", "SETUSER", *rules)
            client.config_set("requirepass", "nobody knows")
        self.terminal = terminal
        (terminal.folder / "mine.py").write_text(AGENTS, encoding="utf-8")
        terminal.env |= {"ORCHESTRA_AGENTS": "mine.py", "PARTS_DATA": str(terminal.folder / "parts")}
        terminal.must(f"sh '{root / 'deploy' / 'make-keys'}'", **self.of("operator"))
        self.running = {
            role: terminal.start(command, **self.of(role))
            for role, command in {
                "router": "orchestra service router",
                "callbacks": "orchestra service callbacks",
                "reaper": "orchestra service reaper",
                "audit": "orchestra service audit",
                # As Celery starts one by itself, which greets other workers first.
                "worker": "celery -A workers worker --concurrency 1",
                "notifier": "orchestra service notifier",
            }.items()
        }
        with connect(self.of("operator")["ORCHESTRA_REDIS_URL"]) as client:
            wait_until(lambda: {one.service for one in live_services(client)} == {*self.running}, "the stack")
        wait_until(lambda: "sly" in self.must("orchestra agents"), "the agents")

    def of(self, role: str) -> dict[str, str]:
        """The environment of a part."""
        told = {"ORCHESTRA_NOTIFY_COMMAND": f"tee -a {self.told}"} if role == "notifier" else {}
        return {
            "ORCHESTRA_REDIS_URL": f"redis://{role}:{SECRET}@127.0.0.1:{self._port}/0",
            "ORCHESTRA_DATA": str(self.terminal.folder / "parts" / role),
            **told,
        }

    @property
    def told(self) -> Path:
        """What the notifier has told."""
        return self.terminal.folder / "told"

    def must(self, command: str, role: str = "operator") -> str:
        """What a command prints, as a role."""
        return self.terminal.must(command, **self.of(role))

    def lacking(self) -> dict[str, str]:
        """Who has said that it lacks a permission or a key."""
        words = ("ermission", "not-attested", "KeyringError", "Read-only")
        return {role: one.output for role, one in self.running.items() if any(w in one.output for w in words)}


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[Deployed]:
    sockets = make_socket_dir()
    server = ValkeyProcess(tmp_path_factory.mktemp("valkey"), sockets, durable=False)
    server.start()
    with open_terminal() as terminal:
        yield Deployed(terminal, server, root)
    server.stop()
    remove_socket_dir(sockets)


def test_a_tree_runs_with_each_part_under_the_rules_of_its_role(deployed: Deployed) -> None:
    """Routed, worked, called back, answered, written to the trail and looked at; nobody lacked a permission or a key."""
    assert deployed.must("orchestra submit lead go --wait") == "oneone and twotwo\n"
    failed = deployed.terminal.run("orchestra submit broken go --wait", **deployed.of("operator"))
    assert (failed.returncode, "it is" in failed.stderr) == (1, True), failed.stderr
    wait_until(
        lambda: deployed.told.exists() and "session.finished" in deployed.told.read_text(), "a notification"
    )
    for command in ("sessions", "tree @last", "agents", "why @last", "logs @last", "doctor --json"):
        shown = deployed.must(f"orchestra {command}", "console")
        assert "the roots of shard 0 cannot be read" not in shown
    refused = deployed.terminal.run("orchestra session delete @last", **deployed.of("console"))
    assert (refused.returncode, "lacks a permission" in refused.stderr) == (2, True), refused.stderr

    def verified() -> str:
        # As the service `operator` does, which shares the database.
        where = deployed.of("operator") | {"ORCHESTRA_DATA": deployed.of("audit")["ORCHESTRA_DATA"]}
        done = deployed.terminal.run("orchestra audit verify", **where)
        return done.stdout + done.stderr

    wait_until(lambda: "the trail is intact" in verified(), "the trail", 60, explain=verified)
    assert deployed.lacking() == {}


def test_what_runs_in_a_worker_answers_no_approval_and_makes_no_key(deployed: Deployed) -> None:
    """It has the worker's settings and keys, and says nothing of its session; a person answers with the operator's."""
    deployed.must("orchestra submit sly go")

    def asked() -> list[dict[str, str]]:
        found: list[dict[str, str]] = json.loads(deployed.must("orchestra questions --json"))["approvals"]
        return found

    wait_until(asked, "the approval")
    refused = deployed.terminal.run(f"orchestra approve {asked()[0]['id']}", **deployed.of("worker"))
    assert (refused.returncode, "operator's host" in refused.stderr) == (2, True), (
        refused.stdout + refused.stderr
    )
    assert not list((deployed.terminal.folder / "parts" / "worker").rglob("operator.pem"))
    made = deployed.terminal.run("orchestra keys generate mallory", **deployed.of("worker"))
    assert (made.returncode, "operator's host" in made.stderr) == (2, True), made.stderr
    assert asked()
    deployed.must(f"orchestra approve {asked()[0]['id']}")
    assert deployed.must("orchestra result @last --wait") == "approved: True\n"


def test_flower_hears_of_tasks_and_reaches_nothing_of_the_ledger(deployed: Deployed) -> None:
    port = free_port()
    login = {"FLOWER_BASIC_AUTH": USER}
    running = deployed.terminal.start(
        f"celery -A workers flower --port={port}", **deployed.of("flower"), **login
    )
    flower = Flower(port)
    running.wait_for("Connected to redis")

    def heard() -> object:
        deployed.must("orchestra submit helper x")
        return flower.tasks()

    wait_until(heard, "a task in Flower", 60)
    assert "Failed to capture events" not in running.output
    refused = deployed.terminal.run("orchestra sessions", **deployed.of("flower"))
    assert (refused.returncode, "lacks a permission" in refused.stderr) == (2, True), refused.stderr

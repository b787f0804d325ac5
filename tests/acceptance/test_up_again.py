"""`orchestra up` ends and comes back: what others run of the same stack finds it again, and nothing runs twice."""

from __future__ import annotations

import time

import pytest

from orchestrator.client.client import Client
from tests.acceptance.conftest import Terminal, wait_until
from tests.acceptance.test_quickstart import tasks_in_flower

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

#: Seconds after the stack is ready again within which a worker and Flower have found it.
BACK_WITHIN_S = 15

AGENTS = """
import time
from pathlib import Path
from orchestrator import agent

@agent("slow", queue="slow")
def slow(ctx):
    with Path("began").open("a") as file:
        file.write(ctx.prompt + "\\n")
    while not Path(ctx.prompt).exists():
        time.sleep(0.05)
    return "done " + ctx.prompt
"""


def test_a_second_worker_and_flower_outlive_an_up(terminal: Terminal) -> None:
    """A run that ends while the server is away commits after it, and the worker takes the next one."""
    (terminal.folder / "slow.py").write_text(AGENTS, encoding="utf-8")
    page = terminal.folder / "flower.sock"
    first = terminal.up("--concurrency 1")
    worker = terminal.start("celery -A workers worker --concurrency 1", ORCHESTRA_AGENTS="slow.py")
    terminal.start("celery -A workers flower", FLOWER_UNIX_SOCKET=str(page), FLOWER_BASIC_AUTH="user:word")
    worker.wait_for(" ready.")
    wait_until(page.exists, "Flower's socket")
    with terminal.client() as client:
        url = client.settings.redis_url
        one = client.submit("slow", "one").id
        wait_until((terminal.folder / "began").exists, "the run")
    assert first.interrupt() == 0
    (terminal.folder / "one").touch()
    time.sleep(2)  # The agent is done now, and nobody is there to be told.
    again = terminal.up("--concurrency 1")
    ready = time.monotonic()
    with terminal.client() as client:
        assert client.settings.redis_url == url
        assert client.result(one, timeout_s=60) == "done one"
        (terminal.folder / "two").touch()
        two = client.submit("slow", "two").id
        assert client.result(two, timeout_s=60) == "done two"
        assert time.monotonic() - ready < BACK_WITHIN_S
        assert [(len(runs), runs[0].attempt, runs[0].lost) for runs in map(client.runs, (one, two))] == [
            (1, 1, 0)
        ] * 2
        wait_until(lambda: flower_has_a_later_one(client, terminal), "a later session in Flower", 60)
        assert time.monotonic() - ready < BACK_WITHIN_S
        sessions = client.sessions()
        assert all(len(client.runs(session.id)) == 1 for session in sessions)
    assert sorted((terminal.folder / "began").read_text().split()) == sorted(s.title for s in sessions)
    healthy = terminal.document("orchestra doctor --quick")
    assert healthy["holds"], healthy
    assert again.interrupt() == 0


def flower_has_a_later_one(client: Client, terminal: Terminal) -> bool:
    """Submit one more, and look whether Flower has heard of it or of any since the stack is back."""
    session = client.submit("slow", "two").id
    client.result(session, timeout_s=60)
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        if any(session in task["kwargs"] for task in tasks_in_flower(terminal.folder / "flower.sock")):
            return True
        time.sleep(0.05)
    return False

"""`celery -A workers …`: the same stack through Celery's own program, and what it says when it cannot start."""

from __future__ import annotations

import base64
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.redisdb.client import connect
from tests.acceptance.conftest import Terminal, wait_until
from tests.ports import free_port

pytestmark = pytest.mark.acceptance


def refusal(terminal: Terminal, command: str, *, code: int = 2, **env: str) -> str:
    done = terminal.run(command, **env)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.startswith("Error: "), done.stderr
    assert done.stderr.count("\n") == 1
    terminal.assert_nothing_left()
    return done.stderr


def test_a_worker_without_a_stack_says_how_to_get_one(terminal: Terminal) -> None:
    said = refusal(terminal, "celery -A workers worker", code=4)
    assert f"no stack is running on {terminal.folder}/.orchestra; start `orchestra up`" in said


def test_a_worker_whose_agents_cannot_be_loaded_does_not_start(terminal: Terminal) -> None:
    (terminal.folder / "mine.py").write_text("x = 1\nfrom nowhere import agents\n", encoding="utf-8")
    said = refusal(
        terminal,
        "celery -A workers worker",
        ORCHESTRA_AGENTS="mine.py",
        ORCHESTRA_REDIS_URL="unix:///nowhere/valkey.sock",
    )
    assert said.startswith(
        "Error: cannot load agents from mine.py: line 2: ModuleNotFoundError: No module named 'nowhere'; install it"
    )


def test_a_worker_with_a_wrong_password_ends_and_says_so(
    terminal: Terminal, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    """Of the ledger's server or of the broker; Celery by itself would try a hundred times."""
    server = start_valkey(durable=False)
    with connect(server.url) as client:
        client.config_set("requirepass", "right")
    said = refusal(terminal, "celery -A workers worker", ORCHESTRA_REDIS_URL=f"{server.url}&password=wrong")
    assert "asks for a password and refused the password in the URL" in said
    right = {"ORCHESTRA_REDIS_URL": f"{server.url}&password=right", "ORCHESTRA_BROKER_URL": "nosuch://host"}
    said = refusal(terminal, "celery -A workers worker", **right)
    assert "the Celery broker nosuch://host cannot be used: No such transport: nosuch" in said


def test_a_worker_waits_for_a_server_that_is_away_and_says_for_which(terminal: Terminal) -> None:
    terminal.in_process = False
    worker = terminal.start("celery -A workers worker", ORCHESTRA_REDIS_URL="redis://:hunter2@127.0.0.1:1/0")
    worker.wait_for("waiting: cannot reach Redis at redis://:***@127.0.0.1:1/0")
    assert worker.process.poll() is None


@pytest.mark.parametrize(
    "more",
    ["", "--conf=mine.py", "--auth_provider=flower.views.auth.GithubLoginHandler"],
    ids=["nothing", "file", "provider"],
)
def test_flower_listens_on_loopback_and_asks_for_a_password(
    more: str, terminal: Terminal, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    """Also with a file of options, or a way to log in, that names nobody who may."""
    (terminal.folder / "mine.py").write_text("max_tasks = 50\n")
    port = free_port()
    url = {"ORCHESTRA_REDIS_URL": start_valkey(durable=False).url}
    flower = terminal.start(f"celery -A workers flower --port={port} {more}", **url)
    flower.wait_for("Flower asks for user orchestra and password ")
    password = flower.output.partition("and password ")[2].partition(";")[0]

    def status(credentials: str = "", page: str = "workers") -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{port}/{page}")
        if credentials:
            request.add_header("Authorization", f"Basic {base64.b64encode(credentials.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return int(error.code)
        except OSError:
            return 0

    wait_until(status, "Flower", 60)
    assert [status(page=page) for page in ("workers", "tasks", "metrics", "api/workers")] == [401] * 4
    assert status(page="healthcheck") == 200
    assert status("orchestra:wrong") == 401
    assert [status(f"orchestra:{password}", page) for page in ("workers", "metrics")] == [200, 200]
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    addresses = {
        line.split()[1] for line in listening.splitlines() if line.split()[1].endswith(f":{port:04X}")
    }
    assert "00000000" not in {address.partition(":")[0] for address in addresses}
    assert not [address for address in addresses if address.startswith("0" * 32)]


def test_a_login_of_a_file_of_options_is_the_one_that_counts(
    terminal: Terminal, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    (terminal.folder / "mine.py").write_text("basic_auth = ['me:mine']\nunix_socket = 'flower.sock'\n")
    flower = terminal.start(
        "celery -A workers flower --conf=mine.py", ORCHESTRA_REDIS_URL=start_valkey(durable=False).url
    )
    flower.wait_for("Visit me")
    assert "Flower asks for user" not in flower.output


def test_a_wrong_setting_is_named(terminal: Terminal) -> None:
    said = refusal(terminal, "celery -A workers flower", ORCHESTRA_LEASE_S="soon")
    assert "ORCHESTRA_LEASE_S: input should be a valid number" in said


def test_the_commands_are_there_without_a_stack(terminal: Terminal) -> None:
    done = terminal.must("celery -A workers orchestra --help")
    assert "Run the whole stack in this terminal." in done

"""`orchestra up` as a user runs it: ready, joined, stopped, killed, and started wrongly; nothing is ever left."""

from __future__ import annotations

import json
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import live_services
from tests.acceptance.conftest import RETRY_FOR_S, Terminal, open_terminal
from tests.acceptance.shouting import AGENTS
from tests.tls import tls_server
from tests.waiting import wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

#: An agents file with one model agent.
MODEL = "from orchestrator import model_agent\nmodel_agent('mine', model='anthropic:claude-x')\n"


class Place(Terminal):
    """A terminal in a folder with a space in its name, which shows what a stack says of errors apart."""

    @property
    def announced(self) -> list[Path]:
        """What the stacks of the folder say of themselves."""
        return list((self.folder / ".orchestra" / "up").glob("*.json"))

    def assert_nothing_left(self) -> None:
        wait_until(lambda: not self.processes(), "their end", 15, explain=self.processes)
        assert list(Path(self.env["TMPDIR"]).glob("orchestra-*")) == []
        assert self.announced == []

    def begin(self, *arguments: str, prelude: str = "", **env: str) -> subprocess.Popen[str]:
        """Begin `orchestra up`."""
        code = f"{prelude}\nfrom orchestrator.cli import main; main(prog_name='orchestra')"
        return subprocess.Popen(
            [sys.executable, "-c", code, "up", *arguments],
            cwd=self.folder,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """The output up to the line that begins with these words."""
    assert process.stdout
    assert process.stderr
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith(words):
            return "".join(lines)
    raise AssertionError(f"it ended first: {''.join(lines)}{process.stderr.read()}")


@pytest.fixture
def place() -> Iterator[Place]:
    with open_terminal() as opened:
        home = opened.folder / "a home"
        home.mkdir()
        yield Place(home, {**opened.env, "ORCHESTRA_CONCURRENCY": "2", "ORCHESTRA_CONSOLE": "false"})


def test_a_stack_starts_is_joined_and_stops_without_a_trace(place: Place) -> None:
    """Ready within seconds; others find it by its folder; a second `up` makes it bigger and outlives the first."""
    first = place.begin("--review", ".")
    output = read_until(first, "ready after")
    assert "lead" in output
    assert "reviewer" in output
    assert place.document("orchestra sessions") == {"sessions": []}

    (announced,) = place.announced
    url = json.loads(announced.read_text())["redis_url"]
    client = connect(url)
    names = ["audit", "callbacks", "reaper", "router", "worker"]
    assert [record.service for record in live_services(client)] == names

    assert "joins" not in output
    second = place.begin()
    assert f"it joins the stack of process {first.pid}: each adds its services" in read_until(
        second, "ready after"
    )
    assert sorted(record.service for record in live_services(client)) == sorted(names * 2)
    first.send_signal(signal.SIGINT)
    assert first.wait(30) == 0
    assert [record.service for record in live_services(client)] == names
    client.close()
    second.send_signal(signal.SIGTERM)
    assert second.wait(30) == 0
    place.assert_nothing_left()
    refused = place.run("orchestra sessions")
    assert refused.returncode == 4
    assert refused.stderr.startswith("Error: no stack is running on")


def test_a_killed_up_leaves_nothing(place: Place) -> None:
    """After `kill -9`: no worker, no service, no server, no socket; what is left of the announcement is stale."""
    process = place.begin()
    read_until(process, "ready after")
    assert len(place.processes()) >= 7
    process.kill()
    process.wait()
    wait_until(lambda: not place.processes(), "their end", 20, explain=place.processes)
    assert list(Path(place.env["TMPDIR"]).glob("orchestra-*")) == []
    assert place.run("orchestra sessions").stderr.startswith("Error: no stack is running on")


@pytest.mark.parametrize("moment", ["", "starting a stack", "  ", "ready after"])
def test_interrupting_at_any_moment_leaves_nothing(moment: str, place: Place) -> None:
    """Before it says anything, with the server just up, with the first process ready, and when all are."""
    process = place.begin()
    if moment:
        read_until(process, moment)
    else:
        time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=15)
    except subprocess.TimeoutExpired:
        # While Python itself starts, an interruption can go unheard; whoever sits there presses again.
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    place.assert_nothing_left()


def test_interrupting_while_agents_do_not_load_ends_it(place: Place) -> None:
    (place.folder / "mine.py").write_text(
        "import pathlib, time\npathlib.Path(__file__).with_name('begun').touch()\ntime.sleep(600)\n"
    )
    process = place.begin("--agents", "mine.py")
    wait_until((place.folder / "begun").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130  # 1, if it waited for them
    place.assert_nothing_left()


# --- started wrongly: one line, an exit code, nothing left --------------------------------------------------------


def assert_refused(terminal: Terminal, command: str, words: str, *, code: int = 2, **env: str) -> None:
    up = terminal.start(f"orchestra up {command}", **env)
    assert up.process.wait(RETRY_FOR_S) == code, up.output
    assert (up.output.startswith("Error: "), up.output.count("\n")) == (True, 1), up.output
    assert words in up.output
    terminal.assert_nothing_left()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("from orchestrator import agent\n\n\ndef broken(:\n    ...\n", "mine.py: line 4: SyntaxError"),
        (MODEL, "set ANTHROPIC_API_KEY in the worker's environment"),
    ],
    ids=["broken", "no-key"],
)
def test_agents_that_cannot_be_loaded(content: str, words: str, terminal: Terminal) -> None:
    """What is said of each other mistake is tested where files are loaded and models are made."""
    (terminal.folder / "mine.py").write_text(content)
    assert_refused(terminal, "--agents mine.py", words)
    # Nothing was started for it: no server, no service, no worker.
    data = terminal.folder / ".orchestra"
    assert not [*data.glob("**/*.log"), *data.glob("**/*valkey*")]


def test_what_it_cannot_run_on_is_named(
    terminal: Terminal, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    """A server that is away, another one's password, a data folder, and settings."""
    away = "redis://:hunter2@127.0.0.1:1/0"
    assert_refused(terminal, f"--redis-url {away}", "cannot reach Redis at redis://:***@", code=4)
    server = start_valkey(durable=False)
    with connect(server.url) as client:
        client.config_set("requirepass", "right")
    wrong = f"{server.url}&password=wrong"
    assert_refused(terminal, "", "refused the password in the URL", ORCHESTRA_REDIS_URL=wrong)
    (terminal.folder / "file").write_text("in the way")
    assert_refused(terminal, "--data file/data", "cannot write to the data folder")
    assert_refused(terminal, "", "ORCHESTRA_LEASE_S: ", ORCHESTRA_LEASE_S="soon")
    named = "ORCHESTRA_BROKER_URL: not a URL; write it like"
    assert_refused(terminal, "", named, ORCHESTRA_BROKER_URL="host")


class _OldRedis(socketserver.StreamRequestHandler):
    """Answers as a Redis 5 would, as far as a client asks one that it does not know yet."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            count = int(line[1:])
            words = []
            for _ in range(count):
                self.rfile.readline()
                words.append(self.rfile.readline().strip().upper())
            if words[0] == b"INFO":
                body = b"# Server\r\nredis_version:5.0.14\r\n"
                self.wfile.write(b"$%d\r\n%s\r\n" % (len(body), body))
            else:
                self.wfile.write(b"+PONG\r\n" if words[0] == b"PING" else b"+OK\r\n")


def test_a_redis_that_is_too_old(terminal: Terminal) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _OldRedis) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"redis://127.0.0.1:{server.server_address[1]}/0"
        assert_refused(
            terminal, f"--redis-url {url}", "is version 5.0.14; agent-orchestra needs Redis 6.2 or newer"
        )
        server.shutdown()


def test_a_server_that_keeps_nothing_is_named(
    place: Place, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    process = place.begin("--redis-url", start_valkey(durable=False).url)
    read_until(process, "ready after")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=50)
    assert errors == (
        "Warning: the server keeps no append-only file: a restart loses everything; set appendonly yes, and appendfsync always\n"
    )


def test_a_full_disk(place: Place) -> None:
    """The server stops rather than lose a write, and `up` says why and ends."""
    # A limit on the size of files stands in for the disk; it is given to everything that `up` starts, and leaves room
    # for what measures coverage.
    prelude = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))"
    )
    process = place.begin(prelude=prelude)
    read_until(process, "ready after")
    (announced,) = place.announced
    client = connect(json.loads(announced.read_text())["redis_url"])
    written = 0
    try:
        for written in range(300):
            client.set(f"key{written}", "x" * 20_000)
    except Exception:
        assert written > 0
    _, errors = process.communicate(timeout=50)
    assert process.returncode == 2
    assert (errors.startswith("Error: "), errors.count("\n")) == (True, 1), errors
    assert "the disk is full or broken" in errors
    place.assert_nothing_left()
    client.close()


# --- on a server of one's own -------------------------------------------------------------------------------------


@pytest.fixture
def tls_redis(program: Callable[[str], str], tmp_path: Path) -> Iterator[str]:
    """The URL of a server over TLS names its database 2."""
    with tls_server(program("redis-server"), program("openssl"), tmp_path) as (port, certificate):
        yield f"rediss://:pw@localhost:{port}/2?ssl_ca_certs={certificate}"


def test_the_stack_runs_over_tls_with_a_password_on_the_named_database_and_a_broker_apart(
    place: Place, tls_redis: str, start_valkey: Callable[..., ValkeyProcess]
) -> None:
    broker = start_valkey(durable=False)
    (place.folder / "mine.py").write_text(AGENTS)
    place.env["ORCHESTRA_BROKER_URL"] = broker.url.replace("db=0", "db=1")
    process = place.begin("--agents", "mine.py", "--redis-url", tls_redis, "--verbose")
    output = read_until(process, "ready after")
    assert "worker    | " in output
    assert ":pw@" not in output
    assert place.must("orchestra submit lead 'to be or not' --wait").strip() == "BE NOT OR TO"
    with connect(tls_redis) as ledger, connect(broker.url.replace("db=0", "db=1")) as queues:
        assert set(ledger.info("keyspace")) == {"db2"}
        assert not [key for key in ledger.scan_iter() if b"kombu" in key]
        assert [key for key in queues.scan_iter() if b"kombu" in key]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=40)
    assert process.returncode == 0
    place.assert_nothing_left()


def test_what_was_registered_by_a_stack_that_is_gone_is_not_taken_for_served(terminal: Terminal) -> None:
    """The work is kept, everybody says whom it waits for, and it is done when its agent is back."""
    (terminal.folder / "my_agents.py").write_text(
        "from orchestrator import agent\n\n@agent('lead')\ndef lead(ctx):\n    return 'done'\n"
    )
    first = terminal.start("orchestra up --agents my_agents.py")
    first.wait_for("In another terminal")
    assert "; agents: lead\n" in first.output
    assert first.interrupt() == 0
    second = terminal.start("orchestra up")
    second.wait_for("In another terminal")
    assert "registered, but served by no living worker: lead\n" in second.output
    assert "agents: none" in second.output
    listed = terminal.must("orchestra agents")
    assert "NO LIVING WORKER SERVES IT" in listed
    assert "reviewer" not in listed  # the bundled agents are there when they are asked for
    done = terminal.run("orchestra submit lead go")
    assert "no living worker serves 'lead'" in done.stderr
    session = done.stdout.strip()
    wait_until(lambda: "nobody: no living worker serves 'lead'" in terminal.must(f"orchestra why {session}"))
    doctor = terminal.run("orchestra doctor").stdout
    assert f"of {session} waits for a worker, and no living worker serves 'lead'" in doctor
    terminal.start("orchestra up --agents my_agents.py")
    assert terminal.must(f"orchestra result {session} --wait --timeout 45") == "done\n"


def test_a_limit_that_fits_no_model_is_named_before_the_stack_is_ready(terminal: Terminal) -> None:
    """By the worker, too, whose log nobody reads; and again where a changed file has no such model."""
    agents = terminal.folder / "models.py"
    model = 'from orchestrator import model_agent\nmodel_agent("writer", model="openai-chat:{}", base_url="http://127.0.0.1:9/v1")\n'
    agents.write_text(model.format("qwen3"), encoding="utf-8")
    limits = '{"openai-chat/*": {"calls": 1}, "openai/qwen*": {"calls": 1}}'
    up = terminal.up("--reload --agents models.py", ORCHESTRA_PROVIDER_LIMITS=limits)
    said = "provider_limits: {} no model of the agents here, which are openai/{};"
    before, _ = up.output.split("ready after")
    assert "Warning: " + said.format("'openai-chat/*' fits", "qwen3") in before
    agents.write_text(model.format("smollm2"), encoding="utf-8")
    up.wait_for(said.format("'openai-chat/*', 'openai/qwen*' fit", "smollm2"))
    assert up.interrupt() == 0

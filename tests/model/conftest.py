"""A real model on llama.cpp's server, in an environment of its own, and a stack whose agents ask it."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from orchestrator.client.client import SessionHandle
from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.ledger import Session
from tests.chaos.stack import Stack, wait_until
from tests.forks import start_forks

HERE = Path(__file__).parent
#: Where `make test-model` installs the model and its server.
ENVIRONMENT = HERE.parents[1] / ".venv-model"
#: Tokens of a conversation on one slot of the server.
CONTEXT = 512


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.model)
            item.add_marker(pytest.mark.timeout(480))
            if not (ENVIRONMENT / ".model").exists():
                item.add_marker(
                    pytest.mark.skip(reason="there is no model here; `make test-model` installs one")
                )


class ModelServer:
    """The server; it comes back at the same address."""

    def __init__(self, folder: Path, *, slots: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._slots = slots
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it has loaded the model."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    ENVIRONMENT / "bin" / "python",
                    HERE / "serve.py",
                    str(self.port),
                    str(self._slots),
                    str(CONTEXT),
                ],
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers, "the model's server", explain=lambda: self._log.read_text()[-2000:])

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def tokens(self) -> tuple[int, int]:
        """What it has read, from its cache included, and what it has written."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            found = dict(re.findall(r"^llamacpp:(\w+) (\d+)$", answer.read().decode(), re.MULTILINE))
        read = int(found["prompt_tokens_total"]) + int(found["prompt_tokens_cached_total"])
        return read, int(found["tokens_predicted_total"])

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
            return True
        return False


class Trees(Stack):
    """A stack with agents on a real model."""

    def answer(self, session: SessionHandle, *, timeout_s: float = 300) -> str:
        """As for every stack; a model on a busy machine takes its time."""
        return super().answer(session, timeout_s=timeout_s)

    def submit(self, agent: str, prompt: str) -> SessionHandle:
        with self.client() as client:
            return client.submit(agent, prompt)

    def ends(self, session: SessionHandle, *, runs: int) -> None:
        """Return once the session has finished with so many runs."""

        def finished() -> bool:
            begun = len(self.ledger.runs(session.id))  # before the session: with its last run it is busy
            now = self.ledger.session(session.id)
            assert now.state.value != "failed", now.reason
            return begun == runs and not now.busy and now.state.value == "finished"

        wait_until(finished, f"run {runs} of {session.id}", explain=self.logs)

    def tree(self, root: SessionHandle) -> list[Session]:
        """The children, after everything has ended and the promise was proved."""
        self.assert_settled()
        return [session for session in self.ledger.tree(root.id) if session.parent]

    def used(self, *sessions: str) -> tuple[int, int]:
        """Tokens that the ledger counts, read and written."""
        used = [self.ledger.session(session).used for session in sessions]
        return sum(one.input_tokens for one in used), sum(one.output_tokens for one in used)


def of_the_page(language: str) -> list[str]:
    """The blocks of a language on the page "Local models"."""
    page = (HERE.parents[1] / "docs" / "howto" / "local-models.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


class Interrupter(ThreadingHTTPServer):
    """Passes requests on; the first stream ends after a few pieces, in good order and without a reason."""

    daemon_threads = True

    def __init__(self, to: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.to = to
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"
        #: What each stream said in its last piece.
        self.reasons: list[str | None] = []


class _Passing(BaseHTTPRequestHandler):
    server: Interrupter

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is written."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        url = self.server.to.removesuffix("/v1") + self.path
        asked = urllib.request.Request(url, body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=120) as answer:
            self.send_response(200)
            self.send_header("content-type", answer.headers["content-type"])
            self.end_headers()
            first, reason, pieces = not self.server.reasons, None, 0
            for line in answer:
                if line.startswith(b"data: {"):
                    pieces += 1
                    choices = json.loads(line.removeprefix(b"data: ")).get("choices")
                    reason = choices[0].get("finish_reason") if choices else reason
                    if first and (reason or pieces > 6):  # however short the answer is
                        reason = None
                        break
                self.wfile.write(line)
            self.server.reasons.append(reason)


@pytest.fixture(scope="module")
def interrupter(server: ModelServer) -> Iterator[Interrupter]:
    passing = Interrupter(server.url)
    threading.Thread(target=passing.serve_forever, daemon=True).start()
    yield passing
    passing.shutdown()
    passing.server_close()


@pytest.fixture(scope="module")
def one_slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    """A server that answers one request after the other; it is not started."""
    server = ModelServer(tmp_path_factory.mktemp("one-slot"), slots=1)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelServer]:
    server = ModelServer(tmp_path_factory.mktemp("server"), slots=2)
    server.start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def stack(
    server: ModelServer,
    one_slot: ModelServer,
    interrupter: Interrupter,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Trees]:
    with ExitStack() as leaving:
        forks = start_forks("orchestrator.worker.executors.llm", "pydantic_ai.models.openai")
        leaving.callback(forks.close)
        socket_dir = make_socket_dir()
        leaving.callback(remove_socket_dir, socket_dir)
        folder = tmp_path_factory.mktemp("stack")
        valkey = leaving.enter_context(ValkeyProcess(folder / "valkey", socket_dir))
        stack = leaving.enter_context(
            Trees(
                forks,
                valkey,
                folder / "stack",
                {"concurrency": "4", "lease_s": "5"},
                agents=(str(HERE / "agents.py"), str(folder / "agents.toml"), str(folder / "critic.py")),
                agent="lead",
            )
        )
        for language, name in (("toml", "agents.toml"), ("python", "critic.py")):
            (folder / name).write_text(of_the_page(language)[0].replace("127.0.0.1:8080", server.url[7:-3]))
        of_llm = folder / "llm"
        of_llm.mkdir()
        (of_llm / "extra-openai-models.yaml").write_text(
            f"- model_id: local\n  model_name: smollm2\n  api_base: {server.url}\n"
        )
        stack.env |= {
            "MODEL_URL": server.url,
            "ONE_SLOT_URL": one_slot.url,
            "CUT_URL": interrupter.url,
            "LLM_PROGRAM": str(ENVIRONMENT / "bin" / "llm"),
            "LLM_USER_PATH": str(of_llm),
            # The plugin with the model would run it in the program itself.
            "LLM_LOAD_PLUGINS": "",
        }
        stack.start_all()
        yield stack

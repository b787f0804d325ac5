"""The first commands and the quickstart of the README, each step as printed, with the wheel in an empty environment."""

from __future__ import annotations

import base64
import http.client
import json
import re
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.acceptance.conftest import Terminal, open_wheel_terminal, own_packages, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]


@dataclass(frozen=True)
class Step:
    """A fenced block of the quickstart."""

    language: str
    text: str

    @property
    def expected(self) -> str:
        """The output that the block promises: its last lines that are comments."""
        lines = self.text.rstrip().splitlines()
        return lines[-1].removeprefix("# ") if lines[-1].startswith("# ") else ""


def steps(readme: Path, heading: str) -> list[Step]:
    """The fenced blocks below a heading."""
    section = readme.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return [Step(language, text) for language, text in re.findall(r"```(\w+)\n(.*?)```", section, re.DOTALL)]


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def tasks_in_flower(path: Path) -> list[dict[str, str]]:
    """What Flower's page of tasks lists."""
    connection = _UnixConnection(path)
    query = (
        "draw=1&start=0&length=100&search%5Bvalue%5D=&order%5B0%5D%5Bcolumn%5D=0&order%5B0%5D%5Bdir%5D=asc"
    )
    try:
        login = {"Authorization": f"Basic {base64.b64encode(b'user:word').decode()}"}
        connection.request("GET", f"/tasks/datatable?{query}&columns%5B0%5D%5Bdata%5D=name", headers=login)
        found: list[dict[str, str]] = json.loads(connection.getresponse().read())["data"]
    except OSError:
        return []
    finally:
        connection.close()
    return found


def test_the_first_commands_work_as_printed(tmp_path_factory: pytest.TempPathFactory, root: Path) -> None:
    first, second = (step.text.splitlines() for step in steps(root / "README.md", "Begin")[:2])
    install, init, enter_and_run = first
    submit, answer, tree = second
    assert install == "pip install agent-orchestra"
    with open_wheel_terminal(tmp_path_factory) as terminal:
        terminal.must(init)
        enter, run = enter_and_run.split(" && ")
        terminal.folder /= enter.removeprefix("cd ")
        stack = terminal.start(run)
        stack.wait_for("ready after")
        assert f"# {terminal.must(submit)}" == f"{answer}\n"
        assert "3 launched = 3 delivered" in terminal.must(tree)
        assert stack.interrupt() == 0


def test_every_step_of_the_quickstart_works_as_printed(
    tmp_path_factory: pytest.TempPathFactory, root: Path
) -> None:
    with open_wheel_terminal(tmp_path_factory, "flower") as terminal:
        own_packages(terminal.folder)
        go_through_the_quickstart(terminal, root)


def go_through_the_quickstart(terminal: Terminal, root: Path) -> None:
    agents, up, submit, celery, client, worker, admit, flower = steps(root / "README.md", "Quickstart")
    assert len(agents.text.strip().splitlines()) <= 20
    (terminal.folder / "my_agents.py").write_text(agents.text, encoding="utf-8")

    stack = terminal.start(up.text.strip())
    stack.wait_for("ready after")

    assert terminal.must(submit.text.splitlines()[0]) == f"{submit.expected}\n"

    for name, step in (("with_celery.py", celery), ("with_client.py", client)):
        (terminal.folder / name).write_text(step.text, encoding="utf-8")
        assert terminal.must(f"python {name}") == f"{step.expected}\n"

    second = terminal.start(worker.text.strip())
    page = terminal.folder / "flower.sock"
    terminal.start(flower.text.strip(), FLOWER_UNIX_SOCKET=str(page), FLOWER_BASIC_AUTH="user:word")
    second.wait_for(" ready.")
    wait_until(page.exists, "Flower's socket")

    *here, there = admit.text.splitlines()
    terminal.must("\n".join(here))
    terminal.must(there, ORCHESTRA_DATA=str(terminal.folder / "there"))

    with terminal.client() as look:
        handle = look.submit("lead", ". ".join(["one two three"] * 60))
        assert handle.result(timeout_s=150) == "180 words"
        tree = look.tree(handle.id)
        workers = {run.worker for session in tree for run in look.runs(session.id)}
        assert len(workers) == 2, "both workers took part"

    def flower_shows_it() -> bool:
        kwargs = [task["kwargs"] for task in tasks_in_flower(page)]
        return any("'agent': 'lead'" in text and handle.id in text for text in kwargs)

    wait_until(flower_shows_it, "the session in Flower")

    listed = terminal.document("orchestra sessions")["sessions"]
    assert handle.id in [session["session"] for session in listed]
    for command in ("watch", "tree"):
        shown = terminal.must(f"orchestra {command} {handle.id}")
        assert "60 launched = 60 delivered + 0 pending + 0 dead" in shown
    assert "delegated" in terminal.must(f"orchestra logs {handle.id}")
    assert terminal.must(f"orchestra resume {handle.id} 'and now?' --wait") == "180 words\n"
    assert stack.interrupt() == 0

"""The wheel: it holds what is no Python, and works in an empty environment outside the tree."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.deployment.project import KINDS, Kind, contents
from tests.waiting import wait_until
from tests.wheel import Installed, installed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return installed(tmp_path_factory, "flower")


@pytest.fixture(scope="module")
def wheel(installation: Installed) -> Path:
    return installation.wheel


def test_the_wheel_holds_scripts_schema_templates_and_type_marks(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = [
        path.relative_to(ROOT).as_posix().replace("schemas/", "orchestrator/schemas/", 1)
        for folder, pattern in [
            ("orchestrator", "*.lua"),
            ("schemas", "*.xsd"),
            ("schemas/templates", "*.xml"),
            ("orchestrator", "py.typed"),
            ("orchestrator/deployment/templates", "*.tmpl"),
        ]
        for path in (ROOT / folder).rglob(pattern)
    ]
    assert len([name for name in wanted if name.endswith(".lua")]) > 5
    assert any(name.endswith(".xsd") for name in wanted)
    assert set(wanted) <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"orchestrator"}


@dataclass(frozen=True)
class Project:
    """A user's project: a folder with modules of its own, and an environment with the wheel."""

    folder: Path
    bin: Path
    libraries: Path
    env: dict[str, str]

    def run(self, *command: str | Path) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @contextmanager
    def running(self, *command: str | Path, log: str) -> Iterator[Path]:
        """A process of its own, and the file of its output; it is asked to stop at the end."""
        output = self.folder / log
        with output.open("w") as stream:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self.env, stdout=stream, stderr=subprocess.STDOUT
            )
            try:
                yield output
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(timeout=60)
                except subprocess.TimeoutExpired:  # Flower may sit out a request to a worker that is gone
                    process.kill()
                    process.wait()


@pytest.fixture(scope="module")
def project(installation: Installed, tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("home") / "a place"
    for name in ("workers", "schemas"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text('raise RuntimeError("the user\'s own package")')
    (folder / "redis.py").write_text("raise RuntimeError('a module of the working directory')")
    return Project(folder, installation.bin, installation.libraries, installation.env)


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel_outside_the_tree(project: Project) -> None:
    reviewed = project.libraries / "orchestrator" / "keyring"
    shown = project.run(project.bin / "orchestra", "demo", reviewed)
    assert f"Review of {reviewed}" in shown
    assert re.search(r"\b([1-9]\d*) launched = \1 delivered \+ 0 pending \+ 0 dead", shown)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_wheel_writes_a_new_project(project: Project, kind: Kind) -> None:
    project.run(project.bin / "orchestra", "init", f"a {kind}", "--kind", kind)
    assert {path.name for path in (project.folder / f"a {kind}").iterdir()} >= set(contents(kind))


@pytest.mark.slow
def test_a_project_with_workers_schemas_and_redis_of_its_own_runs_agents_and_flower(project: Project) -> None:
    """Celery looks for apps in the working directory first; what stands there must not be taken for a library."""
    (project.folder / "my_agents.py").write_text(
        "from orchestrator import Context, agent\n\n\n"
        '@agent("echo")\n'
        "def echo(ctx: Context) -> str:\n"
        "    return ctx.prompt.upper()\n"
    )
    orchestra, celery = project.bin / "orchestra", project.bin / "celery"
    with project.running(orchestra, "up", "--agents", "my_agents.py", log="up.log") as log:
        wait_until(lambda: "ready after" in log.read_text())
        assert project.run(orchestra, "submit", "echo", "hello", "--wait") == "HELLO\n"
        with project.running(celery, "-A", "orchestrator", "worker", "-c", "1", log="worker.log") as second:
            wait_until(lambda: "ready." in second.read_text())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with project.running(celery, "-A", "orchestrator", "flower", f"--port={port}", log="flower.log"):
            wait_until(lambda: answers(port) == http.HTTPStatus.UNAUTHORIZED)


def answers(port: int) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/tasks")
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()

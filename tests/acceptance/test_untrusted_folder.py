"""A working directory full of modules that have the names of others: no process of ours imports one of them."""

from __future__ import annotations

import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.acceptance.conftest import Terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(480)]

#: What libraries import if it is there.
OPTIONAL = (
    "brotli",
    "django",
    "eventlet",
    "gevent",
    "msgpack",
    "setproctitle",
    "simplejson",
    "uvloop",
    "vine",
)
#: Packages of the project and of what it stands on, that a user's folder may well have, too.
PACKAGES = ("orchestrator", "schemas", "workers", "celery", "kombu", "redis")

AGENTS = """
from orchestrator import agent
import beside

@agent("lead", role="coordinator")
def lead(ctx):
    return ctx.call("shouter", ctx.prompt).result

@agent("shouter")
def shouter(ctx):
    return beside.shout(ctx.prompt)
"""


@pytest.fixture
def trap(terminal: Terminal) -> Path:
    """The file that names every module of the working directory that was run."""
    terminal.in_process = False
    sprung = terminal.folder / "tmp" / "sprung"
    names = {*sys.stdlib_module_names, *packages_distributions(), *OPTIONAL} - {"beside"}
    code = f"open({str(sprung)!r}, 'a').write(__name__ + chr(10))\nraise SystemExit('hijacked')\n"
    for name in sorted(name for name in names if name.isidentifier()):
        (terminal.folder / f"{name}.py").write_text(code)
    for name in PACKAGES:
        (terminal.folder / name).mkdir()
        for part in ("__init__", "__main__", "celery", "agents", "tasks"):
            (terminal.folder / name / f"{part}.py").write_text(code)
    return sprung


def assert_untouched(trap: Path) -> None:
    run = trap.read_text().split() if trap.exists() else []
    assert run == []
    trap.unlink(missing_ok=True)


def test_the_demo_imports_nothing_from_the_working_directory(terminal: Terminal, trap: Path) -> None:
    package = terminal.folder / "some_package"
    package.mkdir()
    (package / "fine.py").write_text('"""Fine."""\n')
    done = terminal.run("orchestra demo some_package")
    assert_untouched(trap)
    assert done.returncode == 0, done.stderr
    assert "1 launched = 1 delivered" in done.stdout
    terminal.assert_nothing_left()


@pytest.mark.parametrize(
    ("command", "own"),
    [
        ("python -m orchestrator service acl router", False),
        ("celery -A orchestrator report", False),
        ("python -P -m orchestrator service acl router", True),
        ("python -P -m orchestrator.worker report", True),
    ],
)
def test_python_and_celery_import_nothing_from_there_either(
    terminal: Terminal, command: str, own: bool
) -> None:
    """What the first two look up first, the package `orchestrator` itself, is Python's and Celery's own doing."""
    terminal.in_process = False
    sprung = terminal.folder / "sprung"
    for name in ("click", "redis", "pydantic", "kombu", "workers", *(["orchestrator"] if own else [])):
        (terminal.folder / f"{name}.py").write_text(f"open({str(sprung)!r}, 'a').write({name!r})\n")
    done = terminal.run(command, ORCHESTRA_REDIS_URL="redis://127.0.0.1:1/0")
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout, done.stderr
    assert not sprung.exists()


@pytest.mark.parametrize("agents", ["--agents mine.py", "--agents project.mine", ""])
def test_a_stack_runs_the_agents_that_were_named_and_nothing_else(
    terminal: Terminal, trap: Path, agents: str
) -> None:
    """By file, by module name, or by the folder's settings; what stands beside them can be imported by them, as the last of all."""
    (terminal.folder / "beside.py").write_text("def shout(text): return text.upper()\n")
    (terminal.folder / "mine.py").write_text(AGENTS)
    (terminal.folder / "project").mkdir()
    (terminal.folder / "project" / "mine.py").write_text(AGENTS)
    if not agents:
        (terminal.folder / "orchestra.toml").write_text('[orchestra]\nagents = ["mine.py"]\n')
    stack = terminal.up(f"{agents} --concurrency 1")
    assert terminal.must("orchestra submit lead quiet --wait").strip() == "QUIET"
    assert stack.interrupt() == 0
    assert_untouched(trap)
    terminal.assert_nothing_left()

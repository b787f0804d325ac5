"""The wheel in an environment that has nothing else, built once for all tests that use it.

By itself a test borrows the libraries of the environment that it runs in. Where TESTS_WHEEL names a folder, as under
`make test-wheel`, an installer has put the wheel with each extra into an environment of its own there, and chosen what it needs.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
#: Programs of the dependencies that stand in the `bin` of an environment in which pip has installed them.
PROGRAMS = ("celery", "pytest")
#: The folder of environments into which the wheel was installed with what it asks for, if there is one.
RESOLVED = Path(os.environ["TESTS_WHEEL"]).resolve() if "TESTS_WHEEL" in os.environ else None


@dataclass(frozen=True)
class Installed:
    """A virtual environment with the wheel."""

    wheel: Path
    bin: Path
    libraries: Path
    env: dict[str, str]


def installed(factory: pytest.TempPathFactory, extra: str = "") -> Installed:
    """The environment with the wheel and one extra or none; the borrowed libraries are those of all extras."""
    environment = _borrowing(factory) / "env" if RESOLVED is None else RESOLVED / (extra or "bare")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV", "ORCHESTRA", "PYTEST"))}
    # As after `. env/bin/activate`.
    env["PATH"] = f"{environment / 'bin'}{os.pathsep}{env['PATH']}"
    env["VIRTUAL_ENV"] = str(environment)
    [wheel] = (environment.parent / "dist").glob("*.whl")
    [libraries] = environment.glob("lib/python*/site-packages")
    return Installed(wheel, environment / "bin", libraries, env)


def _borrowing(factory: pytest.TempPathFactory) -> Path:
    """Build the wheel and install it; the first test does it for all of them, also in other processes."""
    shared = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder = shared / "a wheel"
    with _alone(shared / "wheel.lock"):
        if not (folder / "ready").exists():
            _make(folder)
            (folder / "ready").touch()
    return folder


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(folder: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "dist", ROOT]
    folder.mkdir(exist_ok=True)
    done = subprocess.run(build, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    # Only the dependencies are borrowed, so that nothing is fetched for a test.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps"]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV"))}
    subprocess.run([*pip, *(folder / "dist").glob("*.whl")], env=env, check=True)
    [libraries] = environment.glob("lib/python*/site-packages")
    # What a .pth file names is searched, but its own .pth files are not: our sources there stay out of sight.
    (libraries / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    for name in PROGRAMS:
        script = (Path(sysconfig.get_path("scripts")) / name).read_text().partition("\n")[2]
        (environment / "bin" / name).write_text(
            f"#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n{script}"
        )
        (environment / "bin" / name).chmod(0o755)
    show = [python, "-P", "-c", "import orchestrator; print(orchestrator.__file__)"]
    found = subprocess.run(show, env=env, check=True, capture_output=True, text=True).stdout
    assert found.startswith(str(libraries)), found

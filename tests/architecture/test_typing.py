"""The public surface in a user's project, as mypy and pyright see it when both are strict."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
import orchestrator.testing
from orchestrator.deployment.project import KINDS, Kind, write_project

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "tests" / "typing" / "project"
MISTAKE = """
from orchestrator import Client, model_agent

with Client() as client:
    client.submit("lead", 3)
model_agent("lead", instructions=3)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project of a user, outside of this repository, where neither checker finds settings of ours."""
    project = Path(shutil.copytree(PROJECT, tmp_path / "project"))
    (project / "mistake.py").write_text(MISTAKE, encoding="utf-8")
    return project


def mypy(folder: Path) -> str:
    """What it learns of the libraries is kept, as that takes longer than the check."""
    env = {**os.environ, "MYPYPATH": str(ROOT)}
    settings, cache = PROJECT / "pyproject.toml", ROOT / ".mypy_cache" / "user"
    return run(folder, env, "mypy", "--config-file", str(settings), "--cache-dir", str(cache), ".")


def pyright(project: Path) -> str:
    """basedpyright is pyright in a package that brings its own Node.js; its strict mode is that of pyright."""
    return run(project, dict(os.environ), "basedpyright", "--pythonpath", sys.executable, "--project", ".")


def run(project: Path, env: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=project, env=env, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_mypy_finds_the_mistakes_in_a_strict_project_and_nothing_else(project: Path) -> None:
    said = mypy(project)
    assert (
        re.findall(r"^(.*?):\d+: error: .*\[(.*)\]", said, re.MULTILINE) == [("mistake.py", "arg-type")] * 2
    ), said
    assert "checked 4 source files" in said


@pytest.mark.parametrize("kind", KINDS)
def test_mypy_finds_nothing_in_a_new_project(kind: Kind, tmp_path: Path) -> None:
    write_project(tmp_path, kind)
    said = mypy(tmp_path)
    assert said.startswith("Success: no issues found"), said


def test_pyright_finds_the_mistakes_in_a_strict_project_and_nothing_else(project: Path) -> None:
    """In the projects that `orchestra init` writes, too."""
    for kind in KINDS:
        write_project(project / kind, kind)
    said = pyright(project)
    found = re.findall(r"(\w+\.py):\d+:\d+ - (?:error|warning): .*", said)
    assert found == ["mistake.py"] * 2, said
    assert "reportArgumentType" in said


@pytest.mark.parametrize(
    "package", [orchestrator, orchestrator.testing], ids=lambda package: package.__name__
)
def test_the_project_uses_every_public_name(package: object) -> None:
    words = set(re.findall(r"\w+", "\n".join(path.read_text() for path in PROJECT.glob("*.py"))))
    missing = set(package.__all__) - words  # type: ignore[attr-defined]
    assert missing == set(), f"use these in {PROJECT.relative_to(ROOT)}, so that their types are checked"

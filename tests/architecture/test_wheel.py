"""The wheel: it holds what is no Python, and works in an empty environment outside the tree."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_scripts_schema_templates_and_type_marks(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = [
        path.relative_to(ROOT).as_posix()
        for folder, pattern in [
            ("orchestrator", "*.lua"),
            ("schemas", "*.xsd"),
            ("schemas/templates", "*.xml"),
            ("orchestrator", "py.typed"),
            ("workers", "py.typed"),
        ]
        for path in (ROOT / folder).rglob(pattern)
    ]
    assert len([name for name in wanted if name.endswith(".lua")]) > 5
    assert any(name.endswith(".xsd") for name in wanted)
    assert set(wanted) <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"orchestrator", "workers", "schemas"}


def test_the_command_runs_from_the_wheel_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    """The environment is new; only the dependencies are borrowed, so that nothing is fetched for a test."""
    home = tmp_path / "a place"
    environment = home / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    libraries = Path(
        sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)})
    )
    zipfile.ZipFile(wheel).extractall(libraries)
    python = environment / "bin" / "python"
    code = (
        f"import sys; sys.path.append({sysconfig.get_path('purelib')!r})\n"
        "import orchestrator, workers, schemas\n"
        "print(orchestrator.__file__)\n"
        "from importlib.metadata import distribution\n"
        "script = next(e for e in distribution('agent-orchestra').entry_points if e.group == 'console_scripts')\n"
        "script.load()(['--help'], prog_name='orchestra')\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV", "ORCHESTRA"))}
    done = subprocess.run(
        [python, "-c", code], cwd=home, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert str(home) in done.stdout.splitlines()[0]
    assert "Run the whole stack in this terminal." in done.stdout

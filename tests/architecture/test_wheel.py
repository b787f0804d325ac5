"""The wheel: it holds what is no Python, and works in an empty environment outside the tree."""

from __future__ import annotations

import os
import re
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
        path.relative_to(ROOT).as_posix().replace("schemas/", "orchestrator/schemas/", 1)
        for folder, pattern in [
            ("orchestrator", "*.lua"),
            ("schemas", "*.xsd"),
            ("schemas/templates", "*.xml"),
            ("orchestrator", "py.typed"),
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


@pytest.mark.slow
def test_the_demo_runs_from_the_wheel_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    """The environment is new; only the dependencies are borrowed, so that nothing is fetched for a test."""
    home = tmp_path / "a place"
    environment = home / "env"
    python = environment / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV", "ORCHESTRA"))}

    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        wheel,
    )
    libraries = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    # What a .pth file names is searched, but its own .pth files are not: our sources there stay out of sight.
    (Path(libraries) / "dependencies.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    assert run(python, "-c", "import orchestrator; print(orchestrator.__file__)").startswith(libraries)

    shown = run(environment / "bin" / "orchestra", "demo", Path(libraries) / "orchestrator" / "keyring")
    assert f"Review of {libraries}/orchestrator/keyring" in shown
    assert re.search(r"\b([1-9]\d*) launched = \1 delivered \+ 0 pending \+ 0 dead", shown)

"""`orchestra init` as a new user runs it: what it writes runs and passes its own test, and nothing is overwritten."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from orchestrator.cli import main
from orchestrator.deployment.project import KINDS, Kind, contents, write_project
from orchestrator.errors import InputError
from tests.acceptance.conftest import Terminal

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(300)]

ANSWERS = {
    "python": "8 words\n",
    "model": "A lease is a claim that ends by itself.\n",
    "command": "A draft, written by a program.\n",
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_new_project_runs_and_passes_its_test_as_written(kind: Kind, terminal: Terminal) -> None:
    if kind == "model":
        pytest.importorskip("pydantic_ai", reason="the extra `llm` is not installed")
    document = terminal.document(f"orchestra init 'a place' --kind {kind}")
    enter, install, up, submit, test = document["next"]
    assert enter == "cd 'a place'"
    assert install == f"pip install '{KINDS[kind].package}' pytest"
    terminal.folder /= "a place"
    assert document["files"] == sorted(path.name for path in terminal.folder.iterdir())
    readme = (terminal.folder / "README.md").read_text()
    assert f"```sh\n{up}\n{submit}\n{test}\n```" in readme
    assert all(
        f"| `{name}` |" in readme for name in document["files"] if not name.startswith((".g", "README"))
    )

    assert "1 passed" in terminal.must(test)
    running = terminal.start(up)
    running.wait_for("ready after")
    assert terminal.must(submit) == ANSWERS[kind]
    assert running.interrupt() == 0


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_code_of_a_project_is_formatted(kind: Kind, tmp_path: Path) -> None:
    """What mypy and pyright think of it is seen where the types of the public surface are."""
    write_project(tmp_path, kind)
    ruff = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "110", "--check", "."]
    done = subprocess.run(ruff, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_secrets_are_for_their_owner_and_not_for_git(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*.log\n.orchestra/")
    write_project(tmp_path, "python")
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    ignored = (tmp_path / ".gitignore").read_text().splitlines()
    assert ignored[:2] == ["*.log", ".orchestra/"]
    assert ".env" in ignored
    assert ignored.count(".orchestra/") == 1
    assert contents("python")[".env"] != contents("python")[".env"]


@pytest.mark.parametrize("kind", ANSWERS)
def test_the_containers_get_what_they_need_and_their_text_holds_no_secret(kind: Kind) -> None:
    project = contents(kind)
    compose = yaml.safe_load(project["compose.yaml"])
    stack = compose["services"]["stack"]
    assert f"pip install --no-cache-dir '{KINDS[kind].package}'" in stack["build"]["dockerfile_inline"]
    assert "USER orchestra" in stack["build"]["dockerfile_inline"]
    used = {volume.partition(":")[0] for s in compose["services"].values() for volume in s["volumes"]} - {"."}
    assert used == set(compose["volumes"])
    secret = project[".env"].partition("VALKEY_PASSWORD=")[2].split()[0]
    assert len(secret) == 48
    assert not [name for name, text in project.items() if name != ".env" and secret in text]
    assert not [name for name, text in project.items() if "[[" in text.replace("[[[", "") and "]]" in text]


@pytest.mark.parametrize("name", ["README.md", ".env", "my_agents.py"])
def test_no_file_is_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("mine")
    refused = CliRunner().invoke(main, ["init", str(tmp_path), "--kind", "python"])
    assert refused.exit_code == 2
    assert f"{tmp_path} has {name} already" in refused.output
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_list_of_what_git_ignores_may_have_names_in_any_encoding(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_bytes(b"caf\xe9/\n.env\n")
    write_project(tmp_path, "python")
    lines = (tmp_path / ".gitignore").read_bytes().splitlines()
    assert lines[:2] == [b"caf\xe9/", b".env"]
    assert lines.count(b".env") == 1


def test_a_link_that_leads_nowhere_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / ".env").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"\.env already"):
        write_project(tmp_path, "python")
    assert not (tmp_path / "elsewhere").exists()


def test_a_disk_that_is_full_leaves_no_half_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_open, opened = os.open, []

    def open_(path: str | Path, *arguments: int) -> int:
        opened.append(path)
        if len(opened) == 4:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return really_open(path, *arguments)

    monkeypatch.setattr(os, "open", open_)
    with pytest.raises(OSError, match="No space left"):
        write_project(tmp_path, "model")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [".gitignore"]
    write_project(tmp_path, "model")


def test_the_kind_is_asked_for(tmp_path: Path) -> None:
    asked = CliRunner().invoke(main, ["init", str(tmp_path), "--json"], input="swarm\ncommand\n")
    assert asked.exit_code == 0, asked.output
    # Older releases of click print what is typed in a test, too.
    assert json.loads(asked.stdout[asked.stdout.index("{") :])["kind"] == "command"
    assert "What are your agents" in asked.stderr
    assert (tmp_path / "my_agents.toml").exists()


def test_without_anybody_to_ask_the_error_names_the_option(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "init", "here"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "give --kind python, --kind model or --kind command" in done.stderr
    assert list(tmp_path.iterdir()) == []

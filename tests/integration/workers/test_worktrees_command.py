"""`orchestra session worktrees`: what is listed, with the reason, and what removing keeps."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.cli import main
from orchestrator.worker.worktrees import Worktrees
from tests.integration.workers.conftest import StackHarness
from tests.integration.workers.crew import Crew
from tests.integration.workers.test_command_worktrees import git


@pytest.fixture
def orchestra(stage: StackHarness, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.setenv("ORCHESTRA_REDIS_URL", redis_url)
    monkeypatch.setenv("ORCHESTRA_DATA", str(stage.settings.data))
    return lambda *arguments: CliRunner().invoke(main, list(arguments))


@pytest.fixture
def session(crew: Crew, tmp_path: Path, program: Callable[[str], str]) -> str:
    """A session that has changed a file in its worktree."""
    program("git")
    repository = tmp_path / "repository"
    repository.mkdir()
    git(repository, "init", "-q")
    git(repository, "commit", "-q", "--allow-empty", "-m", "first")
    crew.agent(worktree={"repository": repository})
    return crew.stage.begin("coder", "!write a.txt two\n!say ok")


def test_a_worktree_is_listed_and_removed_with_its_branch_left(
    session: str, orchestra: Callable[..., Result], tmp_path: Path
) -> None:
    listed = orchestra("session", "worktrees", "--json")
    assert listed.exit_code == 0, listed.output
    (one,) = json.loads(listed.output)["worktrees"]
    assert (one["session"], one["agent"], one["changed_files"]) == (session, "coder", 1)
    assert one["kept_because"] == "its session is a root, and may be resumed"
    assert (
        f"1 changed, orchestra/{session}: its session is a root" in orchestra("session", "worktrees").output
    )
    diff = orchestra("result", session, "--attachment", "diff")
    assert "+two" in diff.output
    missing = orchestra("result", session, "--attachment", "other")
    assert missing.exit_code == 2
    assert "has attached nothing under 'other'" in missing.output
    removed = orchestra("session", "worktrees", "remove", session)
    assert removed.exit_code == 0, removed.output
    assert not Path(one["path"]).exists()
    assert git(tmp_path / "repository", "show", f"{one['branch']}:a.txt") == "two"
    again = orchestra("session", "worktrees", "remove", session)
    assert again.exit_code == 2
    assert "has no worktree here" in again.output


def test_removing_with_the_branch_leaves_nothing(
    session: str, orchestra: Callable[..., Result], tmp_path: Path
) -> None:
    assert orchestra("session", "worktrees", "remove", session, "--branch", "--json").exit_code == 0
    assert git(tmp_path / "repository", "branch", "--list", "orchestra/*") == ""


def test_one_that_is_at_work_is_not_removed(
    crew: Crew, session: str, orchestra: Callable[..., Result]
) -> None:
    crew.stage.ledger.enqueue(session, "more", item_id="itm_more")
    crew.stage.ledger.flush(session)
    refused = orchestra("session", "worktrees", "remove", session)
    assert refused.exit_code == 2
    assert "is at work in its worktree; stop it first" in refused.output


def test_a_repository_that_is_gone_stops_nobody(
    session: str, orchestra: Callable[..., Result], stage: StackHarness, tmp_path: Path
) -> None:
    subprocess.run(["rm", "-rf", str(tmp_path / "repository")], check=True)
    listed = orchestra("session", "worktrees", "--json")
    (one,) = json.loads(listed.output)["worktrees"]
    assert one["changed_files"] is None
    assert orchestra("session", "worktrees", "remove", session).exit_code == 0
    assert Worktrees(stage.settings.data).all() == []
    assert not os.path.exists(one["path"])  # noqa: PTH110

"""A git worktree and a branch for each session: made, shared by nobody, attached as a diff, removed by policy."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Client
from orchestrator.errors import WorktreeError
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.reporting import MAX_ATTACHMENT_BYTES
from orchestrator.worker.janitor import Janitor
from orchestrator.worker.scratch import remove_left_over, scratch_folder
from orchestrator.worker.worktrees import Worktrees
from tests.integration.workers.crew import JSON, Crew


def git(folder: Path, *arguments: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    command = [
        "git",
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@t.invalid",
        "-c",
        "init.defaultBranch=trunk",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path, program: Callable[[str], str]) -> Path:
    program("git")
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "a.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return folder


def test_a_diff_of_what_is_not_utf8_is_one_that_git_applies(repository: Path, tmp_path: Path) -> None:
    (repository / "a.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    git(repository, "commit", "-qam", "second")
    worktrees = Worktrees(tmp_path / "data")
    worktree = worktrees.take("ses_1", agent="coder", repository=repository)
    (worktree.path / "a.txt").write_bytes("th\xe9\n".encode("latin-1"))
    subprocess.run(["git", "apply"], cwd=repository, input=worktrees.diff(worktree), text=True, check=True)
    assert (repository / "a.txt").read_bytes() == "th\xe9\n".encode("latin-1")


def test_a_repository_without_a_commit_in_a_worktree_costs_no_answer_and_is_not_lost(
    crew: Crew, repository: Path
) -> None:
    """The diff says that it is not in it, and has the rest; the worktree stays."""
    crew.agent(worktree={"repository": repository})
    root = crew.stage.submit("coder", "!run git init -q new\n!write b.txt two\n!say done")
    assert crew.stage.play(root) == "finished"
    worktrees = Worktrees(crew.stage.settings.data)
    (worktree,) = worktrees.all()
    diff = worktrees.diff(worktree)
    assert diff.startswith("# not in this diff: error: 'new/' does not have a commit checked out\n")
    assert "+two" in diff
    subprocess.run(["git", "apply"], cwd=repository, input=diff, text=True, check=True)
    with pytest.raises(WorktreeError, match="does not have a commit"):
        worktrees.remove(worktree)
    assert (worktree.path / "new").is_dir()


def test_of_a_diff_that_is_long_the_beginning_is_read(repository: Path, tmp_path: Path) -> None:
    """It may be larger than the memory, and an attachment keeps no more."""
    worktrees = Worktrees(tmp_path / "data")
    worktree = worktrees.take("ses_1", agent="coder", repository=repository)
    (worktree.path / "weights").write_bytes(os.urandom(6 * 1024 * 1024))
    assert MAX_ATTACHMENT_BYTES < len(worktrees.diff(worktree)) < 6 * 1024 * 1024
    assert worktrees.changed_files(worktree) == 1


def test_two_children_never_share_one_and_the_parent_gets_both_diffs(crew: Crew, repository: Path) -> None:
    crew.agent(worktree={"repository": repository})
    stage = crew.stage
    diffs: list[str | None] = []

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("coder", "!write a.txt two\n!write new/b.txt fresh\n!result one")
            ctx.delegate("coder", "!run git commit -qam x --allow-empty\n!write a.txt three\n!result two")
            ctx.wait_for("all")
        diffs.extend(callback.attachment("diff") for callback in ctx.callbacks)
        return "done"

    root = stage.submit("lead")
    stage.play(root)
    for child in stage.children(root):
        stage.play(child.id)
    worktrees = Worktrees(stage.settings.data)
    first, second = worktrees.all()
    assert first.path != second.path
    assert first.branch != second.branch
    assert (repository / "a.txt").read_text() == "one\n"
    stage.resume(root)
    assert diffs[0] is not None
    assert diffs[1] is not None
    assert "+two" in diffs[0]
    assert "new/b.txt" in diffs[0]
    assert "+three" in diffs[1]
    # What git wrote, git applies.
    subprocess.run(["git", "apply"], cwd=repository, input=diffs[0], text=True, check=True)
    assert (repository / "new" / "b.txt").read_text() == "fresh\n"


def test_it_is_kept_until_the_parent_has_taken_the_result(crew: Crew, repository: Path) -> None:
    crew.agent(worktree={"repository": repository})
    stage, worktrees = crew.stage, Worktrees(crew.stage.settings.data)
    janitor = Janitor(stage.ledger, worktrees)

    @stage.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("coder", "!write a.txt two\n!result one")
        return "done"

    root = stage.submit("lead")
    stage.play(root)
    (child,) = stage.children(root)
    stage.play(child.id)
    assert janitor.clean() == []
    stage.resume(root)
    assert janitor.clean() == [child.id]
    assert worktrees.all() == []
    # Nothing is lost: the branch has what was never committed.
    assert git(repository, "show", f"orchestra/{child.id}:a.txt") == "two"
    assert "worktrees" not in git(repository, "worktree", "list")


def test_it_stays_with_a_session_that_begins_to_work_while_it_is_to_be_removed(
    crew: Crew, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal waits for what another process does in the data folder, and looks at the session after that."""
    crew.agent(worktree={"repository": repository})
    stage, worktrees = crew.stage, Worktrees(crew.stage.settings.data)
    janitor = Janitor(stage.ledger, worktrees)
    crew.delegate("!write a.txt two\n!result one")
    (worktree,) = worktrees.all()
    assert janitor.why_kept(worktree) == ""
    remove = worktrees.remove

    def late(*arguments: Any, **given: Any) -> bool:
        with Client(stage.settings) as client:
            client.resume(worktree.session, "go on")
        stage.ledger.flush(worktree.session)
        return remove(*arguments, **given)

    monkeypatch.setattr(worktrees, "remove", late)
    assert janitor.clean() == []
    assert worktree.path.is_dir()


def test_keep_always_means_until_it_is_removed_by_hand(crew: Crew, repository: Path) -> None:
    crew.agent(worktree={"repository": repository, "keep": "always"})
    crew.delegate("!write a.txt two\n!result one")
    worktrees = Worktrees(crew.stage.settings.data)
    assert Janitor(crew.stage.ledger, worktrees).clean() == []
    (worktree,) = worktrees.all()
    worktrees.remove(worktree, with_branch=True)
    assert worktrees.all() == []
    assert git(repository, "branch", "--list", "orchestra/*") == ""


def test_a_session_gets_its_own_back(crew: Crew, repository: Path) -> None:
    crew.agent(worktree={"repository": repository}, **JSON)
    stage = crew.stage
    root = stage.submit("coder", "!write a.txt two\n!say ok")
    stage.play(root)
    stage.ledger.enqueue(root, "!run cat a.txt", item_id="itm_more")
    stage.resume(root)
    assert crew.answer(root).strip() == "<response>two [0]</response>"


def test_a_worktree_that_a_crash_left_half_made_is_made_again(crew: Crew, repository: Path) -> None:
    worktrees = Worktrees(crew.stage.settings.data)
    made = worktrees.take("ses_1", agent="coder", repository=repository)
    (made.path / "a.txt").write_text("committed\n")
    worktrees.save(made)
    subprocess.run(["rm", "-rf", str(made.path)], check=True)
    again = worktrees.take("ses_1", agent="coder", repository=repository)
    assert again == made
    assert (made.path / "a.txt").read_text() == "committed\n"


def test_what_an_agent_put_into_its_worktree_runs_nothing_outside(
    crew: Crew, repository: Path, tmp_path: Path
) -> None:
    """Git is told where the repository is: a `.git` of the agent's own making, with programs in it, is not asked."""
    crew.agent(worktree={"repository": repository})
    mark = tmp_path / "mark"
    evil = "!run rm .git; git init -q . && git config core.fsmonitor 'touch {0}' && git config core.hooksPath . && printf '#!/bin/sh\\ntouch {0}' > post-index-change && chmod +x post-index-change"
    answer = crew.ask(evil.format(mark) + "\n!write a.txt two\n!say done")
    assert "done" in answer
    mark.unlink(missing_ok=True)
    worktrees = Worktrees(crew.stage.settings.data)
    (worktree,) = worktrees.all()
    assert "+two" in worktrees.diff(worktree)
    worktrees.remove(worktree)
    assert not mark.exists()


def test_a_folder_without_a_repository_is_said(crew: Crew, tmp_path: Path) -> None:
    crew.agent(worktree={"repository": tmp_path})
    assert "not a git repository" in crew.ask("!say hi")


def test_the_folder_of_a_killed_worker_is_removed_and_that_of_a_living_one_is_not(tmp_path: Path) -> None:
    left, other = tmp_path / "run-left", tmp_path / "theirs"
    left.mkdir()
    other.mkdir()
    for folder in (left, other):
        (folder / "prompt.txt").write_text("words")
    (tmp_path / "run-link").symlink_to(other)
    with scratch_folder(tmp_path, "run-") as mine:
        assert remove_left_over(tmp_path, "run-", older_than_s=60, now_s=time.time()) == 0
        assert remove_left_over(tmp_path, "run-", older_than_s=0, now_s=time.time() + 1) == 1
        assert mine.is_dir()
    assert not left.exists()
    assert not mine.exists()
    assert (other / "prompt.txt").exists()

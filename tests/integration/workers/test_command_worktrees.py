"""A git worktree and a branch for each session: made, shared by nobody, attached as a diff, removed by policy."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
from click.testing import Result

from orchestrator import Client
from orchestrator.errors import WorktreeError, WrongState
from orchestrator.worker.announce import Janitor
from orchestrator.worker.context.context import Context
from orchestrator.worker.context.messaging import MAX_ATTACHMENT_BYTES
from orchestrator.worker.git import Git, remove_left_over, scratch_folder
from orchestrator.worker.worktrees import Worktrees
from tests.crew import JSON, Crew
from tests.kit import Kit


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


def empty_repository(folder: Path) -> Path:
    """A repository with one commit, of no file."""
    folder.mkdir()
    git(folder, "init", "-q")
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    return folder


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


def test_a_repository_in_a_worktree_is_a_folder_like_others(crew: Crew, repository: Path) -> None:
    crew.agent(worktree={"repository": repository})
    crew.kit.begin("coder", "!run git init -q new\n!write new/b.txt two\n!say done", ends="finished")
    worktrees = Worktrees(crew.kit.settings.data)
    (worktree,) = worktrees.all()
    subprocess.run(["git", "apply"], cwd=repository, input=worktrees.diff(worktree), text=True, check=True)
    assert (repository / "new" / "b.txt").read_text() == "two\n"
    worktrees.remove(worktree)
    assert git(repository, "ls-tree", "-r", "--name-only", worktree.branch) == "a.txt\nnew/b.txt"


def test_what_is_saved_is_what_git_adds(repository: Path, tmp_path: Path) -> None:
    """A deleted, a changed, an ignored, a tracked ignored file; a folder in place of a file, and so on."""
    for path in ("b.txt", "c/one", "c/two", "d/one", "gone/one", "ign/kept", "e"):
        (repository / path).parent.mkdir(exist_ok=True)
        (repository / path).write_text(f"{path}\n")
    (repository / ".gitignore").write_text("*.o\n/ign/\n/out\n")
    (repository / ".gitattributes").write_text("*.crlf text eol=crlf\n")
    git(repository, "add", "--force", ".")
    git(
        repository,
        "update-index",
        "--add",
        "--cacheinfo",
        f"160000,{git(repository, 'rev-parse', 'HEAD')},sub",
    )
    (repository / "sub").mkdir()
    git(repository, "commit", "-qm", "second")
    (repository / ".git" / "info" / "exclude").write_text("*.secret\n")
    worktrees = Worktrees(tmp_path / "data")
    worktree = worktrees.take("ses_1", agent="coder", repository=repository)
    assert git(worktree.path, "status", "--short") == ""
    changes = """
        echo two > b.txt; rm -r gone; echo x > c/x.o; mkdir c/new; echo x > "c/new/a b"; echo x > c/new/.gitignore
        echo x > out; rm -r d; ln -s c d; rm e; mkdir e; echo x > e/one; echo more >> ign/kept; echo x > ign/new
        chmod +x a.txt; echo x > run.sh; chmod +x run.sh; ln -s nowhere link; printf 'a\r\n' > a.crlf; mkdir empty
        echo x > of.secret; echo x > ':(top)odd*'; mkfifo pipe; echo x > "$(printf 'new\nline')"; echo '!y.o' > c/.gitignore; echo x > c/y.o
    """
    subprocess.run(["sh", "-ec", changes], cwd=worktree.path, check=True)
    worktrees.save(worktree)
    index = {**os.environ, "GIT_INDEX_FILE": str(tmp_path / "index")}
    plain = ["sh", "-ec", "git read-tree HEAD; git add --all; git write-tree"]
    tree = subprocess.run(plain, cwd=worktree.path, env=index, check=True, capture_output=True, text=True)
    assert git(repository, "diff", "--stat", tree.stdout.strip(), worktree.branch) == ""
    assert worktrees.changed_files(worktree) == len(
        git(repository, "diff", "--no-renames", "--name-only", worktree.base, worktree.branch).splitlines()
    )


def test_a_pipe_in_place_of_its_orders_does_not_make_git_wait(repository: Path, tmp_path: Path) -> None:
    worktrees = Worktrees(tmp_path / "data")
    worktree = worktrees.take("ses_1", agent="coder", repository=repository)
    os.mkfifo(worktree.path / ".gitignore")
    with pytest.raises(WorktreeError, match=r"\.gitignore is a pipe"):
        worktrees.diff(worktree)


def test_one_that_is_half_checked_out_is_made_again(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies meanwhile must not leave a worktree in which files seem to be deleted."""
    worktrees = Worktrees(tmp_path / "data")
    run = Git.run

    def dies(git: Git, *arguments: str, **given: Any) -> bytes:
        if arguments[0] == "read-tree":
            raise KeyboardInterrupt
        return run(git, *arguments, **given)

    with monkeypatch.context() as patch:
        patch.setattr(Git, "run", dies)
        with pytest.raises(KeyboardInterrupt):
            worktrees.take("ses_1", agent="coder", repository=repository)
    again = worktrees.take("ses_1", agent="coder", repository=repository)
    assert (again.path / "a.txt").read_text() == "one\n"
    assert worktrees.diff(again) == ""


def test_of_a_diff_that_is_long_the_beginning_is_read(repository: Path, tmp_path: Path) -> None:
    """It may be larger than the memory, and an attachment keeps no more."""
    worktrees = Worktrees(tmp_path / "data")
    worktree = worktrees.take("ses_1", agent="coder", repository=repository)
    (worktree.path / "weights").write_bytes(os.urandom(6 * 1024 * 1024))
    assert MAX_ATTACHMENT_BYTES < len(worktrees.diff(worktree)) < 6 * 1024 * 1024
    assert worktrees.changed_files(worktree) == 1


def test_two_children_never_share_one_and_the_parent_gets_both_diffs(crew: Crew, repository: Path) -> None:
    crew.agent(worktree={"repository": repository})
    kit = crew.kit
    diffs: list[str | None] = []

    @kit.agent("lead", role="coordinator")
    def lead(ctx: Context) -> str:
        if ctx.cause == "start":
            ctx.delegate("coder", "!write a.txt two\n!write new/b.txt fresh\n!result one")
            ctx.delegate("coder", "!run git commit -qam x --allow-empty\n!write a.txt three\n!result two")
            ctx.wait_for("all")
        diffs.extend(callback.attachment("diff") for callback in ctx.callbacks)
        return "done"

    root = kit.begin("lead")
    for child in kit.children(root):
        kit.play(child.id)
    worktrees = Worktrees(kit.settings.data)
    first, second = worktrees.all()
    assert first.path != second.path
    assert first.branch != second.branch
    assert (repository / "a.txt").read_text() == "one\n"
    kit.play(root)
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
    kit, worktrees = crew.kit, Worktrees(crew.kit.settings.data)
    janitor = Janitor(kit.ledger, worktrees)
    kit.lead("coder: !write a.txt two\n!result one")
    root = kit.begin("lead")
    (child,) = kit.children(root)
    kit.play(child.id)
    assert janitor.clean() == []
    kit.play(root)
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
    kit, worktrees = crew.kit, Worktrees(crew.kit.settings.data)
    janitor = Janitor(kit.ledger, worktrees)
    crew.delegate("!write a.txt two\n!result one")
    (worktree,) = worktrees.all()
    assert janitor.why_kept(worktree) == ""
    remove = worktrees.remove

    def late(*arguments: Any, **given: Any) -> bool:
        with Client(kit.settings) as client:
            client.resume(worktree.session, "go on")
        kit.ledger.flush(worktree.session)
        return remove(*arguments, **given)

    monkeypatch.setattr(worktrees, "remove", late)
    assert janitor.clean() == []
    assert worktree.path.is_dir()


def test_keep_always_means_until_it_is_removed_by_hand(crew: Crew, repository: Path) -> None:
    crew.agent(worktree={"repository": repository, "keep": "always"})
    crew.delegate("!write a.txt two\n!result one")
    worktrees = Worktrees(crew.kit.settings.data)
    assert Janitor(crew.kit.ledger, worktrees).clean() == []
    (worktree,) = worktrees.all()
    worktrees.remove(worktree, with_branch=True)
    assert worktrees.all() == []
    assert git(repository, "branch", "--list", "orchestra/*") == ""


def test_a_session_gets_its_own_back(crew: Crew, repository: Path) -> None:
    crew.agent(worktree={"repository": repository}, **JSON)
    root = crew.kit.begin("coder", "!write a.txt two\n!say ok")
    assert crew.go_on(root, "!run cat a.txt").strip() == "<response>two [0]</response>"


def test_a_worktree_that_a_crash_left_half_made_is_made_again(crew: Crew, repository: Path) -> None:
    worktrees = Worktrees(crew.kit.settings.data)
    made = worktrees.take("ses_1", agent="coder", repository=repository)
    (made.path / "a.txt").write_text("committed\n")
    worktrees.save(made)
    subprocess.run(["rm", "-rf", str(made.path)], check=True)
    again = worktrees.take("ses_1", agent="coder", repository=repository)
    assert again == made
    assert (made.path / "a.txt").read_text() == "committed\n"


#: What an agent writes, with a mark of its making at $1, its repository at $2: each had git run `touch $1`, or would have.
EVIL: Final = """
evil() {
    git config --file "$1" filter.evil.clean "touch $mark; cat"
    git config --file "$1" filter.evil.smudge "touch $mark; cat"
    git config --file "$1" diff.evil.textconv "touch $mark; cat"
    git config --file "$1" diff.evil.command "touch $mark"
    git config --file "$1" diff.external "touch $mark"
    git config --file "$1" core.fsmonitor "touch $mark; false"
    git config --file "$1" core.attributesFile "$own/attributes"
    git config --file "$1" core.hooksPath "$own/hooks"
    git config --file "$1" gpg.program "$own/hooks/post-checkout"
    git config --file "$1" commit.gpgSign true
}
hooks() {
    mkdir -p "$1"
    for hook in post-checkout post-index-change reference-transaction pre-commit post-commit; do
        printf '#!/bin/sh\\ntouch %s\\n' "$mark" > "$1/$hook"
        chmod +x "$1/$hook"
    done
}
nested() {
    rm -rf "$1" && git init -q "$1"
    echo x > "$1/f"
    git -C "$1" add f && git -C "$1" -c user.name=t -c user.email=t@t.invalid commit -qm x
    evil "$1/.git/config" && hooks "$1/.git/hooks"
    echo '* filter=evil diff=evil' > "$1/.git/info/attributes"
    touch -d '1 hour ago' "$1/f"
}
mark=$1 repository=$2 own=$3
mkdir -p "$own" && echo '* filter=evil diff=evil' > "$own/attributes" && hooks "$own/hooks"
"""

WAYS: Final = {
    "a repository of its own in a folder": "nested new",
    "a repository of its own in a submodule": "nested sub",
    "a submodule whose repository is elsewhere": "nested elsewhere; mv elsewhere/.git meta; echo gitdir: ../meta > sub/.git; cp elsewhere/f sub/f",
    "a repository in place of its own": "rm .git; nested x; mv x/.git .",
    "attributes and filters": 'evil "$repository/config"; echo "* filter=evil diff=evil" > .gitattributes; echo y > a.txt',
    "attributes of the repository": 'evil "$repository/config"; mkdir -p "$repository/info"; echo "* filter=evil diff=evil" > "$repository/info/attributes"; echo y > a.txt',
    "hooks of the repository": 'hooks "$repository/hooks"',
    "an included file": 'evil "$own/config"; git config --file "$repository/config" include.path "$own/config"; echo "* filter=evil" > .gitattributes',
    "the configuration of its worktree": 'git config --file "$repository/config" extensions.worktreeConfig true; evil "$(echo "$repository"/worktrees/*)/config.worktree"; echo "* filter=evil" > .gitattributes',
    "another common folder": 'nested x; echo "$PWD/x/.git" > "$(echo "$repository"/worktrees/*)/commondir"; echo "* filter=evil" > .gitattributes',
    "the configuration of its user": 'evil "$HOME/.gitconfig"; mkdir -p "$HOME/.config/git"; cp "$HOME/.gitconfig" "$HOME/.config/git/config"; cp "$own/attributes" "$HOME/.config/git"; echo y > a.txt',
    "a lost object to fetch": 'evil "$repository/config"; for one in "extensions.partialClone origin" "remote.origin.promisor true" "remote.origin.url ssh://h/p" "core.sshCommand $own/hooks/post-checkout" "core.repositoryFormatVersion 1"; do git config --file "$repository/config" $one; done; rm -rf "$repository"/objects/??',
}


@pytest.mark.parametrize("way", WAYS)
def test_what_an_agent_wrote_runs_nothing_outside(
    way: str, crew: Crew, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of git's orders an agent can write, none is obeyed: while its changes are read, when its worktree is
    removed and made again, and in the next turn."""
    home, mark, ran, script, own = (tmp_path / name for name in ("home", "mark", "ran", "attack.sh", "own"))
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    link = f"160000,{git(repository, 'rev-parse', 'HEAD')},sub"
    git(repository, "update-index", "--add", "--cacheinfo", link)
    git(repository, "commit", "-qm", "a submodule")
    script.write_text(EVIL + WAYS[way])
    crew.agent(worktree={"repository": repository}, **JSON)
    worktrees = Worktrees(crew.kit.settings.data)
    attack = f"!run sh -e {script} {mark} {repository / '.git'} {own} && touch {ran}; rm -f {mark}"
    root = crew.kit.begin("coder", attack)
    assert ran.exists(), crew.answer(root)
    for turn in range(2):
        for worktree in worktrees.all():
            with suppress(WorktreeError):  # of some repositories little is left
                worktrees.diff(worktree)
                worktrees.remove(worktree)
        with suppress(WrongState):  # a turn without its repository fails
            crew.kit.ledger.enqueue(root, attack, item_id=f"itm_{turn}")
            crew.kit.play(root)
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


# --- `orchestra session worktrees`: what is listed, with the reason, and what removing keeps.


@pytest.fixture
def session(crew: Crew, tmp_path: Path, program: Callable[[str], str]) -> str:
    """A session that has changed a file in its worktree."""
    program("git")
    crew.agent(worktree={"repository": empty_repository(tmp_path / "repository")})
    return crew.kit.begin("coder", "!write a.txt two\n!say ok")


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
    crew.kit.ledger.enqueue(session, "more", item_id="itm_more")
    crew.kit.ledger.flush(session)
    refused = orchestra("session", "worktrees", "remove", session)
    assert refused.exit_code == 2
    assert "is at work in its worktree; stop it first" in refused.output


def test_a_repository_that_is_gone_stops_nobody(
    session: str, orchestra: Callable[..., Result], kit: Kit, tmp_path: Path
) -> None:
    subprocess.run(["rm", "-rf", str(tmp_path / "repository")], check=True)
    listed = orchestra("session", "worktrees", "--json")
    (one,) = json.loads(listed.output)["worktrees"]
    assert one["changed_files"] is None
    assert orchestra("session", "worktrees", "remove", session).exit_code == 0
    assert Worktrees(kit.settings.data).all() == []
    assert not os.path.exists(one["path"])  # noqa: PTH110

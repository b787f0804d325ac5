"""A git worktree and a branch for each session that asks for one.

A worktree lives in the data folder of the host that made it, beside a file that says whose it is. It is made under
the session's id, so no two sessions share one, and a session that is tried again or resumed on the same host gets its
own back. What its agent has not committed is committed to the branch before the worktree is removed: nothing is lost.

What git is told to do, and how, so that it obeys nothing that an agent wrote: `git.py`.
"""

from __future__ import annotations

import fcntl
import shutil
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.errors import WorktreeError
from orchestrator.worker.git import Git, Repository, git_on

#: The beginning of the name of each branch; the session's id follows.
BRANCH: Final = "orchestra/"
#: Bytes of a diff that are read: more than an attachment may have.
_MOST_OF_DIFF: Final = 5 * 1024 * 1024


class Worktree(BaseModel):
    """A session's own copy of a repository."""

    model_config = ConfigDict(frozen=True)

    #: The session.
    session: str
    #: Its agent.
    agent: str
    repository: Path  #: the repository's common git folder, which all its worktrees share
    #: Where the files are.
    path: Path = Field(alias="path_name")
    #: The branch.
    branch: str
    #: The commit that it began at.
    base: str
    keep: Literal["until-taken", "always"]
    #: When it was made.
    created_ms: int


class Worktrees:
    """The worktrees of one data folder. Safe to share between processes."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._folder, self._scratch = data / "worktrees", data / "scratch"

    def take(
        self,
        session: str,
        *,
        agent: str,
        repository: Path,
        base: str = "HEAD",
        keep: Literal["until-taken", "always"] = "until-taken",
    ) -> Worktree:
        """The worktree of a session, made if it is not there.

        Raises:
            WorktreeError: the folder is in no repository, there is no such commit, or git fails.
        """
        with self._locked():
            known = self._read(session)
            if known is None:
                found = Repository.around(repository)
                with git_on(found, scratch=self._scratch) as git:
                    commit = git.say("rev-parse", "--verify", "--end-of-options", f"{base}^{{commit}}")
                known = Worktree(
                    session=session,
                    agent=agent,
                    repository=found.common,
                    path_name=self._folder / session,
                    branch=f"{BRANCH}{session}",
                    base=commit,
                    keep=keep,
                    created_ms=time.time_ns() // 1_000_000,
                )
                # First what says whose it is: a crash after this leaves something that is found again.
                self._write(known)
            if not self._is_whole(known):
                self._make(known)
            return known

    def _make(self, worktree: Worktree) -> None:
        own, branch = self._own_git_dir(worktree), f"refs/heads/{worktree.branch}"
        for folder in (worktree.path, own):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        (own / "commondir").write_text("../..\n")
        (own / "gitdir").write_text(f"{worktree.path}/.git\n")
        (worktree.path / ".git").write_text(f"gitdir: {own}\n")
        (own / "HEAD.new").write_text(f"ref: {branch}\n")
        at = Repository(worktree.repository, worktree.repository)
        with git_on(at, scratch=self._scratch, files=worktree.path, index=own / "index") as git:
            if not git.run("for-each-ref", branch):
                git.run("update-ref", branch, worktree.base)
            git.run("read-tree", "--reset", "-u", branch)
        # Last what makes it whole: after a crash before this it is made anew.
        (own / "HEAD.new").replace(own / "HEAD")

    def _is_whole(self, worktree: Worktree) -> bool:
        return worktree.path.is_dir() and (self._own_git_dir(worktree) / "HEAD").is_file()

    @staticmethod
    def _own_git_dir(worktree: Worktree) -> Path:
        return worktree.repository / "worktrees" / worktree.path.name

    def all(self) -> list[Worktree]:
        """Every worktree of this data folder, the oldest first."""
        found = [self._read(file.stem) for file in sorted(self._folder.glob("*.json"))]
        return sorted((one for one in found if one is not None), key=lambda one: one.created_ms)

    def find(self, session: str) -> Worktree | None:
        """The worktree of a session, if it has one here."""
        return self._read(session) if session.replace("_", "").isalnum() else None

    def changed_files(self, worktree: Worktree) -> int:
        """Return the number of files that differ from the base, committed or not."""
        with self._differing(worktree) as (git, ends, _):
            return git.run("diff", "--name-only", "-z", *_QUIET_DIFF, *ends).count(b"\0")

    def diff(self, worktree: Worktree) -> str:
        """Everything that differs from the base, committed or not, as git applies it; its beginning, if it is long.

        It begins with what git said of files that it cannot take in, such as a repository without a commit.

        Raises:
            WorktreeError: git fails.
        """
        with self._differing(worktree) as (git, ends, left_out):
            output = git.folder / "diff"
            show = ("diff", "--binary", f"--output={output}", *_QUIET_DIFF, *ends)
            git.run(*show)
            if "\N{REPLACEMENT CHARACTER}" in _beginning(output):
                # Something is not UTF-8. As a binary file it is whole in a text.
                with (git.folder / "info" / "attributes").open("a") as attributes:
                    attributes.write("\n* -diff\n")
                git.run(*show)
            return "".join(f"# not in this diff: {line}\n" for line in left_out) + _beginning(output)

    @contextmanager
    def _differing(self, worktree: Worktree) -> Iterator[tuple[Git, tuple[str, ...], list[str]]]:
        """Git, what it has to compare, and what cannot be read of the files."""
        if self._is_whole(worktree):
            with self._inside(worktree) as git:
                yield git, ("--cached", worktree.base, "--"), git.take_in("HEAD")
        else:
            at = Repository(worktree.repository, worktree.repository)
            with git_on(at, scratch=self._scratch) as git:
                yield git, (worktree.base, f"refs/heads/{worktree.branch}", "--"), []

    def _inside(self, worktree: Worktree) -> AbstractContextManager[Git]:
        """Git in a worktree, with an index of its own: that of the agent stays as the agent left it."""
        at = Repository(self._own_git_dir(worktree), worktree.repository)
        return git_on(at, scratch=self._scratch, files=worktree.path)

    def save(self, worktree: Worktree) -> str:
        """Commit to the branch whatever is not committed; the branch's newest commit.

        Raises:
            WorktreeError: git fails.
        """
        with self._inside(worktree) as git:
            if left_out := git.take_in("HEAD"):
                raise WorktreeError("add", "; ".join(left_out))
            tree, commit = git.say("write-tree"), git.say("rev-parse", "HEAD")
            if tree != git.say("rev-parse", "HEAD^{tree}"):
                words = f"What session {worktree.session} left uncommitted"
                commit = git.say("commit-tree", tree, "-p", commit, "-m", words)
            git.run("update-ref", f"refs/heads/{worktree.branch}", commit)
        return commit

    def remove(
        self,
        worktree: Worktree,
        *,
        with_branch: bool = False,
        unless: Callable[[Worktree], object] = lambda _: False,
    ) -> bool:
        """Remove the files of a worktree; its branch stays, with everything, unless ``with_branch``.

        ``unless`` is asked while nobody can take the worktree: a session that begins to work then takes it anew.
        False: it said something, and the worktree stays.

        Raises:
            WorktreeError: git fails; nothing is lost then.
        """
        with self._locked():
            if unless(worktree):
                return False
            if worktree.repository.is_dir():
                if self._is_whole(worktree) and not with_branch:
                    self.save(worktree)
                shutil.rmtree(self._own_git_dir(worktree), ignore_errors=True)
                if with_branch:
                    at = Repository(worktree.repository, worktree.repository)
                    with git_on(at, scratch=self._scratch) as git:
                        git.run("update-ref", "-d", f"refs/heads/{worktree.branch}")
            shutil.rmtree(worktree.path, ignore_errors=True)
            self._file(worktree.session).unlink(missing_ok=True)
            return True

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Let only one process at a time change worktrees."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with (self._folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _file(self, session: str) -> Path:
        return self._folder / f"{session}.json"

    def _read(self, session: str) -> Worktree | None:
        try:
            return Worktree.model_validate_json(self._file(session).read_bytes())
        except (OSError, ValueError):
            return None

    def _write(self, worktree: Worktree) -> None:
        file = self._file(worktree.session)
        fresh = file.with_suffix(".new")
        fresh.write_text(worktree.model_dump_json(by_alias=True), encoding="utf-8")
        fresh.replace(file)


def _beginning(file: Path) -> str:
    """A text of which at most so much is read as an attachment keeps, and a bit: it may be larger than the memory."""
    with file.open("rb") as octets:
        read = octets.read(_MOST_OF_DIFF)
    return getincrementaldecoder("utf-8")("replace").decode(read, final=len(read) < _MOST_OF_DIFF)


_QUIET_DIFF: Final = ("--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all")

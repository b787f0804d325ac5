"""A git worktree and a branch for each session that asks for one.

A worktree lives in the data folder of the host that made it, beside a file that says whose it is. It is made under
the session's id, so no two sessions share one, and a session that is tried again or resumed on the same host gets its
own back. What its agent has not committed is committed to the branch before the worktree is removed: nothing is lost.

An agent may have written anything into its worktree, so git always gets the path of the repository and never asks the
worktree, and runs no hook, no monitor and no external program on its behalf.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.errors import WorktreeError

#: The beginning of the name of each branch; the session's id follows.
BRANCH: Final = "orchestra/"
_CAREFUL: Final = (
    "-c", "core.fsmonitor=false",
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.untrackedCache=false",
    "-c", "submodule.recurse=false",
    "-c", "diff.external=",
    "-c", "commit.gpgSign=false",
    "-c", "gc.auto=0",
)  # fmt: skip
_AUTHOR: Final = ("-c", "user.name=agent-orchestra", "-c", "user.email=agent@orchestra.invalid")
_TIMEOUT_S: Final = 300
#: Bytes of a diff that are read: more than an attachment may have.
_MOST_OF_DIFF: Final = 5 * 1024 * 1024


class Worktree(BaseModel):
    """A session's own copy of a repository."""

    model_config = ConfigDict(frozen=True)

    session: str
    agent: str
    repository: Path  #: the repository's common git folder, which all its worktrees share
    path: Path = Field(alias="path_name")  #: where its files are
    branch: str
    base: str  #: the commit that it began at
    keep: Literal["until-taken", "always"]
    created_ms: int


class Worktrees:
    """The worktrees of one data folder. Safe to share between processes."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self._folder = data / "worktrees"

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
                common = self._git(
                    ("rev-parse", "--path-format=absolute", "--git-common-dir"), folder=repository
                )
                commit = self._git(
                    ("rev-parse", "--verify", "--end-of-options", f"{base}^{{commit}}"), folder=repository
                )
                known = Worktree(
                    session=session,
                    agent=agent,
                    repository=Path(common),
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
        shutil.rmtree(worktree.path, ignore_errors=True)
        at = f"--git-dir={worktree.repository}"
        self._git((at, "worktree", "prune"))
        branch = f"refs/heads/{worktree.branch}"
        there = self._git((at, "for-each-ref", "--format=%(refname)", branch))
        how = (
            (str(worktree.path), worktree.branch)
            if there
            else ("-b", worktree.branch, str(worktree.path), worktree.base)
        )
        self._git((at, "worktree", "add", "--quiet", *how))

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
        """How many files differ from the base, committed or not."""
        return len(self._diff(worktree, "--name-only")[0].splitlines())

    def diff(self, worktree: Worktree) -> str:
        """Everything that differs from the base, committed or not, as git applies it; its beginning, if it is long.

        It begins with what git said of files that it cannot take in, such as a repository without a commit.

        Raises:
            WorktreeError: git fails.
        """
        with tempfile.TemporaryDirectory(prefix="orchestra-diff-") as folder:
            output, attributes = Path(folder) / "diff", Path(folder) / "attributes"
            options = ("--binary", f"--output={output}")
            _, left_out = self._diff(worktree, *options)
            text = _beginning(output)
            if "\N{REPLACEMENT CHARACTER}" not in text:
                return left_out + text
            # Something is not UTF-8. As a binary file it is whole in a text.
            attributes.write_text("* -diff\n")
            self._diff(worktree, *options, settings=("-c", f"core.attributesFile={attributes}"))
            return left_out + _beginning(output)

    def _diff(self, worktree: Worktree, *options: str, settings: tuple[str, ...] = ()) -> tuple[str, str]:
        """What git printed, and what it said of files that it left out."""
        diff = (*settings, "diff", *options, *_QUIET_DIFF, worktree.base)
        if not self._is_whole(worktree):
            at, branch = f"--git-dir={worktree.repository}", f"refs/heads/{worktree.branch}"
            return self._git((at, *diff, branch, "--")), ""
        left_out: list[str] = []
        with self._everything_added(worktree, left_out) as index:
            printed = self._inside(worktree, (*diff, "--cached", "--"), index)
        return printed, "".join(f"# not in this diff: {line}\n" for line in left_out)

    @contextmanager
    def _everything_added(
        self, worktree: Worktree, left_out: list[str] | None = None
    ) -> Iterator[Mapping[str, str]]:
        """An index of its own with all files as they are: that of the agent stays as the agent left it.

        ``left_out``: gets what git says of files that it cannot take in; without it that is an error.
        """
        with tempfile.TemporaryDirectory(prefix="orchestra-index-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
            self._inside(worktree, ("read-tree", "HEAD"), index)
            try:
                self._inside(worktree, ("add", "--all", "--ignore-errors"), index)
            except WorktreeError as error:
                if left_out is None:
                    raise
                left_out += str(error.args[1]).splitlines()
            yield index

    def save(self, worktree: Worktree) -> str:
        """Commit to the branch whatever is not committed; the branch's newest commit.

        Raises:
            WorktreeError: git fails.
        """
        with self._everything_added(worktree) as index:
            tree = self._inside(worktree, ("write-tree",), index)
            head = self._inside(worktree, ("rev-parse", "HEAD"))
            if tree == self._inside(worktree, ("rev-parse", "HEAD^{tree}")):
                commit = head
            else:
                words = f"What session {worktree.session} left uncommitted"
                commit = self._inside(worktree, (*_AUTHOR, "commit-tree", tree, "-p", head, "-m", words))
        at = f"--git-dir={worktree.repository}"
        self._git((at, "update-ref", f"refs/heads/{worktree.branch}", commit))
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
            at = f"--git-dir={worktree.repository}"
            if worktree.repository.is_dir():
                if self._is_whole(worktree) and not with_branch:
                    self.save(worktree)
                shutil.rmtree(worktree.path, ignore_errors=True)
                self._git((at, "worktree", "prune"))
                if with_branch:
                    self._git((at, "branch", "--quiet", "-D", worktree.branch))
            shutil.rmtree(worktree.path, ignore_errors=True)
            self._file(worktree.session).unlink(missing_ok=True)
            return True

    def _inside(
        self,
        worktree: Worktree,
        arguments: tuple[str, ...],
        env: Mapping[str, str] | None = None,
    ) -> str:
        """Git in a worktree whose own `.git` file is not asked."""
        at = (f"--git-dir={self._own_git_dir(worktree)}", f"--work-tree={worktree.path}")
        return self._git((*at, *arguments), env=env, folder=worktree.path)

    @staticmethod
    def _git(
        arguments: tuple[str, ...],
        *,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> str:
        own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        try:
            done = subprocess.run(
                ["git", *_CAREFUL, *arguments],
                cwd=folder,
                env={**own, "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise WorktreeError(" ".join(arguments), f"git does not run: {error}") from error
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise WorktreeError(" ".join(arguments), why)
        return done.stdout.decode(errors="replace").strip()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time changes worktrees."""
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

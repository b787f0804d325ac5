"""Git on files and a repository that an agent may have written to, with a configuration of ours alone; and scratch folders.

Git obeys what it works on: the configuration of a repository names filters, hooks, monitors, helpers and further files,
and git asks each repository that it finds inside of another. An agent that can write one of these has git run a
program outside of its sandbox. So git is started in a folder of our own, whose configuration we wrote, with the
repository's objects and references linked into it. Of the repository's configuration two plain values are copied;
nothing of the user's or the system's is read. No filter, hook or helper is configured there, so none runs, whatever
attributes say. Git is never asked which files there are: it would look into repositories inside of this one.
(A list of settings to switch off does not do: it missed filters and submodules, and each release of git brings more.)
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orchestrator.errors import WorktreeError


@contextmanager
def scratch_folder(above: Path, prefix: str) -> Iterator[Path]:
    """A new folder in another one, which goes with the ``with`` block."""
    above.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=above))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_over(above: Path, prefix: str, *, older_than_s: float, now_s: float) -> int:
    """Remove the folders of runs whose workers are gone; how many there were."""
    removed = 0
    for folder in above.glob(f"{prefix}*"):
        try:
            if now_s - folder.lstat().st_mtime < older_than_s:
                continue  # it may be about to be locked
            # Anybody may have put a link into a folder for temporary files.
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
        except OSError:
            continue
        finally:
            os.close(lock)
    return removed


_TIMEOUT_S: Final = 300
_PLAIN_KEYS: Final = r"^(extensions\.(objectformat|refstorage)|core\.sharedrepository)$"
_PLAIN_VALUE: Final = re.compile(r"[0-9A-Za-z]{0,12}")
#: Files from which git takes orders for the folder that they are in.
_ORDERS: Final = (b".gitignore", b".gitattributes")


@dataclass(frozen=True)
class Repository:
    """The folders of a git repository."""

    own: Path  #: the git folder of one worktree, with its HEAD
    common: Path  #: the git folder that all its worktrees share

    @classmethod
    def around(cls, folder: Path) -> Repository:
        """The repository that a folder is in, found as git finds it.

        Raises:
            WorktreeError: there is none.
        """
        folder = folder.resolve()
        for place in (folder, *folder.parents):
            for candidate in (_named(place / ".git", b"gitdir: "), place):
                common = _named(candidate / "commondir", b"", otherwise=candidate)
                if (candidate / "HEAD").is_file() and (common / "objects").is_dir():
                    return cls(candidate, common)
        raise WorktreeError("rev-parse", f"not a git repository (or any of the parent directories): {folder}")


def _named(file: Path, prefix: bytes, *, otherwise: Path | None = None) -> Path:
    """The folder that a file names after the prefix; ``otherwise``, or the path itself, if it is not such a file."""
    try:
        text = file.read_bytes()
    except OSError:
        text = b""
    if not text.startswith(prefix) or not text.strip():
        return otherwise or file
    return Path(os.path.normpath(file.parent / os.fsdecode(text.removeprefix(prefix).strip())))


@dataclass(frozen=True)
class Git:
    """Runs git on one repository, until the ``with`` block of ``git_on`` ends."""

    folder: Path  #: what git takes for the repository
    files: Path | None  #: the files that it works on
    index: Path

    def run(self, *arguments: str, words: bytes = b"", may_find_nothing: bool = False) -> bytes:
        """Run git and return its output.

        Raises:
            WorktreeError: it does not run, or fails.
        """
        env = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "XDG_"))}
        try:
            done = subprocess.run(
                ["git", *arguments],
                cwd=self.files or self.folder,
                env={
                    **env,
                    "HOME": str(self.folder),
                    "GIT_ATTR_NOSYSTEM": "1",
                    "GIT_CONFIG_NOSYSTEM": "1",
                    "GIT_DIR": str(self.folder),
                    "GIT_INDEX_FILE": str(self.index),
                    "GIT_TERMINAL_PROMPT": "0",
                    **({"GIT_WORK_TREE": str(self.files)} if self.files else {}),
                },
                input=words,
                capture_output=True,
                check=False,
                timeout=_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise WorktreeError(" ".join(arguments), f"git does not run: {error}") from error
        if done.returncode and not (may_find_nothing and done.returncode == 1):
            why = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise WorktreeError(" ".join(arguments), why)
        return done.stdout

    def say(self, *arguments: str) -> str:
        """Run git and return its output as text, without white space around it.

        Raises:
            WorktreeError: it does not run, or fails.
        """
        return self.run(*arguments).decode(errors="replace").strip()

    def take_in(self, commit: str) -> list[str]:
        """Make the index hold all files as they are now, but ignored ones; what cannot be read, and why.

        A repository inside of this one is a folder like others. A submodule stays at the commit that ``commit`` names.

        Raises:
            WorktreeError: git fails, or would wait for a pipe.
        """
        tracked, links = set(), {}
        for entry in self.run("ls-tree", "-rz", commit).split(b"\0")[:-1]:
            facts, path = entry.split(b"\t", 1)
            if facts.startswith(b"160000 "):
                links[path] = entry
            else:
                tracked.add(path)
        files, folders, left_out = self._walk(tracked, links.keys())
        self.run(
            "update-index", "--add", "-z", "--stdin", words=b"".join(path + b"\0" for path in sorted(files))
        )
        kept = b"".join(entry + b"\0" for path, entry in links.items() if path in folders)
        self.run("update-index", "-z", "--index-info", words=kept)
        return left_out

    def _walk(
        self, tracked: Collection[bytes], links: Collection[bytes]
    ) -> tuple[list[bytes], set[bytes], list[str]]:
        """All files that are tracked or not ignored, all folders on the way, and what cannot be read."""
        holding: set[bytes] = set()
        for path in (*tracked, *links):
            above = path
            while (above := above.rpartition(b"/")[0]) and above not in holding:
                holding.add(above)
        files: list[bytes] = []
        folders: set[bytes] = set()
        left_out: list[str] = []
        level = [b""]
        while level:
            found = self._entries(level, left_out)
            # With `./` before it no name means anything to git.
            words = b"".join(b"./%s\0" % path for path in found)
            shown = self.run("check-ignore", "-z", "--stdin", words=words, may_find_nothing=True)
            ignored = {path[2:] for path in shown.split(b"\0")}
            level = []
            for path, one in found.items():
                if one.is_dir(follow_symlinks=False):
                    folders.add(path)
                    if path not in links and (path in holding or path not in ignored):
                        level.append(path + b"/")
                elif path in tracked or path not in ignored:
                    if one.is_symlink() or (one.is_file() and os.access(one.path, os.R_OK)):
                        files.append(path)
                    elif one.is_file():
                        left_out.append(f"{os.fsdecode(path)}: Permission denied")
        return files, folders, left_out

    def _entries(self, folders: list[bytes], left_out: list[str]) -> dict[bytes, os.DirEntry[bytes]]:
        """Return the entries of these folders, except those of git itself; note folders that cannot be read in
        ``left_out``.
        """
        found: dict[bytes, os.DirEntry[bytes]] = {}
        for folder in folders:
            try:
                with os.scandir(os.fsencode(f"{self.files}/") + folder) as entries:
                    found |= {folder + one.name: one for one in entries if one.name.lower() != b".git"}
            except OSError as error:
                left_out.append(f"{os.fsdecode(folder)}: {error.strerror}")
        for path, one in found.items():
            if one.name in _ORDERS and stat.S_ISFIFO(one.stat(follow_symlinks=False).st_mode):
                raise WorktreeError("add", f"{os.fsdecode(path)} is a pipe; git would wait for it")
        return found


@contextmanager
def git_on(
    repository: Repository, *, scratch: Path, files: Path | None = None, index: Path | None = None
) -> Iterator[Git]:
    """Git for a repository: what it is given to write in goes with the ``with`` block.

    Args:
        repository: the repository, and the HEAD that is meant.
        scratch: a folder that no agent can reach.
        files: the files to work on.
        index: the index to make; by default one that goes with the block.

    Raises:
        WorktreeError: the repository is not of a kind that this can work on.
    """
    with scratch_folder(scratch, "run-") as folder:
        git = Git(folder, files, index or folder / "index")
        try:
            _prepare(git, repository)
        except OSError as error:
            raise WorktreeError("worktree", str(error)) from error
        yield git


def _prepare(git: Git, repository: Repository) -> None:
    """Make the folder that git takes for the repository."""
    for name in ("objects", "refs", "packed-refs"):
        (git.folder / name).symlink_to(repository.common / name)
    (git.folder / "info").mkdir()
    for name in ("info/exclude", "info/attributes"):
        if (repository.common / name).is_file():
            (git.folder / name).write_bytes((repository.common / name).read_bytes())
    (git.folder / "HEAD").write_bytes((repository.own / "HEAD").read_bytes())
    config = ["[user]", "name = agent-orchestra", "email = agent@orchestra.invalid"]
    asked = ("--file", str(repository.common / "config"), "--no-includes", "-z", "--get-regexp", _PLAIN_KEYS)
    for entry in git.run("config", *asked, may_find_nothing=True).decode(errors="replace").split("\0")[:-1]:
        key, _, value = entry.partition("\n")
        if value.lower() == "reftable":
            raise WorktreeError(
                "worktree",
                f"{repository.common} keeps its references as reftable; run git refs migrate --ref-format=files in it",
            )
        if _PLAIN_VALUE.fullmatch(value):
            section, name = key.split(".")
            config += [f"[{section}]", f"{name} = {value or 'true'}"]
    if "[extensions]" in config:
        config += ["[core]", "repositoryformatversion = 1"]
    (git.folder / "config").write_text("\n".join(config) + "\n", encoding="utf-8")

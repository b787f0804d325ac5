"""The source trees that the bundled agents may read: folders that were named, and below them plain Python files.

Whoever can give `lead` a task says which paths it reads, and reads what it says of them; so what is outside of the
named folders is not even looked for, and no link is followed on the way to a file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from orchestrator.config.settings import load_settings
from orchestrator.errors import InputError

#: Bytes of the largest module that is read.
MAX_SOURCE_BYTES: Final = 1024 * 1024


class SourceTrees:
    """The folders below which sources may be read; each is taken as it is when this is made, links resolved."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self._real = {Path(os.path.realpath(root)) for root in roots}
        self._roots = self._real | {Path(os.path.normpath(root)) for root in roots}

    def admit(self, path: Path) -> Path:
        """The path, normalised.

        Raises:
            InputError: it is not below one of the folders, or is there only by way of a link.
        """
        plain = Path(os.path.normpath(path))
        real = Path(os.path.realpath(plain))
        if not (
            any(plain.is_relative_to(root) for root in self._roots)
            and any(real.is_relative_to(root) for root in self._real)
        ):
            raise InputError(
                f"{path} is not below a folder whose sources may be reviewed; name one with `orchestra up --review DIR`"
            )
        return plain

    def read(self, path: Path) -> str:
        """The text of a Python file; bytes that are no UTF-8 are replaced.

        Raises:
            InputError: it is outside of the folders, a link, no plain file, too large, or no Python file.
            OSError: it cannot be read.
        """
        plain = self.admit(path)
        if plain.suffix != ".py":
            raise InputError(f"{path} is not a Python file; give the path of a file that ends in .py")
        descriptor = self._open(plain)
        try:
            about = os.fstat(descriptor)
            if not stat.S_ISREG(about.st_mode):
                raise InputError(f"{path} is not a plain file; give the path of a Python source")
            if about.st_size > MAX_SOURCE_BYTES:
                raise InputError(
                    f"{path} has {about.st_size} bytes; a module of up to {MAX_SOURCE_BYTES} is reviewed"
                )
            with os.fdopen(os.dup(descriptor), "rb") as file:
                return file.read(MAX_SOURCE_BYTES).decode("utf-8", errors="replace")
        finally:
            os.close(descriptor)

    def _open(self, plain: Path) -> int:
        """A descriptor of the file, reached from its root step by step, so that no link can be put in between."""
        root = max((root for root in self._roots if plain.is_relative_to(root)), key=lambda r: len(r.parts))
        *folders, name = plain.relative_to(root).parts or (plain.name,)
        current = os.open(root if root != plain else root.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for folder in folders:
                below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
                os.close(current)
                current = below
            # Not to wait for the other end of a pipe that lies there.
            return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=current)
        except OSError as error:
            raise InputError(f"{plain} cannot be read without following a link: {error.strerror}") from error
        finally:
            os.close(current)


def find_modules(paths: Iterable[Path]) -> list[Path]:
    """Return every Python file at or below the paths; hidden folders, caches and links are left out."""
    found: set[Path] = set()
    for path in paths:
        if path.suffix == ".py" and path.is_file():
            found.add(path)
            continue
        for candidate in path.rglob("*.py"):
            below = candidate.relative_to(path).parts
            hidden = any(part.startswith(".") or part == "__pycache__" for part in below)
            if not hidden and not candidate.is_symlink() and candidate.is_file():
                found.add(candidate)
    return sorted(found)


@cache
def source_trees() -> SourceTrees:
    """Those that the settings of this process name."""
    return SourceTrees(load_settings().review_roots)

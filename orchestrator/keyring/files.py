"""Files that several processes share: written whole or not at all, private from the first byte."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from orchestrator import machine

#: Of folders and files that hold secrets.
FOLDER_MODE = 0o700
FILE_MODE = 0o600


def make_private(folder: Path) -> None:
    """Make a folder that only its owner can enter; one that is there is closed to others."""
    folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(FOLDER_MODE)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file in one step, readable by its owner only, and on the disk when this returns."""
    scratch = path.with_name(f".{path.name}.{machine.token_hex(8)}")
    try:
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        with suppress(OSError):
            scratch.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_if_there(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock against other processes and threads. Not re-entrant; freed if the process dies."""
    make_private(folder)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        # Unlocked by name: a process forked meanwhile has the descriptor too, and would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

"""Folders that go with a run; what a killed worker left is found by a lock that nobody holds."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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

"""An empty folder for each run, below the data folder; what a killed worker left is found by a lock that nobody holds."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_FOLDER: Final = "scratch"


@contextmanager
def scratch_folder(data: Path) -> Iterator[Path]:
    """A folder that goes with the ``with`` block."""
    above = data / _FOLDER
    above.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = Path(tempfile.mkdtemp(prefix="run-", dir=above))
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_over(data: Path, *, older_than_s: float, now_s: float) -> int:
    """Remove the folders of runs whose workers are gone; how many there were."""
    removed = 0
    for folder in (data / _FOLDER).glob("run-*"):
        try:
            if now_s - folder.stat().st_mtime < older_than_s:
                continue  # it may be about to be locked
            lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
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

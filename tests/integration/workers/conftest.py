"""A process that no agent may look into."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from uuid import uuid4

import pytest


@pytest.fixture
def stranger() -> Iterator[str]:
    """What stands in the environment of a process of the same user that has nothing to do with an agent."""
    secret = uuid4().hex
    with subprocess.Popen(
        ["sleep", "600"], env={"HIDDEN": secret}, executable=shutil.which("sleep")
    ) as other:
        try:
            yield secret
        finally:
            other.kill()

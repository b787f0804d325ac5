"""Commands of a stack's parts, each refused before it serves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from click.testing import CliRunner

from orchestrator.cli import main


def refused(words: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code and what the command said; a worker has a process, which Celery ends."""
    if "worker" not in words:
        ended = CliRunner().invoke(main, words, env=env)
        return ended.exit_code, ended.stderr
    command, variables = [sys.executable, "-m", "orchestrator", *words], os.environ | (env or {})
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stderr

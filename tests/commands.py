"""Commands of a stack, run in the process of the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from click.testing import CliRunner, Result

from orchestrator.cli import main
from orchestrator.cli.documents.table import DOCUMENTS
from orchestrator.config.settings import Settings

Orchestra = Callable[..., Result]


def place(settings: Settings | None) -> dict[str, str]:
    """The variables that tell a command where a stack is."""
    where = {} if settings is None else {"REDIS_URL": settings.redis_url, "DATA": settings.data}
    return {f"ORCHESTRA_{name}": str(value) for name, value in where.items() if value is not None}


def run_command(
    *words: str,
    settings: Settings | None = None,
    stdin: str | bytes | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Result:
    """Run a command, on the stack that the settings name; what it prints with ``--json`` is held to its model."""
    variables = {**place(settings), **(env or {})}
    done = CliRunner().invoke(main, words, input=stdin, env=variables, **options)
    hold_to_models(words, done.stdout)
    return done


def hold_to_models(arguments: Sequence[str], output: str) -> None:
    """Fail unless each JSON document in the output of a command has the fields of its model, no more and no fewer."""
    if "--json" not in arguments or not output:
        return
    command = next(name for n in (3, 2, 1) if (name := " ".join(arguments[:n])) in DOCUMENTS)
    for text in output.splitlines() if command == "watch" else [output]:
        found = json.loads(text)
        fitting = [model for model in DOCUMENTS[command] if set(model.model_fields) == set(found)]
        assert fitting, (
            f"{command} prints {sorted(found)}, which is the document of none of {DOCUMENTS[command]}"
        )
        assert fitting[0].model_validate_json(text).model_dump(mode="json") == found


def refused(words: Sequence[str], env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return the exit code and what the command said, which is refused; a worker has a process, which Celery ends."""
    if "worker" not in words:
        ended = run_command(*words, env=env)
        return ended.exit_code, ended.stderr
    command, variables = [sys.executable, "-m", "orchestrator", *words], os.environ | (env or {})
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stderr

"""What a user types, in a process that was forked: `tests.acceptance.typed FOLDER PROGRAM ARGUMENTS…`.

It does what the program does in that folder, without the imports, which take most of the time of a short command.
"""

from __future__ import annotations

import os
import sys
import tempfile

from orchestrator.cli import main
from orchestrator.runtime.service import READY_VARIABLE


def run(folder: str, program: str, *arguments: str) -> None:
    """Do what the program does."""
    os.chdir(folder)
    if errors := os.environ.pop(READY_VARIABLE, ""):
        os.dup2(int(errors), 2)
        os.close(int(errors))
    tempfile.tempdir = None  # found anew, from this process's own environment
    sys.argv = [program, *arguments]
    if program == "celery":
        from orchestrator.celery import app  # reads the settings

        app.start(arguments[arguments.index("worker") :])
    else:
        main(arguments, prog_name=program)


if __name__ == "__main__":
    run(*sys.argv[1:])

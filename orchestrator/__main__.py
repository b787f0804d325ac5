"""`python -m orchestrator` is `orchestra`."""

from __future__ import annotations

import os
import sys

# `python -m` looks in the working directory first: what lies there must not pass for a library.
if not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109  (imports nothing more)
    del sys.path[0]

from orchestrator.cli import main

if __name__ == "__main__":
    main(prog_name="orchestra")

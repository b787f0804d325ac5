"""`python -m orchestrator.healthcheck SERVICE`: exit code 0 if a copy of it on this host is alive; for containers."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109
    del sys.path[0]  # as in `python -m orchestrator`

from orchestrator.runtime.probe import complaint

if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python -m orchestrator.healthcheck SERVICE")
    wrong = complaint(sys.argv[1], os.environ.get("ORCHESTRA_DATA", ""))
    sys.exit(f"Error: {wrong}" if wrong else 0)

"""`python -m orchestrator` is `orchestra`."""

from __future__ import annotations

from orchestrator.cli import main

if __name__ == "__main__":
    main(prog_name="orchestra")

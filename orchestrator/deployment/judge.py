"""`python -P -m orchestrator.deployment.judge FD SOURCE…` loads agents as a worker would, and writes what is wrong with them to FD.

It is a process of its own: what a file does while it is imported concerns nobody else, and each judgement is of the
files as they are now.
"""

from __future__ import annotations

import os
import sys

from orchestrator.agents.loader import load_agents
from orchestrator.errors import ConfigurationError


def main(descriptor: int, sources: list[str]) -> int:
    """Judge agents; returns 0 if all is well."""
    try:
        load_agents(sources)
    except ConfigurationError as error:
        os.write(descriptor, " ".join(str(error).split()).encode(errors="backslashreplace"))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))

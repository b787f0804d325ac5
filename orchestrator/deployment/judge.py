"""`python -P -m orchestrator.deployment.judge SOURCE…` loads agents and makes their models as a worker would, and writes what is wrong with them, or with the limits of their providers, to ORCHESTRA_READY_FD.

It is a process of its own: what a file does while it is imported concerns nobody else, and each judgement is of the
files as they are now.
"""

from __future__ import annotations

import os
import sys

from orchestrator.agents.loader import choose_served, load_agents
from orchestrator.config.settings import load_settings
from orchestrator.errors import ConfigurationError
from orchestrator.runtime.service import READY_VARIABLE
from orchestrator.worker.executors import check_models


def main(descriptor: int, sources: list[str]) -> int:
    """Load agents on trial; return 0 if all is well."""
    try:
        settings = load_settings()
        idle = check_models(choose_served(load_agents(sources), settings.serve).values(), settings)
    except ConfigurationError as error:
        os.write(descriptor, " ".join(str(error).split()).encode(errors="backslashreplace"))
        return 1
    os.write(descriptor, idle.encode(errors="backslashreplace"))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(os.environ.pop(READY_VARIABLE)), sys.argv[1:]))

"""`python -m orchestrator.healthcheck SERVICE`: exit code 0 if a copy of it on this host is alive; for containers."""

from __future__ import annotations

import os
import socket
import sys

if __name__ == "__main__" and not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):  # noqa: PTH109
    del sys.path[0]  # as in `python -m orchestrator`

from orchestrator.config.settings import load_settings
from orchestrator.config.stack import resolve_redis_url
from orchestrator.display.text import visible
from orchestrator.errors import OrchestraError
from orchestrator.redisdb.client import connect
from orchestrator.runtime.service import live_services


def check(service: str) -> str | None:
    """What is wrong with this host's copy of the service; None: it is well."""
    try:
        with connect(resolve_redis_url(load_settings())) as client:
            hosts = {record.host for record in live_services(client) if record.service == service}
    except OrchestraError as error:
        return str(error)
    host = socket.gethostname()
    return None if host in hosts else f"no {service} on {host} gave a sign of life"


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Usage: python -m orchestrator.healthcheck SERVICE")
    complaint = check(sys.argv[1])
    sys.exit(visible(f"Error: {complaint}") if complaint else 0)

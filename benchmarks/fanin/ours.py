"""Our own stack: router, callback service, reaper, audit writer and a Celery worker, all as processes."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from orchestrator.client.client import Client
from orchestrator.config.settings import Settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.deployment.local_stack import LocalStack
from orchestrator.redisdb.client import connect
from orchestrator.streams import GROUPS, RedisStreams, all_streams

_TIMEOUT_S = 600.0


class Ours:
    """The stack as `orchestra up` runs it, with its default settings: signatures, validation and audit.

    One resume takes in all children, unless it is ``bounded`` as by default.
    """

    def __init__(self, server: ValkeyProcess, folder: Path, *, slots: int, bounded: bool = False) -> None:
        limits = {} if bounded else {"resume_max_items": 100_000, "resume_max_bytes": 1 << 26}
        self._server = server
        self._stack = LocalStack(
            Settings(
                redis_url=server.url,
                data=folder / "data",
                agents=(str(Path(__file__).with_name("agents.py")),),
                concurrency=slots,
                **limits,
            )
        )

    def __enter__(self) -> Self:
        logging.disable(logging.INFO)
        self._stack.__enter__()
        self._stack.wait_ready()
        self.client = Client(self._stack.settings)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self._stack.__exit__(kind, error, trace)

    def labels(self) -> dict[int, str]:
        """The processes whose CPU time counts."""
        return {self._server.pid or 0: "server", **{pid: name for name, pid in self._stack.pids.items()}}

    def fan_in(self, size: int) -> float:
        """Milliseconds from the parent's first launch to its resume that has the last of ``size`` answers."""
        began, ended = json.loads(self.client.submit("fan", str(size)).result(_TIMEOUT_S))
        return float(ended - began) * 1000

    def settle(self) -> None:
        """Return once every message is routed and in the audit database, so that no other system pays for it."""
        everything = all_streams()
        with connect(self._server.url) as client:
            streams = RedisStreams(client)
            for group in GROUPS:
                while any(row.unread or row.pending for row in streams.backlog(group, everything)):
                    time.sleep(0.02)

    def server_work(self, size: int) -> dict[str, float]:
        """The commands that a fan-in of ``size`` costs for each child, those inside scripts too, and microseconds of scripts."""
        with connect(self._server.url) as client:
            client.config_resetstat()
            self.fan_in(size)
            self.settle()
            stats: dict[str, dict[str, float]] = client.info("commandstats")
        scripts = stats["cmdstat_evalsha"]
        return {
            "commands": sum(command["calls"] for command in stats.values()) / size,
            "scripts": scripts["calls"] / size,
            "us_in_scripts": scripts["usec"] / size,
        }

    def latencies(self, rounds: int) -> list[float]:
        """Milliseconds from a child's stop to its parent's resume, one after the other."""
        found: list[float] = json.loads(self.client.submit("relay", str(rounds)).result(_TIMEOUT_S))
        return found

    def forest(self, parents: int, children: int) -> float:
        """Milliseconds from the first submission of many parents to the last resume."""
        start = time.time()
        roots = [self.client.submit("fan", str(children)) for _ in range(parents)]
        return (max(json.loads(root.result(_TIMEOUT_S))[1] for root in roots) - start) * 1000

"""A server of its own for each measurement, messages for it, and the parts of a stack as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis as redis_py

from orchestrator.agents.registry import AgentRecord
from orchestrator.bootstrap import Container, build_container
from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess, make_socket_dir, remove_socket_dir
from orchestrator.envelope.bodies import StatusUpdate, TaskCompletion
from orchestrator.envelope.model import AgentMessage, Header, Party
from orchestrator.envelope.model_values import Timestamp
from orchestrator.envelope.signature import sign_message
from orchestrator.ids import new_message_id
from orchestrator.redisdb.client import connect
from orchestrator.streams import GROUPS, ROUTER_GROUP, RedisStreams, StreamId, all_streams, stream_key

UPDATES = StreamId(0, "status-update", "normal")
COMPLETIONS = StreamId(0, "task-completion", "high")
DELEGATIONS = StreamId(0, "task-delegation", "high")
#: The streams of the messages that ``Bench.envelopes`` makes.
REPORTS = (UPDATES, COMPLETIONS)

Envelopes = list[tuple[StreamId, bytes]]


@dataclass
class Bench:
    """A server, and what is needed to publish on it."""

    client: redis_py.Redis
    parts: Container
    environment: dict[str, str]
    server_pid: int

    @property
    def url(self) -> str:
        """Where the server is."""
        return self.environment["ORCHESTRA_REDIS_URL"]

    def envelopes(self, count: int) -> Envelopes:
        """Messages with their streams, half of each type, in conversations of a hundred."""
        found = []
        now_ms = time.time_ns() // 1_000_000
        signer = self.parts.keyring.signer("reviewer")
        conversation = first = ""
        for number in range(count):
            if number % 100 == 0:
                conversation, first = new_message_id(), new_message_id()
            update = StatusUpdate(
                task_id="ses_00aabbccddeeff001122334455",
                status="in-progress",
                progress_percentage=number % 100,
                current_activity="reading one module after the other " * 35,
            )
            done = TaskCompletion(
                task_id="ses_00aabbccddeeff001122334455",
                status="success",
                summary="reviewed",
                result="line 12: x & y is never used again\n" * 32,
            )
            message = AgentMessage(
                header=Header(
                    message_id=new_message_id(),
                    timestamp=Timestamp.from_ms(now_ms),
                    sender=Party(agent_name="reviewer", agent_role="specialist"),
                    recipient=Party(agent_name="lead", agent_role="coordinator"),
                    correlation_id=conversation,
                    conversation_chain=(first,),
                ),
                body=update if number % 2 else done,
            )
            data = sign_message(message, signer, now_ms=now_ms)
            found.append((UPDATES if number % 2 else COMPLETIONS, data))
        return found

    def publish(self, envelopes: Envelopes) -> None:
        """Append all of them, as fast as the server takes them."""
        for start in range(0, len(envelopes), 500):
            pipeline = self.client.pipeline(transaction=False)
            for stream, data in envelopes[start : start + 500]:
                pipeline.xadd(stream_key(stream), {"envelope": data})
            pipeline.execute()

    def handled(self, streams: Sequence[StreamId], group: str = ROUTER_GROUP) -> int:
        """How many entries of these streams a group has acknowledged."""
        total = 0
        for stream in streams:
            for found in self.client.xinfo_groups(stream_key(stream)):
                if found["name"] == group.encode():
                    total += (found["entries-read"] or 0) - found["pending"]
        return total

    def until(self, count: int, group: str = ROUTER_GROUP, *, every_s: float = 0.005) -> None:
        """Wait until a group has acknowledged so many reports."""
        while self.handled(REPORTS, group) < count:
            time.sleep(every_s)

    @contextmanager
    def processes(self, *commands: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Parts of the stack, each in a process of its own, ended afterwards."""
        started = [
            subprocess.Popen(command, env=self.environment, stderr=subprocess.DEVNULL) for command in commands
        ]
        try:
            yield started
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(30)

    def until_consumers(self, count: int) -> None:
        """Wait until so many routers read the streams."""
        while len(self.client.xinfo_consumers(stream_key(UPDATES), ROUTER_GROUP)) < count:
            time.sleep(0.02)


def orchestra(*arguments: str) -> list[str]:
    """A command of the stack."""
    return [sys.executable, "-m", "orchestrator", *arguments]


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used, by the kernel's own clock of it."""
    return time.clock_gettime((~pid << 3) | 2)  # how Linux names the clock of another process


def memory_mib(pid: int, *, peak: bool = True) -> float:
    """The memory that a process has, or the most that it has had, in MiB."""
    field = "VmHWM:" if peak else "VmRSS:"
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


@contextmanager
def fresh(data: Path, *, algorithm: str) -> Iterator[Bench]:
    """An empty server, agents, and keys that sign with ``algorithm``."""
    socket_dir = make_socket_dir()
    server = ValkeyProcess(data / "valkey", socket_dir, durable=False)
    server.start()
    try:
        client = connect(server.url)
        settings = load_settings(redis_url=server.url, data=data, signature_algorithm=algorithm)
        parts = build_container(client, settings)
        parts.agents.announce(
            [AgentRecord(name="lead", role="coordinator"), AgentRecord(name="reviewer", role="specialist")]
        )
        RedisStreams(client).ensure_groups(GROUPS, all_streams())
        environment = {
            **os.environ,
            "ORCHESTRA_REDIS_URL": server.url,
            "ORCHESTRA_DATA": str(data),
            "ORCHESTRA_LOG_LEVEL": "error",
        }
        yield Bench(client, parts, environment, server.pid or 0)
    finally:
        server.stop()
        remove_socket_dir(socket_dir)

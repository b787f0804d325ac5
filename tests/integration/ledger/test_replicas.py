"""With replicas, a submission, a claim and a commit wait until they have it."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis as redis_py

from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import find_binary
from orchestrator.doctor.health import setup
from orchestrator.ledger import Ledger, TreeLimits
from tests.kit import Kit
from tests.waiting import wait_until


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[redis_py.Redis, subprocess.Popen[bytes], redis_py.Redis]]:
    """A server and its replica on free ports of the loopback interface."""
    ports = [_free_port(), _free_port()]
    servers = []
    for port in ports:
        folder = tmp_path / str(port)
        folder.mkdir()
        arguments = ["--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
        arguments += ["--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]
        if port == ports[1]:
            arguments += ["--replicaof", "127.0.0.1", str(ports[0])]
        servers.append(
            subprocess.Popen(
                [str(find_binary()), *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
    clients = [redis_py.Redis(port=port) for port in ports]

    def linked() -> bool:
        try:
            return clients[1].info("replication")["master_link_status"] == "up"
        except redis_py.ConnectionError:
            return False

    try:
        wait_until(linked, "a replica")
        yield clients[0], servers[1], clients[1]
    finally:
        for client in clients:
            client.close()
        for server in servers:
            server.kill()
            server.wait()


def test_a_replica_that_has_not_got_a_claim_is_waited_for(
    pair: tuple[redis_py.Redis, subprocess.Popen[bytes], redis_py.Redis], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever connections the transition and the wait take."""
    client, replica_server, _ = pair
    kit = Kit.of(Ledger(client, limits=TreeLimits(replicas=1, replica_timeout_ms=10_000)))
    kit.finish(kit.given("with it"))
    assert not caplog.records
    replica_server.send_signal(signal.SIGSTOP)
    kit.ledger = Ledger(client, limits=TreeLimits(replicas=1, replica_timeout_ms=50))
    kit.finish(kit.given("without it"))
    assert caplog.messages == ["replicas-behind"] * 3  # submit, claim, commit


def test_a_claim_and_a_commit_are_on_the_replica_when_they_return(
    pair: tuple[redis_py.Redis, subprocess.Popen[bytes], redis_py.Redis],
) -> None:
    """And where the replica is gone, the work goes on after the wait."""
    client, replica_server, replica = pair
    kit = Kit.of(Ledger(client, limits=TreeLimits(replicas=1, replica_timeout_ms=10_000)))
    copy = Ledger(replica)
    settings = load_settings(replicas=1)
    assert "replicas-missing" not in {problem.rule for problem in setup(client, settings)}
    for n in range(20):
        root, held = kit.given_run(f"root-{n}")
        assert copy.session(root).state == "running"
        kit.commit(held.claim)
        assert copy.session(root).state == "finished"
    replica_server.kill()
    replica_server.wait()
    kit.ledger = Ledger(client, limits=TreeLimits(replicas=1, replica_timeout_ms=50))
    root = kit.given("alone")
    kit.finish(root)
    assert kit.ledger.session(root).state == "finished"
    assert "replicas-missing" in {problem.rule for problem in setup(client, settings)}

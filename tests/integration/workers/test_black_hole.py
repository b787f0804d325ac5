"""No lease is renewed and no error comes: a cable was pulled, or an agent holds the interpreter."""

from __future__ import annotations

import ctypes
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.ledger import Ledger, RunState
from orchestrator.redisdb.client import connect
from orchestrator.worker.context.context import Context
from orchestrator.worker.execution import heartbeat
from tests.door import door_to
from tests.integration.workers.conftest import StackHarness


def test_a_lease_is_renewed_in_time_over_another_connection(
    start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> None:
    """And the run is committed over another one, too; nobody takes it meanwhile."""
    server = start_valkey(durable=False)
    with door_to(server) as (door, url):
        settings = load_settings(redis_url=url, data=tmp_path, heartbeat_s=0.5, lease_s=6)
        client = connect(url, timeout_s=settings.command_timeout_s)
        stage, observer = StackHarness(client, settings), Ledger(connect(server.url))
        still_s: list[float] = []

        @stage.agent("solo")
        def solo(ctx: Context) -> str:
            (before,) = observer.sweep.leases(0)
            door.forget()
            began = time.monotonic()
            while observer.sweep.leases(0)[0].lease_version == before.lease_version:
                assert time.monotonic() - began < settings.lease_s, "the lease ran out"
                time.sleep(0.01)
            still_s.append(time.monotonic() - began)
            return "the answer"

        session = stage.begin("solo", ends="finished")
        assert still_s[0] < settings.lease_s / 2 + settings.command_timeout_s
        (run,) = stage.ledger.runs(session)
        assert (run.state, run.lost) == (RunState.COMPLETED, 0)
        client.close()


@pytest.mark.parametrize(("lease_s", "timeout_s"), [(15, 5), (60, 20), (600, 30), (1, 2)])
def test_a_command_is_waited_for_far_less_long_than_a_lease_lasts(lease_s: float, timeout_s: float) -> None:
    assert load_settings(lease_s=lease_s, heartbeat_s=0.5).command_timeout_s == timeout_s


def test_a_process_that_stands_still_ends_and_says_where(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its slot would be lost for good: nothing in the process can end it, and nobody beside it knows."""
    monkeypatch.setattr(heartbeat, "_LEAST_STANDSTILL_S", 0.2)
    monkeypatch.setattr(heartbeat.current_process(), "name", "a process of the pool")

    def computing() -> None:
        heartbeat.show(redis_url, 0.1)
        ctypes.PyDLL(None).sleep(100)

    pool_process = multiprocessing.get_context("fork").Process(target=computing)
    pool_process.start()
    pool_process.join(30)
    pool_process.kill()
    assert pool_process.exitcode == 1
    assert "in computing" in capfd.readouterr().err

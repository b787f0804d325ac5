"""An agent that holds the interpreter, so that no lease is renewed and no time limit is heard of."""

from __future__ import annotations

import ctypes
import multiprocessing

import pytest

from orchestrator.worker.execution import heartbeat


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

"""The one event loop of all model agents of a process."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from orchestrator.worker.executors.llm.turn import run_coroutine
from tests.waiting import wait_until


class Ends(Exception):
    """What a run is stopped with."""


def test_what_a_cancelled_run_raises_is_no_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """It was asked to stop, and raises its own error then, which nobody waits for any more."""
    raised = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raised.append("one")
            raise RuntimeError("on its way out") from None

    def check() -> None:
        raise Ends

    with pytest.raises(Ends):
        run_coroutine(stubborn(), check, grace_s=5)
    wait_until(lambda: raised == ["one"])
    time.sleep(0.05)  # for the task to be collected, which nobody can wait for
    gc.collect()
    assert "never retrieved" not in caplog.text

"""A server that answers and takes no writes for a while: what a worker has done is not thrown away."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.config.settings import load_settings
from orchestrator.deployment.embedded.valkey import ValkeyProcess
from orchestrator.ledger import RunState, SessionState
from orchestrator.redisdb.client import connect
from orchestrator.worker.context.context import Context
from tests.integration.workers.conftest import StackHarness
from tests.refusing import REFUSALS, Refusing


@pytest.fixture(params=REFUSALS)
def refusing(
    request: pytest.FixtureRequest, start_valkey: Callable[..., ValkeyProcess], tmp_path: Path
) -> Iterator[tuple[StackHarness, Refusing]]:
    server = start_valkey(durable=False)
    client = connect(server.url)
    settings = load_settings(
        redis_url=server.url, data=tmp_path, heartbeat_s=0.05, lease_s=1, stop_grace_s=20, run_time_limit_s=60
    )
    yield StackHarness(client, settings), Refusing(server, request.param)
    client.close()


def test_a_finished_run_is_committed_once_when_writes_are_taken_again(
    refusing: tuple[StackHarness, Refusing],
) -> None:
    """Its answer is kept, and nothing is done a second time."""
    stage, refusal = refusing
    calls: list[int] = []
    enders: list[threading.Thread] = []

    @stage.agent("solo")
    def solo(ctx: Context) -> str:
        calls.append(1)
        ctx.status(50, "at work")
        refusal.begin()
        enders.append(threading.Thread(target=refusal.end_after, args=(5,)))
        enders[0].start()
        return "the answer"

    session = stage.submit("solo", task="task-1")
    assert stage.play(session) == "finished"
    enders[0].join()
    assert calls == [1]
    assert stage.ledger.result(session) == (SessionState.FINISHED, "the answer")
    (run,) = stage.ledger.runs(session)
    assert (run.state, run.attempt, run.lost) == (RunState.COMPLETED, 1, 0)


def test_an_effect_and_a_claim_outlast_it_too(refusing: tuple[StackHarness, Refusing]) -> None:
    stage, refusal = refusing

    def refuse_three_times() -> threading.Thread:
        refusal.begin()
        ender = threading.Thread(target=refusal.end_after, args=(3,))
        ender.start()
        return ender

    @stage.agent("solo")
    def solo(ctx: Context) -> str:
        at_the_claim.join()
        at_the_effect = refuse_three_times()
        ctx.status(50, "at work")
        at_the_effect.join()
        return ctx.prompt

    session = stage.submit("solo")
    dispatch = stage.start(session)
    at_the_claim = refuse_three_times()
    assert stage.execute(dispatch) == "finished", stage.ledger.session(session).reason
    assert stage.ledger.session(session).progress == 50
